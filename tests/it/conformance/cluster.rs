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
    // Whoever moves a slot brings it back before the cluster is given back.
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

    /// A node counts its own listeners only, and one whose slot has moved may listen elsewhere.
    fn knows_the_dead(&self) -> bool {
        false
    }

    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        self.mover.as_ref().map(|mover| mover.disturbance.clone())
    }

    /// Every node dies, and comes back without its keys.
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

/// Moves the slot of the lock `x` from node to node, as long as it lives.
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

/// Some keys at a time, with pauses in which the slot is half here and half there; and a longer one before it moves on, so
/// that nobody who was sent to a node comes there when the slot has been everywhere and is coming again.
fn move_around(cluster: &Cluster, is_over: impl Fn() -> bool) {
    const LOCK: &str = "dlock:x";
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    let home = cluster.node_of(LOCK);
    let mut at = home;
    while !is_over() || at != home {
        let to = (at + 1) % cluster.count();
        let moving = cluster.begin(LOCK, to);
        pause(15);
        for _ in 0..3 {
            let left = cluster.left(moving);
            let some: Vec<&str> = left.iter().map(String::as_str).take(left.len().div_ceil(2)).collect();
            cluster.migrate(moving, &some);
            pause(15);
        }
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

super::every_check!(ClusterRig::new);

/// The slot of the lock moves from node to node all the time.
mod moving {
    use super::{Arc, Cluster, FamilyRig, Mover, Nodes};

    fn rig() -> FamilyRig<Nodes> {
        let cluster = Arc::new(Cluster::lent());
        FamilyRig::on(Nodes { mover: Some(Mover::of(cluster.clone())), cluster })
    }

    use crate::conformance::checks;

    checks! { rig; exclusion {
        a_held_lock_excludes_others
        release_frees_the_lock
        release_may_be_repeated
        another_lock_is_free
        a_run_excludes_a_run
        a_run_and_another_client_exclude_each_other
        of_many_runs_one_holds_at_a_time
        the_lock_ends_with_its_owner
    } }
    checks! { rig; ownership {
        a_stale_owner_cannot_renew
        a_stale_owner_cannot_release
        the_token_of_one_lock_is_nothing_to_another
        a_deleted_lock_is_gone_and_is_not_created_anew
        a_replaced_lock_is_taken_and_is_not_touched
        a_repeated_request_is_recognised_as_ours
        renewal_keeps_the_lock
        whoever_asks_without_being_granted_leaves_nothing
    } }
    checks! { rig; fencing {
        fencing_tokens_grow_with_every_grant
        fencing_tokens_grow_over_a_wiped_store
        fencing_tokens_grow_over_a_deleted_lock
    } }
    checks! { rig; holder {
        busy_names_the_holder
        busy_never_tells_a_token
    } }
    checks! { rig; dropped {
        a_dropped_connect_leaves_the_store_usable
        a_dropped_acquire_leaves_the_store_usable
        a_dropped_release_leaves_the_store_usable
    } }
    checks! { rig; line {
        grants_come_in_the_order_of_the_line
        taking_now_gets_what_is_not_claimed
        a_silent_waiter_loses_the_turn_and_the_place
    } }
    checks! { rig; sharing {
        a_writer_and_readers_exclude_each_other
        each_reader_has_a_fencing_token_of_its_own
    } }
    checks! { rig; together {
        no_order_of_the_names_is_a_deadlock
        whoever_loses_one_has_lost_all
        whoever_has_one_taken_away_has_lost_all
    } }
    checks! { rig; min_hold {
        the_lock_is_kept_for_the_least_time
        the_least_time_outlasts_a_dlock_that_is_killed
    } }
}
