//! The queue of a lock whose slot migrates: no waiter is lost, and none overtakes another.

use super::{KEY, another, assert_ends_well, await_line, await_nothing_left, holder, let_go, run, side};
use crate::support::SOON;
use crate::support::cluster::Cluster;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use std::time::Duration;

/// This many waiters in the queue, each of which records its number when it is its turn.
#[track_caller]
fn line(cluster: &Cluster, place: &Place, ttl: &str, count: usize) -> Vec<Running> {
    let order = place.arg("order");
    let join = |number: usize| {
        let waiter = run(place, &cluster.url(), ttl).args(["--wait", "forever"]);
        let waiter = waiter.sh(&format!("echo {number} >>'{order}'")).spawn();
        await_line(cluster, "x", number);
        waiter
    };
    (1..=count).map(join).collect()
}

#[track_caller]
fn assert_served(cluster: &Cluster, place: &Place, line: &mut [Running]) {
    for waiter in line.iter_mut() {
        let output = waiter.wait();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    }
    let expected: String = (1..=line.len()).map(|number| format!("{number}\n")).collect();
    assert_eq!(place.read("order"), expected);
    await_nothing_left(cluster, "x");
}

#[test]
fn a_queue_is_served_in_order_after_its_slot_has_migrated() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), "60s"), "go");
    let mut line = line(&cluster, &place, "60s", 4);
    let before = await_line(&cluster, "x", 4);
    cluster.move_slot(KEY, another(&cluster, KEY));
    assert_eq!(await_line(&cluster, "x", 4), before);
    let_go(&place, "go");
    assert_ends_well(&mut held);
    assert_served(&cluster, &place, &mut line);
}

/// A waiter renews its position now and then; with a short lease often, at either node. A position lasts for one and a
/// half of its leases.
#[test]
fn a_queue_is_kept_while_its_slot_is_between_two_nodes() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let longer = Duration::from_secs(5);
    let mut held = holder(run(&place, &cluster.url(), "6s"), "go");
    let mut line = line(&cluster, &place, "3s", 3);
    let before = await_line(&cluster, "x", 3);
    let same = || await_line(&cluster, "x", 3) == before;
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    throughout(longer, "the line is as it was", same);
    let keys = cluster.left(moving);
    cluster.migrate(moving, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    throughout(longer, "the line is as it was", same);
    cluster.finish(moving);
    throughout(longer, "the line is as it was", same);
    let_go(&place, "go");
    assert_ends_well(&mut held);
    assert_served(&cluster, &place, &mut line);
}

/// The lock is free, and its queue still on the other node: no client overtakes it.
#[test]
fn a_queue_that_has_not_migrated_yet_is_not_overtaken() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), "60s"), "go");
    let mut line = line(&cluster, &place, "60s", 2);
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    let_go(&place, "go");
    assert_ends_well(&mut held);
    let now = run(&place, &cluster.url(), "60s").args(["--connect-timeout", "300ms"]).sh("echo ran").output();
    assert_eq!((now.exit, now.stdout.as_str()), (Exit::Code(69), ""), "{}", now.stderr);
    assert_eq!(place.read("order"), "");
    cluster.finish(moving);
    for waiter in &mut line {
        assert_eq!(waiter.wait().exit, Exit::Code(0));
    }
    assert_eq!(place.read("order").lines().count(), 2);
    await_nothing_left(&cluster, "x");
}

/// A node counts only its own subscribers: a waiter subscribed elsewhere is called nevertheless, and dead ones are
/// skipped when they do not claim the lock.
#[test]
fn a_waiter_subscribed_at_another_node_is_notified() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), "60s"), "go");
    let mut line = line(&cluster, &place, "60s", 3);
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    let keys = cluster.left(moving);
    cluster.migrate(moving, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    cluster.finish(moving);
    // The first one is dead: the second one, which has not been redirected yet, gets the lock.
    line[0].signal(Signal::SIGKILL);
    line[0].wait();
    let_go(&place, "go");
    assert_ends_well(&mut held);
    for waiter in &mut line[1..] {
        let output = waiter.wait_within(SOON);
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    }
    assert_eq!(place.read("order"), "2\n3\n");
    await_nothing_left(&cluster, "x");
}

#[test]
fn a_waiter_that_joins_during_the_migration_is_granted_the_lock() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), "60s"), "go");
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    let mut late = run(&place, &cluster.url(), "60s").args(["--wait", "forever"]).sh("echo ran").spawn();
    throughout(Duration::from_millis(300), "it waits", || late.poll().is_none());
    // There is no queue yet, and none can be created on a node that the slot is leaving.
    let queue = side("queue", "x");
    assert_eq!(cluster.command_at(&queue, &["EXISTS", &queue]).int(), 0);
    cluster.finish(moving);
    await_line(&cluster, "x", 1);
    let_go(&place, "go");
    assert_ends_well(&mut held);
    assert_eq!((late.wait().exit, late.stdout().as_str()), (Exit::Code(0), "ran\n"));
    await_nothing_left(&cluster, "x");
}

#[test]
fn the_release_of_a_foreign_lock_is_noticed_after_a_slot_migration() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    cluster.command_at(KEY, &["SET", KEY, "foreign", "PX", "600000"]);
    let mut next_holder =
        run(&place, &cluster.url(), "60s").args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    next_holder.await_stderr("waiting");
    cluster.move_slot(KEY, another(&cluster, KEY));
    let notes = side("waiters", "x");
    until(SOON, "its word at the new node", || cluster.command_at(&notes, &["EXISTS", &notes]).int() == 1);
    cluster.command_at(KEY, &["DEL", KEY]);
    assert_eq!((next_holder.wait().exit, next_holder.stdout().as_str()), (Exit::Code(0), "ran\n"));
}
