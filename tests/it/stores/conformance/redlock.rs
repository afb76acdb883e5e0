//! Five masters, of which a majority decides.

use super::client::Client;
use super::disturbance::Disturbance;
use super::servers::{FamilyRig, Servers};
use crate::support::SOON;
use crate::support::masters::Masters;
use crate::support::pool::Lent;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use dlock::backend::{Intent, StoreError};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

struct Five {
    /// The nodes that reply.
    living: Vec<usize>,
    masters: Arc<Mutex<Lent<Masters>>>,
    disturbance: Option<Rc<Disturbance>>,
}

impl Five {
    fn new() -> Self {
        let masters = Arc::new(Mutex::new(Masters::lent()));
        Self { living: (0..5).collect(), masters, disturbance: None }
    }

    /// Two are down; the others have had their data for long enough to vote.
    fn without_two(down: [Down; 2]) -> Self {
        let mut five = Self::new();
        for (node, down) in [1, 3].into_iter().zip(down) {
            match down {
                Down::Dead => five.masters().kill(node),
                Down::Hanging => five.masters().node(node).stop(),
            }
        }
        five.living = vec![0, 2, 4];
        five.age();
        five
    }

    /// One is restarted without its data at this moment; all have had their data for long enough to vote.
    fn with_a_restarted_node(moment: usize) -> Self {
        let mut five = Self::new();
        five.masters().age(&five.living);
        let masters = five.masters.clone();
        let forget = move || masters.lock().unwrap().restart_empty(0);
        five.disturbance = Some(Rc::new(Disturbance::unnoticed_at(moment, forget)));
        five
    }

    fn masters(&self) -> MutexGuard<'_, Lent<Masters>> {
        self.masters.lock().unwrap()
    }

    fn are_all_there(&self) -> bool {
        self.living.len() == self.masters().count()
    }

    /// If only some nodes lose all data, they do not vote for the length of a lease.
    fn age(&self) {
        if !self.are_all_there() {
            self.masters().age(&self.living);
        }
    }
}

/// How a node is down.
enum Down {
    /// Its port is closed.
    Dead,
    /// It accepts connections, and never replies.
    Hanging,
}

impl Servers for Five {
    fn url(&self) -> String {
        self.masters().url()
    }

    fn url_with_secret(&self, secret: &str) -> String {
        format!("redlock://somebody:{secret}@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/2?prefix=p")
    }

    fn at(&self, _: &str, words: &[&str]) -> Vec<Value> {
        let masters = self.masters();
        self.living.iter().map(|node| masters.node(*node).command(words)).collect()
    }

    fn keys(&self) -> Vec<Vec<String>> {
        self.at("", &["KEYS", "*"]).iter().map(Value::texts).collect()
    }

    fn quorum(&self) -> usize {
        self.masters().quorum()
    }

    /// A node has between 250 and 500 ms to reply, depending on the lease.
    fn counts_as_down_after(&self) -> Option<Duration> {
        Some(Duration::from_millis(240))
    }

    fn has_dead_servers(&self) -> bool {
        !self.are_all_there()
    }

    fn has_slots(&self) -> bool {
        false
    }

    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        self.disturbance.clone()
    }

    /// All nodes lose all data, as a set of new nodes would have none. Where some are dead the others keep their
    /// data: it would take a lease until they vote again.
    fn restart(&mut self) {
        for node in self.living.clone() {
            match self.are_all_there() {
                true => self.masters().restart_empty(node),
                false => self.masters().restart(node),
            }
        }
        self.age();
    }

    fn wipe(&mut self) {
        self.at("", &["FLUSHALL"]);
        self.age();
    }
}

impl Drop for Five {
    fn drop(&mut self) {
        let mut masters = self.masters();
        for node in (0..5).filter(|node| !self.living.contains(node)) {
            match masters.node(node).is_up() {
                true => masters.node(node).resume(),
                false => masters.restart_empty(node),
            }
        }
    }
}

type RedlockRig = FamilyRig<Five>;

impl RedlockRig {
    fn new() -> Self {
        Self::on(Five::new())
    }
}

super::list::every_check!(RedlockRig::new; Request Majority);

/// Two of the five are dead, so that the rest must agree on every kind of request.
mod without_two {
    use super::{Down, Five, RedlockRig};

    fn rig() -> RedlockRig {
        RedlockRig::on(Five::without_two([Down::Dead, Down::Dead]))
    }

