//! A leader that is stopped until another one has taken over, and that goes on while a client still uses it: it does not
//! know yet that it is deposed. Then the client is cut off, so that only its own clock can stop its command.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::process;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::wait::{Pauses, until};
use crate::support::zookeeper::{Plan, ZooKeeper};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// From the grant on. The deposed leader goes on before the lease ends, and so late that a lease which counts from then
/// ends after the session does at the next leader: a third of the session after that has begun.
const STUCK: Duration = Duration::from_millis(7000);
const TTL: &str = "8s";
/// How long the client then has for a heartbeat.
const ANSWERS: Duration = Duration::from_millis(400);

fn run(url: String) -> Dlock {
    let run = Dlock::run().backend(url).args(["--ttl", TTL, "--grace", "200ms", "--wait", "2m"]);
    run.sh("echo ready; exec sleep 600")
}

/// Returns for how long two commands ran; `None` if no other leader was elected.
fn overlap(zookeeper: &ZooKeeper) -> Option<Duration> {
    let leader = zookeeper.leader();
    let proxy = Proxy::to(zookeeper.port(leader));
    let mut first = run(format!("zookeeper://127.0.0.1:{}", proxy.port())).spawn();
    first.await_ready();
    let granted = Instant::now();
    let command = first.command();
    let others = (0..3).filter(|member| *member != leader).map(|other| zookeeper.address(other).to_string());
    let mut second = run(format!("zookeeper://{}", others.collect::<Vec<_>>().join(","))).spawn();
    let mut session = zookeeper.session_on((leader + 1) % 3);
    until(SOON, "a waiter", || session.children("/dlock/x").unwrap().len() == 2);
    drop(session);
    zookeeper.daemon(leader).stop();
    std::thread::sleep(STUCK.saturating_sub(granted.elapsed()));
    zookeeper.daemon(leader).resume();
    let resumed = Instant::now();
    // Until it is renewed, as soon as possible: a little later the former leader follows the new one.
    let pauses = Pauses::begin();
    while resumed.elapsed() < ANSWERS && !first.stderr().contains("renewed") {
        pauses.pause();
    }
    proxy.hold_both();
    second.await_ready();
    let began = Instant::now();
    until(SOON, "the end of the first command", || !process::alive(command));
    let overlap = began.elapsed();
    proxy.heal();
    assert_eq!(first.wait().exit, Exit::Code(76));
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait().exit, Exit::by(Signal::SIGTERM));
    (zookeeper.leader() != leader).then_some(overlap)
}

#[test]
fn a_stuck_zookeeper_leader_extends_no_hold() {
    let span = Duration::from_secs(super::number("DLOCK_TEST_RANDOM_SECONDS").unwrap_or(120)) / 4;
    // Another leader is elected within a second or so.
    let lines = ["tickTime=300", "syncLimit=2", "cnxTimeout=500"].map(str::to_owned).to_vec();
    let zookeeper = ZooKeeper::start_with(&Plan { ensemble: true, lines, ..Plan::current() });
    let begin = Instant::now();
    let mut overlaps = Vec::new();
    while overlaps.is_empty() || begin.elapsed() < span {
        overlaps.extend(overlap(&zookeeper));
    }
    println!("{} stuck leaders: {overlaps:?}", overlaps.len());
    // The time to find that a command has ended.
    assert!(overlaps.iter().all(|overlap| *overlap < Duration::from_millis(50)), "{overlaps:?}");
}
