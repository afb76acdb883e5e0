//! Servers that have lost the others: a leader that was stopped, or is cut off, answers until it notices.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::wait::until;
use crate::support::zookeeper::ZooKeeper;
use crate::support::zookeeper::cut_off::CutOff;
use std::time::{Duration, Instant};

/// A command whose lease is not extended ends 1.9 s before its end. With one that is extended by a heartbeat, after a third
/// of it, it would run for longer.
const TTL: Duration = Duration::from_secs(8);

/// Its answers extend no hold, neither on the connection that there was, nor on those that continue the session.
#[track_caller]
fn assert_stopped_in_time(reconnects: bool) {
    let zookeeper = ZooKeeper::lent();
    let server = CutOff::to(zookeeper.address(0));
    let run = Dlock::run().backend(server.url()).args(["--ttl", "8s"]);
    let mut run = run.sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let command = run.command();
    let began = Instant::now();
    server.cut_off();
    if reconnects {
        server.close();
    }
    until(SOON, "the end of the command", || !process::alive(command));
    assert!(began.elapsed() < TTL, "stopped after {:?}", began.elapsed());
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(server.sessions() > 0, "the session was not continued");
}

#[test]
fn a_server_that_is_cut_off_extends_no_hold() {
    assert_stopped_in_time(false);
}

#[test]
fn a_server_that_is_cut_off_extends_no_hold_after_a_reconnect() {
    assert_stopped_in_time(true);
}

/// The reply to the claim is lost, and the next server that is asked shows that it was granted.
#[test]
fn a_server_that_is_cut_off_grants_nothing() {
    let zookeeper = ZooKeeper::lent();
    let server = CutOff::to(zookeeper.address(0));
    let mut holder = Dlock::run().backend(zookeeper.url()).sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let waiter = Dlock::run().backend(server.url()).args(["--ttl", "6s", "--wait", "6s"]);
    let mut waiter = waiter.sh("echo ran").spawn();
    let mut session = zookeeper.session();
    until(SOON, "a waiter", || session.children("/dlock/x").unwrap().len() == 2);
    session.close().unwrap();
    server.cut_off();
    server.close();
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.wait();
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
}

/// A heartbeat is a write that nobody is notified of, and that changes no node.
#[test]
fn heartbeats_change_nothing() {
    let zookeeper = ZooKeeper::lent();
    let run = Dlock::run().backend(zookeeper.url()).args(["--ttl", "6s"]);
    let mut run = run.sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let mut session = zookeeper.session();
    let mut look = || {
        let [node] = session.children("/dlock/x").unwrap().try_into().expect("one node");
        session.get(&format!("/dlock/x/{node}")).unwrap()
    };
    let before = look();
    let packets = || zookeeper.figure(0, "packets_received");
    let begin = packets();
    until(SOON, "several heartbeats", || packets() > begin + 20);
    assert_eq!(look(), before);
    run.assert_running();
}
