//! One Consul, whose locks other programs take with sessions of their own, as `consul lock` does. A lock has one holder:
//! every check applies but those of shared locks and of slots. The latter apply to semaphores.

use super::rig::{Rig, with};
use crate::support::consul::{Consul, LOCK_FLAGS, path};
use crate::support::place::Place;
use crate::support::pool::Lent;
use dlock::backend::ledger::Ledger;
use dlock::lock::Mode;
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;

struct ConsulRig {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    consul: Lent<Consul>,
    /// Locks are semaphores. That of another program has one holder.
    has_semaphores: bool,
    /// The sessions of other programs, by the name of the lock.
    foreign: HashMap<String, String>,
}

impl ConsulRig {
    fn new() -> Self {
        Self { place: Place::new(), consul: Consul::lent(), has_semaphores: false, foreign: HashMap::new() }
    }

    fn with_semaphores() -> Self {
        Self { has_semaphores: true, ..Self::new() }
    }

    fn ledger(&self, name: &str) -> Ledger {
        let stored = self.consul.value(&format!("{}.dlock", key(name))).unwrap_or_default();
        Ledger::parse(stored.as_bytes()).unwrap_or_default()
    }

    /// The session that holds the lock for other programs, or the first of them.
    fn holder(&self, name: &str) -> Option<String> {
        match self.has_semaphores {
            true => self.consul.semaphore(&prefix(name)).0.into_iter().next(),
            false => self.consul.holder(&key(name)),
        }
    }

    /// A session of another program, which ends after this time at the latest.
    fn session(&self, lease: Option<Duration>) -> String {
        // It lasts twice as long as its time-out.
        self.consul.session(lease.map(|lease| format!("{}ms", lease.as_millis() / 2)).as_deref())
    }
}

/// What `consul lock` is given.
fn prefix(name: &str) -> String {
    format!("dlock/{}", name.replace('%', "%25").replace('/', "%2F"))
}

/// The key that it locks.
fn key(name: &str) -> String {
    prefix(name) + "/.lock"
}

impl Rig for ConsulRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        let url = self.consul.url();
        if self.has_semaphores { with(&url, "recipe=semaphore") } else { url }
    }

    fn exact_url(&self) -> String {
        with(&self.url(), "prefix=")
    }

    /// If the clock of this host had to be moved: the agent's shows whole seconds.
    fn rounding(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("consul://:{secret}@127.0.0.1:1?prefix=p"))
    }

    fn has_leases(&self) -> bool {
        false
    }

    /// The time-out of the session.
    fn lease(&self, ttl: Duration) -> Option<Duration> {
        Some(ttl)
    }

    fn ttl(&self, seconds: u64) -> String {
        format!("{}s", seconds.max(10))
    }

    /// A session may last twice as long, and its lock is kept from others for a while then.
    fn end_of_lease(&self, ttl: Duration) -> Duration {
        ttl * 3 + Duration::from_millis(1500)
    }

    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn has_slots(&self) -> bool {
        self.has_semaphores
    }

    fn has(&self, mode: Mode) -> bool {
        mode == Mode::Exclusive || (self.has_semaphores && mode != Mode::Shared)
    }

    fn has_own_items(&self) -> bool {
        false
    }

    fn delete(&mut self, name: &str) {
        assert!(self.holder(name).is_some(), "{name} was not held");
        self.consul.ask("DELETE", &format!("kv/{}?recurse", path(&(prefix(name) + "/"))), b"");
    }

    fn cut(&mut self, name: &str) {
        assert!(self.holder(name).is_some(), "{name} was not held");
        self.consul.ask("DELETE", &format!("kv/{}", path(&key(name))), b"");
    }

    fn replace(&mut self, name: &str) {
        let session = self.session(None);
        if self.has_semaphores {
            self.consul.ask("DELETE", &format!("kv/{}", path(&key(name))), b"");
            assert!(self.consul.take_slot(&prefix(name), 1, &session));
        } else {
            let lock = json!({"Verb": "lock", "Key": key(name), "Flags": LOCK_FLAGS, "Session": session});
            let both = json!([{"KV": {"Verb": "delete", "Key": key(name)}}, {"KV": lock}]);
            assert_eq!(self.consul.transact(&both), 200);
        }
        self.foreign.insert(name.to_owned(), session);
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.foreign.contains_key(name) && self.holder(name).as_ref() == self.foreign.get(name)
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        let session = self.session(lease);
        let is_locked = match self.has_semaphores {
            true => self.consul.take_slot(&prefix(name), 1, &session),
            false => self.consul.lock(&key(name), &session),
        };
        if is_locked {
            self.foreign.insert(name.to_owned(), session);
        }
        is_locked
    }

    fn foreign_unlock(&mut self, name: &str) {
        let session = self.foreign.remove(name).expect("a session that has it");
        assert!(match self.has_semaphores {
            true => self.consul.leave_slot(&prefix(name), &session),
            false => self.consul.unlock(&key(name), &session),
        });
    }

    fn waiters(&self, name: &str) -> usize {
        self.ledger(name).waiters.len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let ledger = self.ledger(name);
        let holders = ledger.holders.iter().map(|one| format!("{one:?}"));
        let waiters = ledger.waiters.iter().map(|one| format!("{one:?}"));
        holders.chain(waiters).chain(self.holder(name)).collect()
    }

    fn restart(&mut self) {
        self.consul.restart();
        if !self.has_semaphores {
            self.consul.await_no_delay(&key("x"));
        }
    }

    fn wipe(&mut self) {
        assert!(self.consul.wipe());
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }
}

super::list::one_holder_checks!(ConsulRig::new);
super::gates::lost_gate_checks!(ConsulRig::new);
super::checks! { ConsulRig::new; supersede { an_older_waiter_is_notified_of_a_newer_one } }

// A slot count is refused.
crate::stores::conformance::checks! { ConsulRig::new; slots by prove_slots { slots_limit_the_number_of_holders } }

mod semaphore {
    use super::ConsulRig;

    crate::stores::conformance::list::one_holder_trait_checks!(ConsulRig::with_semaphores; Foreign);
    crate::stores::conformance::list::one_holder_foreign_checks!(ConsulRig::with_semaphores; Foreign);
    crate::stores::conformance::gates::lost_gate_checks!(ConsulRig::with_semaphores);

    crate::stores::conformance::topics! { ConsulRig::with_semaphores;
        exclusion {
            a_run_and_another_client_exclude_each_other
            of_many_runs_one_holds_at_a_time
        }
        nesting {
            a_nested_run_enters_at_once
            the_last_inner_hold_decides
            an_inner_run_that_outlives_the_outer_keeps_the_lock
        }
        nesting by prove_slots {
            an_inner_run_has_the_slot_of_the_outer_one
        }
        slots by prove_slots {
            slots_limit_the_number_of_holders
            a_hold_keeps_its_slot
            a_freed_slot_goes_to_the_next_waiter
            two_freed_slots_go_to_the_next_two_waiters
            exclusive_waits_for_every_slot
            a_different_slot_count_is_refused
            the_slot_count_may_change_when_the_lock_is_unused
            the_slot_of_a_dead_holder_is_freed
            a_foreign_client_is_excluded_until_the_last_slot_is_free
            concurrent_runs_have_different_slots
            one_slot_is_exclusive
        }
        min_hold by prove_slots {
            a_slot_is_kept_for_min_hold
        }
    }
}
