//! Stores that are reached by a front end, of which there are many, or which restarts: a release is repeated until one replies.

use crate::support::SOON;
use crate::support::consul::Consul;
use crate::support::dlock::Dlock;
use crate::support::dynamodb::Dynamo;
use crate::support::kubernetes::Kubernetes;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::s3::S3;
use crate::support::wait::until;
use std::process::Stdio;

#[track_caller]
fn assert_released(url: impl Fn(u16) -> String, port: u16) {
    let proxy = Proxy::to(port);
    let run = Dlock::run()
        .backend(url(proxy.port()))
        .args(["--ttl", "60s", "--connect-timeout", "30s"])
        .stdin(Stdio::piped());
    let mut run = run.sh("echo ready; exec cat").spawn();
    run.await_ready();
    proxy.refuse();
    let before = proxy.attempts();
    drop(run.take_stdin());
    until(SOON, "further attempts", || proxy.attempts() >= before + 70);
    proxy.heal();
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    let next = Dlock::run().backend(url(port)).arg("--no-wait").sh("echo ran").output();
    assert_eq!(next.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// F06
mod a_release_is_repeated_while_the_front_end_restarts {
    use super::*;

    #[test]
    fn consul() {
        let consul = Consul::lent();
        assert_released(|port| format!("consul://127.0.0.1:{port}"), consul.port());
    }

    #[test]
    fn dynamodb() {
        let dynamo = Dynamo::lent();
        assert_released(|port| dynamo.url_by(port), dynamo.port());
    }

    #[test]
    fn s3() {
        let s3 = S3::lent();
        assert_released(|port| s3.url_by(&format!("http://127.0.0.1:{port}")), s3.port());
    }

    #[test]
    fn kubernetes() {
        let server = Kubernetes::lent();
        assert_released(|port| server.url_by(port), server.port());
    }
}
