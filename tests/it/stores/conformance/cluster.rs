//! A Redis Cluster of three masters.

use super::disturbance::Disturbance;
use super::servers::{FamilyRig, Servers};
use crate::support::cluster::Cluster;
use crate::support::pool::Lent;
use crate::support::resp::Value;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

struct Nodes {
    // The mover brings the slot back before the cluster is returned to the pool.
    mover: Option<Mover>,
    cluster: Arc<Lent<Cluster>>,
}

impl Servers for Nodes {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn url_with_secret(&self, secret: &str) -> String {
        format!("redis-cluster://somebody:{secret}@127.0.0.1:1,127.0.0.1:2?prefix=p")
    }

    fn at(&self, key: &str, words: &[&str]) -> Vec<Value> {
        vec![self.cluster.command_at(key, words)]
    }

    fn keys(&self) -> Vec<Vec<String>> {
        vec![self.cluster.keys()]
    }

    /// A node counts only its own subscribers, and a client whose slot has migrated may be subscribed elsewhere.
    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        self.mover.as_ref().map(|mover| mover.disturbance.clone())
    }

    /// Every node dies and returns without its keys.
    fn restart(&mut self) {
        let cluster = Arc::get_mut(&mut self.cluster).expect("nobody else disturbs it");
        for node in 0..cluster.count() {
            cluster.node_mut(node).restart();
        }
        cluster.await_agreement();
    }

    fn wipe(&mut self) {
        self.cluster.wipe();
    }
}

/// Migrates the slot of the lock `x` from node to node until it is dropped.
struct Mover {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    disturbance: Rc<Disturbance>,
}

impl Mover {
    fn of(cluster: Arc<Lent<Cluster>>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let thread = std::thread::spawn(move || move_around(&cluster, || is_over.load(Ordering::Relaxed)));
        Self { over, thread: Some(thread), disturbance: Rc::new(Disturbance::elsewhere()) }
    }
}

/// All keys at once, after a pause in which the slot is migrating and no key has been moved; and a longer one before the
/// next migration, so that a redirected client reaches the node before the slot has gone round and is migrating to it
/// again.
fn move_around(cluster: &Cluster, is_over: impl Fn() -> bool) {
    const LOCK: &str = "dlock:x";
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    let home = cluster.node_of(LOCK);
    let mut at = home;
    while !is_over() || at != home {
        let to = (at + 1) % cluster.count();
        let moving = cluster.begin(LOCK, to);
        pause(50);
        cluster.finish(moving);
        at = to;
        pause(if is_over() { 0 } else { 300 });
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let moved = self.thread.take().expect("a thread").join();
        assert!(moved.is_ok() || std::thread::panicking(), "the slot could not be moved");
    }
}

type ClusterRig = FamilyRig<Nodes>;

impl ClusterRig {
    fn new() -> Self {
        Self::on(Nodes { mover: None, cluster: Arc::new(Cluster::lent()) })
    }
}

super::list::every_check!(ClusterRig::new; Request Placement);

/// The slot of the lock migrates continuously from node to node. Checks that need to know whether a release has found the
/// lock are left out: a release that failed during a migration may have been carried out.
mod slot_migration {
    use super::{Arc, Cluster, FamilyRig, Mover, Nodes};

    fn rig() -> FamilyRig<Nodes> {
        let cluster = Arc::new(Cluster::lent());
        FamilyRig::on(Nodes { mover: Some(Mover::of(cluster.clone())), cluster })
    }

    use crate::stores::conformance::checks;

    checks! { rig; exclusion {
        a_held_lock_excludes_others
        release_frees_the_lock
        another_lock_is_free
        a_run_excludes_a_run
        a_run_and_another_client_exclude_each_other
        of_many_runs_one_holds_at_a_time
        the_lock_ends_with_its_owner
    } }
    checks! { rig; ownership {
        a_stale_owner_cannot_renew
        a_repeated_request_is_recognised
        renewal_keeps_the_lock
    } }
    checks! { rig; fencing {
        fencing_tokens_grow_with_every_grant
        fencing_tokens_grow_over_a_wiped_store
        fencing_tokens_grow_over_a_deleted_lock
        the_last_fencing_token_outlives_its_hold
        later_fencing_tokens_are_larger_than_a_floor
        an_operator_raises_the_fencing_tokens_of_a_free_lock
        a_script_can_check_that_no_later_fencing_token_was_granted
    } }
    checks! { rig; holder {
        busy_names_the_holder
        busy_never_reveals_a_token
    } }
    checks! { rig; cancellation {
        a_dropped_connect_leaves_the_store_usable
        a_dropped_acquire_leaves_the_store_usable
        a_dropped_release_leaves_the_store_usable
    } }
    checks! { rig; queue {
        waiters_are_served_first_come_first_served
        a_request_without_waiting_gets_an_unclaimed_lock
        a_silent_waiter_loses_its_turn_and_its_queue_position
    } }
    checks! { rig; sharing {
        a_writer_and_readers_exclude_each_other
        each_reader_has_its_own_fencing_token
    } }
    checks! { rig; several_locks {
        no_order_of_the_names_causes_a_deadlock
        losing_one_lock_loses_all
        removing_one_lock_loses_all
    } }
    checks! { rig; min_hold {
        the_lock_is_kept_for_min_hold
        min_hold_outlasts_a_killed_dlock
    } }
}
