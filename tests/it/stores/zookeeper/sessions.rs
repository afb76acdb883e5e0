//! The session of a holder: it expires, moves to another server, or gets no reply.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::proxy::Proxy;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use crate::support::zookeeper::session::{Kind, Session};
use crate::support::zookeeper::{Ensemble, ZooKeeper};
use nix::sys::signal::Signal;
use std::time::Duration;

/// A run whose session has the time to move to another server on a busy machine.
fn run(zookeeper: &ZooKeeper) -> Dlock {
    Dlock::run().backend(zookeeper.url()).args(["--ttl", "12s"])
}

/// A session on a server that knows of all writes until now.
fn up_to_date(zookeeper: &ZooKeeper) -> Session {
    let mut session = zookeeper.session();
    // It has taken part in this one.
    session.create_all("/seen");
    session
}

/// Starts a run, and returns it with the owner of its node.
fn holder(zookeeper: &ZooKeeper) -> (Running, i64) {
    let mut run = run(zookeeper).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let mut session = up_to_date(zookeeper);
    let nodes = session.children("/dlock/x").unwrap();
    let [node] = nodes.as_slice() else { panic!("{nodes:?}") };
    let (_, stat) = session.get(&format!("/dlock/x/{node}")).unwrap();
    session.close().unwrap();
    (run, stat.owner)
}

/// As a server shows it that has missed the end of the session (ZOOKEEPER-5010).
#[test]
fn a_node_of_another_session_is_not_ours_whatever_it_contains() {
    let zookeeper = ZooKeeper::lent();
    let (mut run, session) = holder(&zookeeper);
    let mut other = zookeeper.session();
    let [node] = other.children("/dlock/x").unwrap().try_into().unwrap();
    let (data, _) = other.get(&format!("/dlock/x/{node}")).unwrap();
    let name = &node[..node.len() - 10];
    let copy = other.create(&format!("/dlock/x/{name}"), &data, Kind::EphemeralSequential).unwrap();
    Session::expire(zookeeper.address(0), session).unwrap();
    let output = run.wait();
    let lost = "the lock was lost: another client holds it now";
    assert!(output.exit == Exit::Code(76) && output.stderr.contains(lost), "{output:?}");
    assert_eq!(other.get(&copy).unwrap().0, data, "it is not touched");
    other.close().unwrap();
}

/// As of `Revoker.attemptRevoke`, before the first renewal and after a renewal.
#[test]
fn a_client_of_curator_revokes_a_hold() {
    let zookeeper = ZooKeeper::lent();
    let text = "trap 'echo ended; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    for ttl in ["10m", "3s"] {
        let run = Dlock::run().backend(zookeeper.url()).args(["--ttl", ttl]);
        let mut run = run.sh(text).spawn();
        run.await_ready();
        let mut session = up_to_date(&zookeeper);
        let [node] = session.children("/dlock/x").unwrap().try_into().unwrap();
        let path = format!("/dlock/x/{node}");
        if ttl == "3s" {
            // A renewal, each second, does not write the node.
            throughout(Duration::from_millis(2500), "the command runs", || {
                run.assert_running();
                true
            });
        }
        session.set(&path, "__REVOKE__").unwrap();
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\nended\n"), "{output:?}");
        assert!(output.stderr.contains("a client of Curator"), "{}", output.stderr);
        assert_eq!(session.children("/dlock/x").unwrap(), [""; 0]);
        session.close().unwrap();
    }
}

/// F36
#[test]
fn a_session_continues_at_another_server() {
    let ensemble = Ensemble::lent();
    let mut ensemble = ensemble;
    let zookeeper = &mut ensemble.0;
    let (mut run, session) = holder(zookeeper);
    let is_connected = |zookeeper: &ZooKeeper, member: usize| zookeeper.sessions(member).contains(&session);
    let member = (0..zookeeper.count()).find(|member| is_connected(zookeeper, *member)).unwrap();
    zookeeper.kill(member);
    let others: Vec<usize> = (0..zookeeper.count()).filter(|other| *other != member).collect();
    until(SOON, "another server", || others.iter().any(|other| is_connected(zookeeper, *other)));
    run.assert_running();
    run.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(run.wait().exit, Exit::by(nix::sys::signal::Signal::SIGTERM));
    assert_eq!(up_to_date(zookeeper).children("/dlock/x").unwrap(), [""; 0]);
    zookeeper.restart(member);
}

#[test]
fn a_waiter_whose_session_expires_waits_on() {
    let zookeeper = ZooKeeper::lent();
    let (mut holder, owner) = holder(&zookeeper);
    let mut waiter = run(&zookeeper).args(["--wait", "forever"]).sh("true").spawn();
    let nodes = || {
        let mut session = zookeeper.session();
        let nodes = session.children("/dlock/x").unwrap();
        let owners = nodes.iter().filter_map(|node| Some(session.get(&format!("/dlock/x/{node}"))?.1.owner));
        let owners: Vec<i64> = owners.filter(|session| *session != owner).collect();
        session.close().unwrap();
        owners
    };
    until(SOON, "a waiter", || nodes().len() == 1);
    let before = nodes()[0];
    Session::expire(zookeeper.address(0), before).unwrap();
    until(SOON, "another session", || nodes().first().is_some_and(|session| *session != before));
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.wait();
    assert_eq!(waiter.wait().exit, Exit::Code(0));
}

/// A run whose command has ended, and which stays for the minimum hold time.
fn staying(proxy: &Proxy, ttl: &str, min_hold: &str) -> Running {
    let url = format!("zookeeper://127.0.0.1:{}", proxy.port());
    let run = Dlock::run().backend(url).args(["-v", "--ttl", ttl, "--min-hold", min_hold]);
    let mut run = run.sh("true").spawn();
    run.await_stderr("dlock keeps the lock for another ");
    run
}

#[test]
fn a_signal_ends_a_stay_although_the_server_does_not_reply() {
    let zookeeper = ZooKeeper::lent();
    let proxy = Proxy::to(zookeeper.port(0));
    let mut run = staying(&proxy, "2m", "10m");
    proxy.hold_both();
    // Every ten seconds it sends a request, which would be repeated for as long as the lease lasts.
    throughout(Duration::from_secs(11), "dlock stays", || run.poll().is_none());
    run.signal(Signal::SIGTERM);
    let output = run.wait();
    assert_eq!(
        (output.exit, output.stderr.contains("could not")),
        (Exit::Code(0), false),
        "{}",
        output.stderr
    );
}

/// The last lease under which the command ran is over by then, and the session is not.
#[test]
fn a_run_that_stays_for_its_min_hold_survives_an_outage() {
    let zookeeper = ZooKeeper::lent();
    let proxy = Proxy::to(zookeeper.port(0));
    let mut run = staying(&proxy, "6s", "14s");
    // It tries again every ten seconds.
    throughout(Duration::from_secs(9), "dlock stays", || run.poll().is_none());
    proxy.hold_both();
    throughout(Duration::from_millis(2500), "dlock waits for the server", || run.poll().is_none());
    proxy.heal();
    let output = run.wait();
    assert_eq!((output.exit, output.stderr.contains("error")), (Exit::Code(0), false), "{}", output.stderr);
}
