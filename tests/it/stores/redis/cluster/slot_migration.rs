//! F28: the slot of a held lock migrates, and stays between two nodes for any length of time.

use super::await_renewal;
use super::{KEY, another, assert_ends_well, assert_held, assert_ran, await_nothing_left};
use super::{await_line, holder, let_go, side};
use crate::stores::conformance::rig::{locate, on_one_thread};
use crate::support::SOON;
use crate::support::cluster::{Cluster, Move};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use dlock::backend::admin::Frozen;
use dlock::lock::{FreezeRequest, LockName, Unknown};
use std::time::Duration;

/// The lease, and a time longer than that.
const TTL: &str = "4s";
const LONGER: Duration = Duration::from_millis(4500);

/// With a short grace, so that a renewal may be late.
fn run(place: &Place, url: &str, ttl: &str) -> Dlock {
    super::run(place, url, ttl).args(["--grace", "100ms"])
}

/// Asserts that for longer than a lease the lock is held, and no other client gets it.
#[track_caller]
fn assert_kept(cluster: &Cluster, place: &Place, holder: &mut Running) {
    throughout(LONGER, "the lock is held", || {
        holder.assert_running();
        cluster.command_at(KEY, &["EXISTS", KEY]) == Value::Int(1)
            && cluster.command_at(KEY, &["SET", KEY, "foreign", "NX", "PX", "1000"]) == Value::Nil
    });
    assert_refused(cluster, place);
    await_renewal(cluster, KEY);
    assert_eq!(holder.stderr(), "");
}

/// Asserts that another run does not run: the lock is held, or cannot be acquired while its keys are on two nodes.
#[track_caller]
fn assert_refused(cluster: &Cluster, place: &Place) {
    let other = run(place, &cluster.url(), TTL).args(["--connect-timeout", "300ms"]).sh("echo ran").output();
    assert!(matches!(other.exit, Exit::Code(69 | 75)), "{:?}: {}", other.exit, other.stderr);
    assert_eq!(other.stdout, "");
}

#[test]
fn a_lock_is_kept_in_every_step_of_a_slot_migration() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), TTL), "go");
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    assert_kept(&cluster, &place, &mut held);
    // One key after another, in the order in which the server lists them.
    for key in cluster.left(moving) {
        cluster.migrate(moving, &[&key]);
        await_renewal(&cluster, KEY);
        assert_kept(&cluster, &place, &mut held);
    }
    assert_eq!(cluster.left(moving), Vec::<String>::new(), "nothing was made where everything has left");
    cluster.finish(moving);
    assert_kept(&cluster, &place, &mut held);
    let_go(&place, "go");
    assert_ends_well(&mut held);
    assert_ran(&run(&place, &cluster.url(), TTL).sh("echo ran").output());
    await_nothing_left(&cluster, "x");
}

/// The difference is what migrates first: the lock itself, or its side keys.
#[test]
fn a_lock_is_kept_whichever_of_its_keys_move_first() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    for (round, lock_first) in [true, false].into_iter().enumerate() {
        let go = format!("go-{round}");
        let mut held = holder(run(&place, &cluster.url(), TTL), &go);
        let moving = cluster.begin(KEY, another(&cluster, KEY));
        let first: Vec<String> =
            cluster.left(moving).into_iter().filter(|key| (key == KEY) == lock_first).collect();
        assert!(!first.is_empty());
        cluster.migrate(moving, &first.iter().map(String::as_str).collect::<Vec<_>>());
        assert_kept(&cluster, &place, &mut held);
        // The remaining keys arrive without the error that they exist already.
        cluster.finish(moving);
        assert_kept(&cluster, &place, &mut held);
        let_go(&place, &go);
        assert_ends_well(&mut held);
        await_nothing_left(&cluster, "x");
    }
}

/// The lock is still there with its token, but a key beside it is not dlock's: that renewal is not one.
#[test]
fn a_side_key_of_another_type_fails_a_renewal_key_by_key() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), TTL), "go");
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    let member = cluster.left(moving).into_iter().find(|key| key.starts_with("dlock#member:"));
    cluster.migrate(moving, &[&member.expect("a member")]);
    await_renewal(&cluster, KEY);
    let holder = "dlock#holder:{dlock:x}";
    cluster.command_at(KEY, &["SET", holder, "foreign"]);
    let output = held.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stderr.contains("the lock could not be renewed in time"), "{}", output.stderr);
    cluster.command_at(KEY, &["DEL", holder]);
    cluster.finish(moving);
    until(SOON, "the end of the lease", || cluster.command_at(KEY, &["EXISTS", KEY]) == Value::Int(0));
}

