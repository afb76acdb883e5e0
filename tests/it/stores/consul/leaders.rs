//! A leader that hangs while another one is elected, and then goes on as if it still led: it may confirm the renewal of a
//! session whose time the new leader counts.

use crate::support::SOON;
use crate::support::consul::ensemble::Ensemble;
use crate::support::dlock::Dlock;
use crate::support::http_proxy::HttpProxy;
use crate::support::process;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::wait::until;
use std::time::{Duration, Instant};

const KEY: &str = "dlock/x/.lock";

/// A run that holds the lock until SIGKILL.
fn holder(url: &str, ttl: &str) -> Dlock {
    let run = Dlock::run().backend(url).args(["--ttl", ttl, "--grace", "0s"]);
    run.sh("trap '' TERM; echo ready; while :; do sleep 600; done")
}

/// The run asks the stopped leader itself, which is continued late in the lease, so that it gets the renewals that it has
/// not answered yet. As soon as it has answered one, the run is cut off, so that it learns nothing else.
#[test]
fn a_deposed_leader_confirms_no_lock_that_another_client_gets() {
    let ensemble = Ensemble::start();
    let leader = ensemble.leader(0, None);
    let proxy = Proxy::to(ensemble.servers[leader].port());
    let mut run = holder(&format!("consul://127.0.0.1:{}", proxy.port()), "10s").spawn();
    run.await_ready();
    let command = run.command();
    let session = ensemble.servers[leader].holder(KEY).unwrap();
    let other = &ensemble.servers[(leader + 1) % 3];
    // The requests until here are answered; the next one is a renewal.
    ensemble.servers[leader].daemon().stop();
    let stopped = Instant::now();
    ensemble.leader((leader + 1) % 3, Some(leader));
    let foreign = other.session(None);
    let answered = proxy.replies();
    until(SOON, "a late time", || stopped.elapsed() > Duration::from_secs(7));
    ensemble.servers[leader].daemon().resume();
    until(SOON, "a reply", || proxy.replies() > answered || !process::alive(command));
    proxy.hold_both();
    // Up to three times the lease later.
    until(Duration::from_secs(60), "the lock", || {
        let is_locked = other.lock(KEY, &foreign);
        assert!(!is_locked || !process::alive(command), "two holders");
        is_locked
    });
    assert_ne!(other.holder(KEY), Some(session));
    assert_eq!(run.wait().exit, Exit::Code(76));
}

/// The run asks a server that passes its requests on: to the leader that hangs, and then to the new one.
#[test]
fn an_election_does_not_disturb_the_command() {
    let ensemble = Ensemble::start();
    let leader = ensemble.leader(0, None);
    let agent = &ensemble.servers[(leader + 1) % 3];
    let proxy = HttpProxy::to(agent.port());
    let run =
        holder("consul://agent.invalid", "20s").env("http_proxy", format!("127.0.0.1:{}", proxy.port()));
    let mut run = run.spawn();
    run.await_ready();
    let session = agent.holder(KEY);
    // A renewal that succeeded is followed by a read.
    let is_read = |head: &&String| head.contains("consistent") && !head.contains("&index=");
    let renewals = || proxy.heads().iter().filter(is_read).count();
    ensemble.servers[leader].daemon().stop();
    ensemble.leader((leader + 1) % 3, Some(leader));
    for is_stopped in [true, false] {
        let before = renewals();
        until(SOON, "a renewal", || {
            run.assert_running();
            renewals() > before
        });
        if is_stopped {
            ensemble.servers[leader].daemon().resume();
        }
    }
    run.assert_running();
    assert!(session.is_some() && agent.holder(KEY) == session);
}
