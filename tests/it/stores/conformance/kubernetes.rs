//! One server of Kubernetes, where other programs take a lock as client-go's leader election does.

use super::rig::Rig;
use crate::support::kubernetes::{Controller, Kubernetes, key};
use crate::support::place::Place;
use crate::support::pool::Lent;
use std::time::Duration;

struct KubernetesRig {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    server: Lent<Kubernetes>,
    /// The other program.
    controller: Controller,
}

impl KubernetesRig {
    fn new() -> Self {
        Self { place: Place::new(), server: Kubernetes::lent(), controller: Controller::new("controller-1") }
    }
}

impl Rig for KubernetesRig {
    /// Five seconds, by a clock that shows whole ones.
    fn turn_ends(&self) -> Duration {
        Duration::from_secs(7)
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.server.url()
    }

    fn exact_url(&self) -> String {
        Rig::url(self)
    }

    /// It has no place for one.
    fn url_with_secret(&self, _: &str) -> Option<String> {
        None
    }

    super::polled::dated_leases!(5);

    fn delete(&mut self, name: &str) {
        self.server.delete(&key(name));
    }

    fn cut(&mut self, name: &str) {
        self.controller.release(&self.server, &key(name));
    }

    fn replace(&mut self, name: &str) {
        self.controller.take(&self.server, &key(name), None);
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.controller.holds(&self.server, &key(name))
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        self.controller.try_take(&self.server, &key(name), lease)
    }

    fn foreign_unlock(&mut self, name: &str) {
        assert!(self.is_untouched(name));
        self.controller.release(&self.server, &key(name));
    }

    fn waiters(&self, name: &str) -> usize {
        self.server.ledger(name).waiters.len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let ledger = self.server.ledger(name);
        let holders = ledger.holders.iter().map(|one| format!("{one:?}"));
        let waiters = ledger.waiters.iter().map(|one| format!("{one:?}"));
        let lease = self.server.lease(&key(name));
        let holder = lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty());
        holders.chain(waiters).chain(holder.map(str::to_owned)).collect()
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn wipe(&mut self) {
        self.server.wipe();
    }
}

super::polled! { KubernetesRig::new }
super::checks! { KubernetesRig::new; supersede { an_older_waiter_is_notified_of_a_newer_one } }

crate::stores::conformance::topics! { KubernetesRig::new;
    admin {
        a_foreign_hold_is_removed_only_if_unchanged_since_its_inspection
    }
    queue {
        a_release_by_a_foreign_client_is_noticed
        a_foreign_client_is_not_polled
    }
    queue_of_runs {
        a_run_waits_for_a_foreign_client
    }
    queue_positions {
        a_foreign_client_that_acquires_first_costs_no_queue_position
        waiters_keep_their_positions_while_a_foreign_client_holds_the_lock
    }
    revocation {
        a_foreign_lock_is_removed_only_where_the_store_keeps_it
    }
    sharing {
        a_foreign_client_is_excluded_until_the_last_reader_has_left
    }
    slots by prove_slots {
        a_foreign_client_is_excluded_until_the_last_slot_is_free
    }
}