/// A release is not done key by key: the lock ends with its lease.
#[test]
fn a_lock_released_while_its_keys_are_split_ends_with_its_lease() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), TTL), "go");
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    cluster.migrate(moving, &[KEY]);
    let_go(&place, "go");
    assert_eq!(held.wait().exit, Exit::Code(0), "{}", held.stderr());
    until(SOON, "the end of the lease", || cluster.command_at(KEY, &["EXISTS", KEY]) == Value::Int(0));
    cluster.finish(moving);
    assert_ran(&run(&place, &cluster.url(), TTL).sh("echo ran").output());
    await_nothing_left(&cluster, "x");
}

#[test]
fn a_lock_is_released_where_all_its_keys_have_moved() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), "60s"), "go");
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    let keys = cluster.left(moving);
    cluster.migrate(moving, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    let_go(&place, "go");
    assert_ends_well(&mut held);
    cluster.finish(moving);
    assert_ran(&run(&place, &cluster.url(), "60s").sh("echo ran").output());
    await_nothing_left(&cluster, "x");
}

/// Its members may be on the other node while the keys move, so it is kept only if the migration takes less than a lease.
#[test]
fn a_shared_lock_is_kept_over_a_slot_migration() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let share = || holder(run(&place, &cluster.url(), "8s").arg("--shared"), "go");
    let mut holders = [share(), share()];
    cluster.move_slot(KEY, another(&cluster, KEY));
    await_renewal(&cluster, KEY);
    assert_held(&run(&place, &cluster.url(), TTL).sh("echo ran").output());
    let_go(&place, "go");
    holders.iter_mut().for_each(assert_ends_well);
    await_nothing_left(&cluster, "x");
}

/// A client is redirected to the new node, and found there by later clients and by other programs.
#[test]
fn a_new_lock_is_acquired_while_its_slot_migrates() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let to = another(&cluster, KEY);
    let moving = cluster.begin(KEY, to);
    let mut held = holder(run(&place, &cluster.url(), TTL), "go");
    assert_eq!(cluster.left(moving), Vec::<String>::new());
    assert_kept(&cluster, &place, &mut held);
    cluster.finish(moving);
    assert_kept(&cluster, &place, &mut held);
    let_go(&place, "go");
    assert_ends_well(&mut held);
    await_nothing_left(&cluster, "x");
}

#[test]
fn a_foreign_lock_excludes_while_its_slot_migrates() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    cluster.command_at(KEY, &["SET", KEY, "foreign", "NX", "PX", "60000"]);
    assert_refused(&cluster, &place);
    cluster.finish(moving);
    assert_held(&run(&place, &cluster.url(), TTL).sh("echo ran").output());
    assert_eq!(cluster.command_at(KEY, &["GET", KEY]), Value::Text("foreign".into()));
}

/// A lock with a key left on the source node, even only its counter, cannot be acquired until that key has been
/// migrated: otherwise a larger fencing token could not be distinguished from a smaller one. A run without waiting
/// retries briefly.
#[test]
fn a_lock_with_keys_still_on_the_other_node_is_waited_for() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let first = run(&place, &cluster.url(), TTL).sh("echo $DLOCK_FENCING_TOKEN").output();
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    let mut second = run(&place, &cluster.url(), TTL).sh("echo $DLOCK_FENCING_TOKEN").spawn();
    throughout(Duration::from_millis(300), "it does not run", || second.poll().is_none());
    cluster.finish(moving);
    let second = second.wait();
    assert_eq!((second.exit, second.stderr.as_str()), (Exit::Code(0), ""));
    let number = |text: &str| text.trim().parse::<u64>().unwrap();
    assert!(number(&first.stdout) < number(&second.stdout));

    let moving = cluster.begin(KEY, another(&cluster, KEY));
    let impatient =
        run(&place, &cluster.url(), TTL).args(["--connect-timeout", "1s"]).sh("echo ran").output();
    assert_eq!((impatient.exit, impatient.stdout.as_str()), (Exit::Code(69), ""), "{}", impatient.stderr);
    assert!(impatient.stderr.contains("are being migrated to 127.0.0.1:"), "{}", impatient.stderr);
    cluster.finish(moving);
}

