//! Real sentinels, which replace a master that is dead, hung, or is to be replaced.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::inherited_lock::InheritedLock;
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::sentinels::Sentinels;
use crate::support::wait::until;
use std::time::Duration;

/// The time that a failover may take on a busy machine before a lease ends.
const TTL: &str = "60s";
const KEY: &str = "dlock:x";

/// A lock of a service, and its commands.
struct Fixture {
    place: Place,
    url: String,
    inherited_lock: InheritedLock,
}

impl Fixture {
    fn on(group: &Sentinels) -> Self {
        let place = Place::new();
        let inherited_lock = place.inherited_lock();
        Self { place, url: group.url(), inherited_lock }
    }

    fn run(&self) -> Dlock {
        self.place.run().backend(&self.url).args(["--ttl", TTL])
    }

    /// A command that exits with status 5 on request.
    #[track_caller]
    fn witness(&self, run: Dlock) -> Running {
        let go = format!("leave:{}=5", self.place.arg("go"));
        let mut run = run.probe(["--inherited-lock", self.inherited_lock.path(), "signals", &go]).spawn();
        run.await_ready();
        run
    }

    #[track_caller]
    fn assert_undisturbed(&self, group: &Sentinels, mut run: Running) {
        run.assert_running();
        self.place.write("go", "");
        assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
        assert!(!is_held(group.master()), "the lock is left");
    }

    #[track_caller]
    fn assert_lost(&self, mut run: Running) {
        let output = run.wait();
        let line = format!(
            "dlock: x on {}: the lock was lost: the store has failed over to a server that does not have it; \
            the command \
             was stopped\n",
            self.url
        );
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(76), line.as_str()));
        assert!(self.inherited_lock.is_free(), "somebody is left");
    }
}

fn is_held(server: &Redis) -> bool {
    server.command(&["EXISTS", KEY]) == Value::Int(1)
}

fn waiters(server: &Redis) -> i64 {
    server.command(&["ZCARD", "dlock#queue:{dlock:x}"]).int()
}

/// Waits until this many dlocks have sent requests to a server and are connected to it.
#[track_caller]
fn await_dlocks_at(server: &Redis, count: usize) {
    until(SOON, "dlocks at the new master", || {
        let clients = server.command(&["CLIENT", "LIST"]).text();
        clients.lines().filter(|client| client.contains("cmd=eval")).count() >= count
    });
}

#[test]
fn a_lock_is_acquired_and_released_at_the_master() {
    let group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    let run = fixture.witness(fixture.run());
    assert!(is_held(group.master()));
    fixture.assert_undisturbed(&group, run);
}

/// F26
#[test]
fn a_hold_continues_when_an_operator_replaces_the_master() {
    let group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    let run = fixture.witness(fixture.run());
    group.fail_over();
    // The former master has become a replica, and has closed its connections.
    await_dlocks_at(group.master(), 1);
    fixture.assert_undisturbed(&group, run);
}

/// F26
#[test]
fn a_hold_continues_when_the_master_crashes() {
    let mut group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    let run = fixture.witness(fixture.run());
    group.await_replicas();
    group.crash();
    await_dlocks_at(group.master(), 1);
    fixture.assert_undisturbed(&group, run);
}

/// F26
#[test]
fn a_hold_continues_when_the_master_hangs() {
    let group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    // One of the renewals hangs.
    let run = fixture.witness(fixture.place.run().backend(&fixture.url).args(["--ttl", "30s"]));
    group.await_replicas();
    let former = group.master_number();
    group.set_down_after(Duration::from_millis(500));
    group.server(former).stop();
    group.await_another_master(former);
    await_dlocks_at(group.master(), 1);
    group.server(former).resume();
    fixture.assert_undisturbed(&group, run);
}

/// F26: replication is asynchronous. No other client gets the lock while the command is alive.
#[test]
fn an_unreplicated_hold_is_lost_when_the_master_crashes() {
    let mut group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    let run = fixture.witness(fixture.run());
    group.await_replicas();
    for replica in group.replicas() {
        replica.command(&["CONFIG", "SET", "replica-read-only", "no"]);
        assert_eq!(replica.command(&["DEL", KEY]), Value::Int(1));
    }
    group.crash();
    fixture.assert_lost(run);
    assert!(!is_held(group.master()), "the lock was made anew");
    let next_holder = fixture
        .run()
        .args(["--wait", "forever"])
        .probe(["next-holder", fixture.inherited_lock.path()])
        .output();
    assert_eq!(next_holder.outcome(), (Exit::Code(0), "clean\n", ""));
}

#[test]
fn a_lock_requested_without_a_master_is_granted_by_the_next_one() {
    let mut group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    let former = group.master_number();
    group.server_mut(former).kill();
    let at_once = fixture.run().command(["true"]).output();
    assert_eq!(at_once.exit, Exit::Code(69), "{}", at_once.stderr);
    let mut run = fixture.run().args(["--retry", "5m"]).command(["true"]).spawn();
    group.crash();
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "", ""));
    assert!(!is_held(group.master()), "the lock is left");
}

#[test]
fn waiters_are_served_in_order_by_the_new_master() {
    let mut group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    let holder = fixture.witness(fixture.run());
    let mut line = Vec::new();
    for number in 1..=3 {
        let note = format!("echo {number} >>{}", fixture.place.arg("order"));
        line.push(fixture.run().args(["--wait", "forever"]).sh(&note).spawn());
        until(SOON, "one more who waits", || waiters(group.master()) == number);
    }
    group.await_replicas();
    group.crash();
    // Each has returned to its position.
    await_dlocks_at(group.master(), 4);
    fixture.place.write("go", "");
    let mut holder = holder;
    assert_eq!(holder.wait().outcome(), (Exit::Code(5), "ready\n", ""));
    for run in &mut line {
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "", ""));
    }
    assert_eq!(fixture.place.read("order"), "1\n2\n3\n");
    assert_eq!((is_held(group.master()), waiters(group.master())), (false, 0));
}

#[test]
fn a_lock_is_released_at_the_new_master_after_a_crash_of_the_former_one() {
    let mut group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    let mut run = fixture.witness(fixture.run().args(["--connect-timeout", "60s"]));
    group.await_replicas();
    let former = group.master_number();
    group.server_mut(former).kill();
    fixture.place.write("go", "");
    fixture.inherited_lock.await_free();
    group.crash();
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
    assert!(!is_held(group.master()), "the lock is left");
}

/// Two of three agree, and the third is not waited for.
#[test]
fn a_down_or_hung_sentinel_has_no_effect() {
    let mut group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    let run = |fixture: &Fixture| {
        let run = fixture.run().args(["--connect-timeout", "600s"]);
        assert_eq!(run.command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
    };
    group.sentinel(0).stop();
    run(&fixture);
    group.sentinel(0).resume();
    group.sentinel_mut(0).kill();
    run(&fixture);
    group.sentinel_mut(0).restart();
}

#[test]
fn fencing_tokens_grow_over_a_failover() {
    let group = Sentinels::lent();
    let fixture = Fixture::on(&group);
    let token = || -> u64 {
        let output = fixture.run().sh("echo $DLOCK_FENCING_TOKEN").output();
        output.stdout.trim().parse().unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let first = token();
    group.fail_over();
    let second = token();
    assert!(second > first, "{first} {second}");
}
