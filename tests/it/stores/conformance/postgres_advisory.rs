//! Advisory locks of PostgreSQL, which `psql` takes too.

use super::postgres::PostgresRig;
use super::rig::{Rig, with};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::psql::Psql;
use crate::support::wait::until;
use std::collections::HashMap;
use std::time::Duration;

pub struct AdvisoryRig {
    /// The sessions of other programs, by the name of the lock. They end before the server is lent to the next test.
    foreign: HashMap<String, Psql>,
    rows: PostgresRig,
}

impl AdvisoryRig {
    fn new() -> Self {
        Self { foreign: HashMap::new(), rows: PostgresRig::new() }
    }

    fn behind_a_pooler() -> Self {
        Self { foreign: HashMap::new(), rows: PostgresRig::behind("session") }
    }

    /// Runs SQL on the processes that hold a lock, and returns how many there are.
    fn holders(&self, name: &str, action: &str) -> String {
        self.rows.sql(&format!(
            "SELECT count({action}) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted \
             AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = {} AND application_name = 'dlock'",
            key(name)
        ))
    }
}

/// The key of a lock in SQL.
fn key(name: &str) -> String {
    format!("hashtext('{}')::bigint", name.replace('\'', "''"))
}

impl Rig for AdvisoryRig {
    fn place(&self) -> &Place {
        self.rows.place()
    }

    fn url(&self) -> String {
        with(&with(&self.rows.url(), "recipe=advisory"), "key=hashtext")
    }

    fn exact_url(&self) -> String {
        self.url()
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("postgres://somebody:{secret}@127.0.0.1:1,127.0.0.1:2/app?recipe=advisory"))
    }

    fn has_leases(&self) -> bool {
        false
    }

    fn lease(&self, ttl: Duration) -> Option<Duration> {
        Some(ttl)
    }

    fn ends_with_its_process(&self) -> bool {
        true
    }

    fn has_own_items(&self) -> bool {
        false
    }

    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn delete(&mut self, name: &str) {
        self.rows.delete(name);
        self.cut(name);
    }

    fn cut(&mut self, name: &str) {
        assert_ne!(self.holders(name, "pg_terminate_backend(pid)"), "0", "{name} was not held");
        until(SOON, "the end of the sessions", || self.holders(name, "*") == "0");
    }

    fn replace(&mut self, name: &str) {
        let mut session = Psql::open(&self.rows.url());
        let process = session.ask("SELECT pg_backend_pid()");
        session.send(&format!("SELECT 'taken' FROM pg_advisory_lock({})", key(name)));
        let asks = format!("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = {process}");
        until(SOON, "the request", || self.rows.sql(&asks) == "1");
        self.holders(name, "pg_terminate_backend(pid)");
        assert_eq!(session.reply(), "taken");
        self.foreign.insert(name.to_owned(), session);
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.foreign.contains_key(name) && self.holders(name, "*") == "0"
    }

    fn foreign_lock(&mut self, name: &str, _: Option<Duration>) -> bool {
        let mut session = Psql::open(&self.rows.url());
        let taken = session.ask(&format!("SELECT pg_try_advisory_lock({})", key(name))) == "t";
        if taken {
            self.foreign.insert(name.to_owned(), session);
        }
        taken
    }

    fn foreign_unlock(&mut self, name: &str) {
        let mut session = self.foreign.remove(name).expect("a session that has it");
        assert_eq!(session.ask(&format!("SELECT pg_advisory_unlock({})", key(name))), "t");
    }

    fn waiters(&self, name: &str) -> usize {
        self.rows.waiters(name)
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let locks = self.holders(name, "*");
        let locks = (locks != "0").then(|| format!("{locks} advisory locks"));
        self.rows.traces(name).into_iter().chain(locks).collect()
    }

    fn restart(&mut self) {
        self.rows.restart();
    }

    fn wipe(&mut self) {
        self.rows.wipe();
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }
}

super::list::trait_checks!(AdvisoryRig::new; Request Data Foreign Gate);
super::list::run_checks!(AdvisoryRig::new; Request Data Foreign Gate);

// Nobody is notified when a foreign program unlocks.
crate::stores::conformance::topics! { AdvisoryRig::new;
    admin {
        a_foreign_hold_is_removed_only_if_unchanged_since_its_inspection
    }
    holder {
        a_foreign_holder_has_no_name
    }
    names {
        names_of_side_keys_are_foreign_or_refused
    }
    queue {
        a_release_by_a_foreign_client_is_noticed
        the_end_of_a_foreign_lease_is_noticed
    }
    queue_of_runs {
        a_run_waits_for_a_foreign_client
    }
    queue_positions {
        a_foreign_client_that_acquires_first_costs_no_queue_position
        waiters_keep_their_positions_while_a_foreign_client_holds_the_lock
    }
    sharing {
        a_foreign_client_is_excluded_until_the_last_reader_has_left
    }
    slots by prove_slots {
        a_foreign_client_is_excluded_until_the_last_slot_is_free
    }
    revocation {
        a_foreign_lock_is_removed_only_where_the_store_keeps_it
    }
}

super::gates::lost_gate_checks!(AdvisoryRig::new);

mod behind_a_pooler_of_sessions {
    use super::AdvisoryRig;

    crate::stores::conformance::list::trait_checks!(AdvisoryRig::behind_a_pooler; Pooling);
    crate::stores::conformance::list::run_checks!(AdvisoryRig::behind_a_pooler; Pooling);

    crate::stores::conformance::topics! { AdvisoryRig::behind_a_pooler;
        queue_of_runs {
            a_run_waits_for_a_foreign_client
        }
        nesting {
            an_inner_run_that_outlives_the_outer_keeps_the_lock
        }
    }
}
