//! The session of a holder: it expires, moves to another server, or gets no reply.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use crate::support::zookeeper::session::{Kind, Session};
use crate::support::zookeeper::{Ensemble, ZooKeeper};
use std::process::Stdio;
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(3);

fn run(zookeeper: &ZooKeeper) -> Dlock {
    Dlock::run().backend(zookeeper.url()).args(["--ttl", "3s"])
}

/// Starts a run, and returns it with the owner of its node.
fn holder(zookeeper: &ZooKeeper) -> (Running, i64) {
    let mut run = run(zookeeper).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let mut session = zookeeper.session();
    let nodes = session.children("/dlock/x").unwrap();
    let [node] = nodes.as_slice() else { panic!("{nodes:?}") };
    let (_, stat) = session.get(&format!("/dlock/x/{node}")).unwrap();
    session.close().unwrap();
    (run, stat.owner)
}

/// F36
#[test]
fn an_expired_session_stops_the_command() {
    let zookeeper = ZooKeeper::lent();
    let (mut run, session) = holder(&zookeeper);
    let command = run.command();
    let began = Instant::now();
    Session::expire(zookeeper.address(0), session).unwrap();
    let output = run.wait();
    assert!(began.elapsed() < TTL / 3 + Duration::from_secs(1), "stopped after {:?}", began.elapsed());
    let lost = format!(
        "dlock: x on {}: the lock was lost: it is gone from the store (deleted, expired or evicted); the command was stopped\n",
        zookeeper.url()
    );
    assert_eq!((output.exit, output.stderr), (Exit::Code(76), lost));
    assert!(!process::alive(command));
    assert_eq!(zookeeper.session().children("/dlock/x").unwrap(), [""; 0], "a node was created again");
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
    assert_eq!(zookeeper.session().children("/dlock/x").unwrap(), [""; 0]);
    zookeeper.restart(member);
}

/// F36: SUSPENDED is not LOST, but the deadline is that of the last check.
#[test]
fn a_silent_server_ends_the_command_before_the_session() {
    let zookeeper = ZooKeeper::start();
    let (mut run, _) = holder(&zookeeper);
    let began = Instant::now();
    zookeeper.daemon(0).stop();
    let output = run.wait();
    zookeeper.daemon(0).resume();
    assert!(began.elapsed() < TTL, "stopped after {:?}", began.elapsed());
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
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

/// A host is upgraded while a command runs on another one.
#[test]
fn a_document_of_a_newer_dlock_does_not_stop_the_command() {
    let zookeeper = ZooKeeper::lent();
    let mut run = run(&zookeeper).stdin(Stdio::piped()).sh("echo ready; read line; echo done").spawn();
    run.await_ready();
    let (path, newer) = ("/dlock/dlock#beside/x", r#"{"format":99,"fencing_token":1}"#);
    let mut session = zookeeper.session();
    until(SOON, "the document beside the entries", || session.get(path).is_some());
    session.set(path, newer).unwrap();
    // Several heartbeats, of some packets each, beside the pings.
    let before = zookeeper.figure(0, "packets_received");
    until(SOON, "heartbeats", || zookeeper.figure(0, "packets_received") >= before + 40);
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!(output.outcome(), (Exit::Code(0), "ready\ndone\n", ""));
    assert_eq!(session.children("/dlock/x").unwrap(), [""; 0]);
    assert_eq!(session.get(path).unwrap().0, newer, "it is not written");
    session.close().unwrap();
    let next = Dlock::run().backend(zookeeper.url()).sh("echo ran").output();
    assert_eq!((next.exit, next.stdout.as_str()), (Exit::Code(78), ""), "{}", next.stderr);
}
