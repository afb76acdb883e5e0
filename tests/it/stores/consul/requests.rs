//! What a run costs.

use crate::support::SOON;
use crate::support::consul::Consul;
use crate::support::dlock::Dlock;
use crate::support::http_proxy::HttpProxy;
use crate::support::running::Exit;
use crate::support::wait::until;
use std::process::Stdio;

/// The requests of a run, without those that wait for changes, and without the ids of sessions.
fn requests(proxy: &HttpProxy, options: &str, arguments: &[&str]) -> Vec<String> {
    let variable = format!("127.0.0.1:{}", proxy.port());
    let before = proxy.heads().len();
    // So long that the session needs no renewal before the release, however long the run takes.
    let run = Dlock::run().backend(format!("consul://agent.invalid{options}")).args(["--ttl", "10m"]);
    let run = run.args(arguments).env("http_proxy", variable);
    assert_eq!(run.sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    let heads = proxy.heads().split_off(before);
    let request = |head: &String| {
        let (request, _) = head.split_once('?').expect("a query");
        let (method, path) = request.split_once(" http://agent.invalid:8500/v1/").expect("a path");
        let end = path.find("destroy/").map_or(path.len(), |start| start + "destroy".len());
        format!("{method} {}", &path[..end])
    };
    heads.iter().filter(|head| !head.contains("&index=")).map(request).collect()
}

/// The lock and the ledger are taken together, and released together. A session is ended after that, so that nobody has to
/// wait for its delay.
#[test]
fn a_lock_is_taken_with_three_requests_and_released_with_two() {
    let consul = Consul::lent();
    let proxy = HttpProxy::to(consul.port());
    let expected =
        ["GET kv/dlock/x/.lock", "PUT session/create", "PUT txn", "PUT txn", "PUT session/destroy"];
    for _ in 0..2 {
        assert_eq!(requests(&proxy, "", &[]), expected);
    }
    assert_eq!((consul.holder("dlock/x/.lock"), consul.sessions()), (None, Vec::new()));
}

/// `consul kv put` keeps the session of a key, and drops its flags.
#[test]
fn a_value_that_is_put_into_the_key_of_a_holder_does_not_end_the_hold() {
    let consul = Consul::lent();
    let proxy = HttpProxy::to(consul.port());
    let run = Dlock::run().backend("consul://agent.invalid").args(["--ttl", "10s"]).stdin(Stdio::piped());
    let run = run.env("http_proxy", format!("127.0.0.1:{}", proxy.port()));
    let mut run = run.sh("echo ready; exec cat").spawn();
    run.await_ready();
    let renewals =
        || proxy.heads().iter().filter(|head| head.starts_with("PUT") && head.contains("/renew/")).count();
    consul.ask("PUT", "kv/dlock/x/.lock", b"hello");
    let before = renewals();
    until(SOON, "two renewals", || renewals() >= before + 2);
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    assert_eq!((consul.holder("dlock/x/.lock"), consul.sessions()), (None, Vec::new()));
}

/// The key of the session, the holders and the ledger change together.
#[test]
fn a_slot_is_taken_with_as_many() {
    let consul = Consul::lent();
    let proxy = HttpProxy::to(consul.port());
    let expected = ["GET kv/dlock/x/", "PUT session/create", "PUT txn", "PUT txn", "PUT session/destroy"];
    for _ in 0..2 {
        assert_eq!(requests(&proxy, "?recipe=semaphore", &["--slots", "2"]), expected);
    }
    assert_eq!((consul.keys(), consul.sessions()), (vec!["dlock/x/.lock.dlock".to_owned()], Vec::new()));
}

/// The release is decided on what the run knows, and finds out by its write that this is over.
#[test]
fn a_loss_that_nobody_has_told_is_noticed_by_the_release() {
    let consul = Consul::lent();
    let proxy = HttpProxy::forwarding(consul.port(), |line| !line.contains("&index="));
    let run = Dlock::run().backend("consul://agent.invalid").args(["--ttl", "10m"]).stdin(Stdio::piped());
    let run = run.env("http_proxy", format!("127.0.0.1:{}", proxy.port()));
    let mut run = run.sh("echo ready; exec cat").spawn();
    run.await_ready();
    let foreign = consul.session(None);
    consul.ask("DELETE", "kv/dlock/x/.lock", b"");
    assert!(consul.lock("dlock/x/.lock", &foreign));
    drop(run.take_stdin());
    let expected = "dlock: x on consul://agent.invalid:8500: was no longer held when the command ended: \
                    another command may have run at the same time, see dlock history\n";
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", expected));
    assert_eq!(consul.holder("dlock/x/.lock"), Some(foreign), "it was touched");
}