/// Without the record of its success the job would seem to be due; and a list of locks with outcomes that is made anew is in
/// the way of the one that has still to arrive.
#[test]
fn a_job_is_not_done_again_while_the_last_of_its_keys_migrates() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let job = || {
        let run = run(&place, &cluster.url(), TTL).args(["--once-per", "1h", "--connect-timeout", "1s"]);
        run.sh("echo ran").output()
    };
    assert_ran(&job());
    for last in ["dlock#success:", "dlock#recorded:"] {
        let moving = cluster.begin(KEY, another(&cluster, KEY));
        let mut keys = cluster.left(moving);
        keys.retain(|key| !key.starts_with(last));
        cluster.migrate(moving, &keys.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(cluster.left(moving).len(), 1, "{last}");
        let early = job();
        assert_eq!((early.exit, early.stdout.as_str()), (Exit::Code(69), ""), "{last}: {}", early.stderr);
        assert!(early.stderr.contains("are being migrated to 127.0.0.1:"), "{last}: {}", early.stderr);
        cluster.finish(moving);
        let done = job();
        assert_eq!((done.exit, done.stdout.as_str()), (Exit::Code(0), ""), "{last}: {}", done.stderr);
    }
}

/// A migration does not extend a lease: a dead holder delays other clients no longer.
#[test]
fn a_dead_holder_expires_with_its_lease_while_its_slot_migrates() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), TTL), "go");
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    cluster.migrate(moving, &[KEY]);
    await_renewal(&cluster, KEY);
    held.signal(nix::sys::signal::Signal::SIGKILL);
    held.wait();
    let mut next_holder = run(&place, &cluster.url(), TTL).args(["--wait", "30s"]).sh("echo ran").spawn();
    throughout(Duration::from_millis(300), "the dead one's lock is there", || {
        cluster.command_at(KEY, &["EXISTS", KEY]) == Value::Int(1)
    });
    until(SOON, "the end of the lease", || cluster.command_at(KEY, &["EXISTS", KEY]) == Value::Int(0));
    cluster.finish(moving);
    assert_ran(&next_holder.wait());
}

/// A holder that was redirected to the other node does not consider its lock lost there.
#[test]
fn an_aborted_slot_migration_loses_nothing() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), TTL), "go");
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    let keys = cluster.left(moving);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    cluster.migrate(moving, &keys);
    assert_kept(&cluster, &place, &mut held);
    // A node imports keys only while it does not export its own. The other node continues to import them.
    let stable = ["CLUSTER", "SETSLOT", &moving.slot.to_string(), "STABLE"];
    assert_eq!(cluster.node(moving.from).command(&stable), Value::Text("OK".into()));
    cluster.migrate(Move { from: moving.to, to: moving.from, ..moving }, &keys);
    assert_kept(&cluster, &place, &mut held);
    cluster.abort(moving);
    assert_kept(&cluster, &place, &mut held);
    let_go(&place, "go");
    assert_ends_well(&mut held);
    assert_ran(&run(&place, &cluster.url(), TTL).sh("echo ran").output());
    await_nothing_left(&cluster, "x");
}

/// The lock migrates back and forth, each time a little differently.
#[test]
fn a_lock_is_kept_over_many_slot_migrations() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), TTL), "go");
    for _ in 0..6 {
        cluster.move_slot(KEY, another(&cluster, KEY));
        await_renewal(&cluster, KEY);
        held.assert_running();
    }
    let_go(&place, "go");
    assert_ends_well(&mut held);
    await_nothing_left(&cluster, "x");
}

fn frozen(cluster: &Cluster, request: &FreezeRequest) {
    let frozen = on_one_thread(async {
        let mut operator = locate(&cluster.url()).unwrap().open();
        operator.freeze(&LockName::new("x").unwrap(), request).await.unwrap()
    });
    assert!(matches!(frozen, Frozen::Done(_)), "{frozen:?}");
}