    crate::stores::conformance::list::every_check!(rig; Request);
}

/// Of two nodes that are down one hangs: whatever is not granted has to be released there, which takes time.
mod with_a_hung_node {
    use super::{Down, Five, RedlockRig};
    use crate::stores::conformance::checks;

    fn rig() -> RedlockRig {
        RedlockRig::on(Five::without_two([Down::Dead, Down::Hanging]))
    }

    checks! { rig; exclusion {
        a_held_lock_excludes_others
        release_frees_the_lock
        release_may_be_repeated
        a_run_and_another_client_exclude_each_other
        the_lock_ends_with_its_owner
    } }
    checks! { rig; ownership {
        a_stale_owner_cannot_renew
        a_stale_owner_cannot_release
        a_replaced_lock_is_lost_and_not_touched
        a_repeated_request_is_recognised
        renewal_keeps_the_lock
    } }
    checks! { rig; fencing {
        fencing_tokens_grow_over_a_deleted_lock
        later_fencing_tokens_are_larger_than_a_floor
        an_operator_raises_the_fencing_tokens_of_a_free_lock
    } }
    checks! { rig; queue_of_runs {
        an_expired_wait_leaves_no_trace
    } }
    checks! { rig; sharing {
        a_writer_and_readers_exclude_each_other
    } }
    checks! { rig; revocation {
        a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
    } }
}

/// One of five returns without its data during a check, without any effect on clients.
mod with_a_restarted_node {
    use super::{Five, RedlockRig};

    fn rig(moment: usize) -> RedlockRig {
        RedlockRig::on(Five::with_a_restarted_node(moment))
    }

    crate::stores::conformance::disturbed! { rig;
        exclusion {
            a_held_lock_excludes_others after 1
            release_frees_the_lock after 6
            release_may_be_repeated after 2
        }
        ownership {
            a_stale_owner_cannot_renew after 1
            a_stale_owner_cannot_release after 2
            another_token_cannot_release after 1
            the_token_of_one_lock_is_invalid_for_another after 2
            a_deleted_lock_is_lost_and_not_created_again after 1
            a_replaced_lock_is_lost_and_not_touched after 1
            renewal_keeps_the_lock after 1
            a_refused_request_leaves_no_trace after 1
        }
        admin {
            the_next_renewal_reports_a_revocation after 1
        }
        fencing {
            fencing_tokens_grow_with_every_grant after 50
        }
        queue {
            a_withdrawn_waiter_leaves_no_trace_and_passes_its_turn_on after 4
            a_release_by_a_foreign_client_is_noticed after 2
        }
        queue_of_runs {
            runs_are_served_first_come_first_served after 0
        }
        sharing {
            readers_share after 5
            a_waiting_writer_blocks_later_readers after 4
            every_reader_at_the_head_is_notified after 5
        }
        nesting {
            the_last_inner_hold_decides after 2
        }
        revocation {
            all_nested_holds_are_notified after 2
        }
    }
}

/// Without a majority nothing is granted, and a held lock is not lost because of that.
#[test]
fn without_three_nodes_the_outcome_is_unknown() {
    let five = Five::new();
    let masters = five.masters.clone();
    let each = |act: fn(&Redis)| [0, 2, 4].iter().for_each(|node| act(masters.lock().unwrap().node(*node)));
    super::rig::prove(RedlockRig::on(five), async |rig| {
        let (mut owner, mut other) = (Client::new(rig, "x"), Client::new(rig, "x"));
        let before = owner.acquire().await;
        each(Redis::stop);
        for _ in 0..2 {
            let renewal = owner.backend.renew(&owner.claim, Duration::ZERO).await;
            assert!(matches!(renewal, Err(StoreError::Unavailable { .. })), "{renewal:?}");
            let asked = match other.backend.connect().await {
                Ok(()) => other.backend.try_acquire(&other.claim, Intent::TakeNow).await,
                Err(error) => Err(error),
            };
            assert!(matches!(asked, Err(StoreError::Unavailable { .. })), "{asked:?}");
        }
        each(Redis::resume);
        let until = Instant::now() + SOON;
        while let Err(error) = owner.backend.renew(&owner.claim, Duration::ZERO).await {
            assert!(Instant::now() < until, "{error:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        owner.assert_held().await;
        Client::new(rig, "x").refused().await;
        owner.release().await;
        assert!(Client::new(rig, "x").acquire_in_the_end().await.fencing > before.fencing);
    });
}
