//! The recipe of AWS's lock client for Java on DynamoDB. Of the checks of a store with a gate, one of each kind is made: most
//! wait for the clock of DynamoDB, or for a waiter that reads once or twice a second, as those of its own recipe do.

use super::rig::{Rig, with};
use crate::support::dynamodb::{Dynamo, key};
use crate::support::java_lock_client::{JavaLockClient, Release};
use crate::support::place::Place;
use crate::support::pool::Lent;
use dlock::backend::ledger::Ledger;
use dlock::lock::Mode;
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

struct LockClientRig {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    server: Lent<Dynamo>,
    /// The other programs, by the name of the lock.
    foreign: HashMap<String, JavaLockClient>,
}

/// The lease of a lock that ends only by its release.
const FOR_LONG: Duration = Duration::from_secs(3600);

impl LockClientRig {
    fn new() -> Self {
        Self { place: Place::new(), server: Dynamo::lent(), foreign: HashMap::new() }
    }

    fn ledger(&self, name: &str) -> Ledger {
        self.server.ledger_in(&beside(name))
    }
}

/// The key of the ledger.
fn beside(name: &str) -> String {
    format!("{}%dlock", key(name))
}

impl Rig for LockClientRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        with(&self.server.url(), "recipe=lock-client")
    }

    fn exact_url(&self) -> String {
        self.url()
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        let url = format!("dynamodb://somebody:{secret}@127.0.0.1/p?endpoint=http://127.0.0.1:1");
        Some(with(&url, "recipe=lock-client"))
    }

    super::polled::dated_leases!(10);
    super::polled::polled_turns!();

    fn has_slots(&self) -> bool {
        false
    }

    fn has(&self, mode: Mode) -> bool {
        mode == Mode::Exclusive
    }

    fn delete(&mut self, name: &str) {
        self.cut(name);
        self.server.delete(&beside(name));
    }

    fn cut(&mut self, name: &str) {
        self.server.delete(&key(name));
    }

    fn replace(&mut self, name: &str) {
        self.cut(name);
        assert!(self.foreign_lock(name, None));
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.foreign.get(name).is_some_and(|client| client.has(&self.server, &key(name)))
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        let mut client = JavaLockClient::new(lease.unwrap_or(FOR_LONG));
        let is_taken = client.take(&self.server, &key(name));
        if is_taken {
            self.foreign.insert(name.to_owned(), client);
        }
        is_taken
    }

    fn foreign_unlock(&mut self, name: &str) {
        let mut client = self.foreign.remove(name).expect("a client that has it");
        assert!(client.release(&self.server, &key(name), Release::Delete));
    }

    fn waiters(&self, name: &str) -> usize {
        self.ledger(name).waiters.len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let (ledger, item) = (self.ledger(name), self.server.item(&key(name)));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
        let ends = item["dlockEnds"]["S"].as_str().map(|ends| ends.parse::<u64>().expect("seconds"));
        let is_held = !item.is_null() && item["isReleased"].is_null() && ends.is_none_or(|ends| ends > now);
        let holders = ledger.holders.iter().map(|one| format!("{one:?}"));
        let waiters = ledger.waiters.iter().map(|one| format!("{one:?}"));
        holders.chain(waiters).chain(is_held.then(|| item.to_string())).collect()
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn wipe(&mut self) {
        self.server.wipe();
    }
}

crate::stores::conformance::gates::gate_checks_of_another_product!(LockClientRig::new);
crate::stores::conformance::topics! { LockClientRig::new;
    admin {
        a_hold_is_removed_unless_it_lives_in_a_descriptor
    }
    fencing {
        fencing_tokens_grow_over_a_deleted_lock
    }
    queue {
        the_end_of_a_foreign_lease_is_noticed
    }
    nesting {
        an_inner_run_that_outlives_the_outer_keeps_the_lock
        the_last_inner_hold_decides
    }
    min_hold {
        a_waiter_is_granted_what_was_released_within_min_hold
    }
    revocation {
        a_lock_without_a_running_holder_ends_at_once
        a_foreign_lock_is_removed_only_where_the_store_keeps_it
    }
    lost_gate {
        a_waiter_starts_when_the_tree_of_a_run_that_lost_its_gate_is_dead
        a_waiter_starts_when_the_program_that_took_the_gate_has_left_it
    }
}