fn thawed(cluster: &Cluster, request: &FreezeRequest) {
    let is_thawed = on_one_thread(async {
        let mut operator = locate(&cluster.url()).unwrap().open();
        operator.thaw(&LockName::new("x").unwrap(), &request.id).await.unwrap()
    });
    assert!(is_thawed);
}

/// Whichever of its keys has migrated: other programs and runs are kept out by the lock, even where the freeze is not yet.
#[test]
fn a_frozen_lock_is_granted_to_nobody_while_its_slot_migrates() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let run = || run(&place, &cluster.url(), TTL).args(["--connect-timeout", "300ms"]);
    assert_ran(&run().sh("echo ran").output());
    for lock_first in [true, false] {
        let request = FreezeRequest::new("root@here".into(), None, None);
        frozen(&cluster, &request);
        let moving = cluster.begin(KEY, another(&cluster, KEY));
        let mut keys = cluster.left(moving);
        keys.sort_by_key(|key| (key == KEY) != lock_first);
        assert!(keys.contains(&side("frozen", "x")), "{keys:?}");
        for key in keys {
            cluster.migrate(moving, &[&key]);
            assert_refused(&cluster, &place);
            let taken = cluster.command_at(KEY, &["SET", KEY, "foreign", "NX", "PX", "1000"]);
            assert_eq!(taken, Value::Nil, "{key}");
        }
        cluster.finish(moving);
        assert_eq!(run().sh("echo ran").output().exit, Exit::Code(75));
        thawed(&cluster, &request);
        assert_ran(&run().sh("echo ran").output());
        await_nothing_left(&cluster, "x");
    }
}

/// Whether the keys of the freeze migrate before or after those of the hold: whoever waits for its end is not told that the
/// lock is no longer frozen.
#[test]
fn a_held_lock_is_never_shown_without_its_freeze_while_its_slot_migrates() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), "60s"), "go");
    let request = FreezeRequest::new("root@here".into(), None, None);
    frozen(&cluster, &request);
    let of_freeze = [side("frozen", "x"), side("waiters", "x")];
    for is_last in [false, true] {
        let moving = cluster.begin(KEY, another(&cluster, KEY));
        let mut keys = cluster.left(moving);
        keys.sort_by_key(|key| of_freeze.contains(key) == is_last);
        let mut answered = 0;
        for key in &keys {
            cluster.migrate(moving, &[key]);
            let lock = on_one_thread(async {
                let mut operator = locate(&cluster.url()).unwrap().open();
                operator.inspect(&[LockName::new("x").unwrap()], None).await.unwrap().locks.remove(0)
            });
            if !matches!(lock.unknown, Some(Unknown::Unanswered(_))) {
                assert_eq!((lock.unknown, lock.holders.len()), (None, 1));
                assert_eq!(lock.freeze.map(|freeze| freeze.id).as_ref(), Some(&request.id), "{key}");
                answered += 1;
            }
        }
        assert!(answered >= 2, "{answered} of {keys:?}");
        cluster.finish(moving);
    }
    let_go(&place, "go");
    assert_ends_well(&mut held);
    thawed(&cluster, &request);
    await_nothing_left(&cluster, "x");
}

/// The lock is released where the freeze is not any more.
#[test]
fn a_lock_stays_frozen_that_is_released_while_its_slot_migrates() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = holder(run(&place, &cluster.url(), "60s"), "go");
    let mut waiter = run(&place, &cluster.url(), "4s").args(["--wait", "30s"]).sh("echo ran").spawn();
    await_line(&cluster, "x", 1);
    let request = FreezeRequest::new("root@here".into(), None, None);
    frozen(&cluster, &request);
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    cluster.migrate(moving, &[&side("frozen", "x")]);
    let_go(&place, "go");
    assert_ends_well(&mut held);
    assert_eq!(cluster.command_at(KEY, &["GET", KEY]), Value::Text("dlock:frozen".into()));
    assert_refused(&cluster, &place);
    cluster.finish(moving);
    throughout(Duration::from_millis(300), "it waits", || waiter.poll().is_none());
    thawed(&cluster, &request);
    assert_ran(&waiter.wait());
    await_nothing_left(&cluster, "x");
}
