//! A leader that was stopped while another one was elected, and that answers keep-alives before it knows.

use super::forger::{Forger, Reply};
use crate::support::dlock::Dlock;
use crate::support::etcd::{Ensemble, Etcd};
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use crate::support::{SOON, process};
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(6);

/// Late in the lease, but so that one more attempt to extend it can be made.
const LATE: Duration = Duration::from_millis(3500);

/// How often the experiment is made until the leader answers as it did before.
const TRIES: usize = 6;

/// Starts a run that holds the lock until SIGKILL.
fn holder(forger: &Forger) -> Running {
    let url = format!("etcd://127.0.0.1:{}", forger.port());
    let run = Dlock::run().backend(url).args(["--ttl", "6s", "--grace", "0s"]);
    let mut run = run.sh("trap '' TERM; echo ready; while :; do sleep 600; done").spawn();
    run.await_ready();
    run
}

/// The leader is stopped and continued, then the client is cut off. Returns the replies to its last heartbeat.
fn hold_at_a_stuck_leader(etcd: &Etcd) -> Vec<Reply> {
    let leader = etcd.leader();
    let forger = Forger::to(etcd.port(leader));
    let mut run = holder(&forger);
    let command = run.command();
    let is_heartbeat = |replies: &[String]| replies == ["LeaseKeepAlive", "Txn"];
    until(SOON, "a heartbeat", || forger.methods().windows(2).any(is_heartbeat));
    etcd.daemon(leader).stop();
    let stopped = Instant::now();
    forger.cut_after_heartbeat();
    until(SOON, "a late time", || stopped.elapsed() > LATE);
    let before = forger.keep_alives();
    // If the last one was sent before that, this try shows nothing.
    until(SOON, "a late keep-alive", || forger.keep_alives() > before || !process::alive(command));
    etcd.daemon(leader).resume();
    let others = etcd.client_of((leader + 1) % etcd.count());
    until(TTL * 4, "the end of the lease", || others.keys("/dlock/x/").is_empty());
    assert!(!process::alive(command), "runs without the lock: {:?}", forger.replies());
    assert_eq!(run.wait().exit, Exit::Code(76));
    forger.replies()
}

#[test]
fn a_stuck_leader_extends_no_lease() {
    let ensemble = Ensemble::lent();
    let is_stale = |replies: &[Reply]| match replies {
        [.., keep_alive, read] => keep_alive.term < read.term,
        _ => false,
    };
    let mut all = Vec::new();
    for _ in 0..TRIES {
        let replies = hold_at_a_stuck_leader(&ensemble.0);
        if is_stale(&replies) {
            return;
        }
        all.push(replies);
    }
    panic!("the stuck leader extended no lease, and nothing was shown: {all:?}");
}

/// A keep-alive of another term than the replies before and after it extends nothing: it is sent again.
#[test]
fn a_heartbeat_of_two_leaders_is_repeated() {
    let etcd = Etcd::lent();
    let forger = Forger::to(etcd.port(0));
    let mut run = holder(&forger);
    forger.forge_terms(1);
    let is_repeated = |replies: &[String]| replies == ["LeaseKeepAlive", "Txn", "LeaseKeepAlive", "Txn"];
    until(SOON, "a repeated heartbeat", || forger.methods().windows(4).any(is_repeated));
    run.assert_running();
    // Until the end of the lease that was confirmed last, each of them is.
    let command = run.command();
    forger.forge_terms(usize::MAX);
    until(SOON, "the end of the command", || {
        let is_held = !etcd.client().keys("/dlock/x/").is_empty();
        let is_alive = process::alive(command);
        assert!(is_held || !is_alive, "runs without the lock: {:?}", forger.replies());
        !is_alive
    });
    assert_eq!(run.wait().exit, Exit::Code(76));
}
