//! Locks of `GET_LOCK` on MariaDB and on MySQL, with a table beside them.

use super::rig::{Rig, with};
use crate::support::mariadb::{MariaDb, Product, Session};
use crate::support::place::Place;
use crate::support::pool::Lent;
use dlock::lock::Mode;
use std::collections::HashMap;
use std::time::Duration;

/// The server's clock in microseconds.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

struct GetLockRig {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    /// The sessions of other programs, by the lock that they hold.
    foreign: HashMap<String, Session>,
    server: Lent<MariaDb>,
    product: Product,
}

impl GetLockRig {
    fn new() -> Self {
        Self::on(Product::System)
    }

    fn on(product: Product) -> Self {
        let server = MariaDb::lent_of(product);
        Self { place: Place::new(), foreign: HashMap::new(), server, product }
    }

    /// The connection that holds a lock.
    fn holder(&self, name: &str) -> Option<u64> {
        self.server.sql(&format!("SELECT IS_USED_LOCK('it:{name}')")).trim().parse().ok()
    }

    /// Ends the session of a holder.
    fn kill_holder(&self, name: &str) {
        let holder = self.holder(name).expect("a holder");
        self.server.sql(&format!("KILL {holder}"));
    }

    /// One column of the row of a lock, if there is a row.
    fn column(&self, name: &str, column: &str) -> Option<String> {
        let sql = format!("SELECT {column} FROM dlock_locks WHERE name = 'it:{name}' AND ends_at > {NOW}");
        self.server.try_sql(&sql).ok()?.lines().next().map(str::to_owned)
    }
}

impl Rig for GetLockRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        with(&self.exact_url(), "prefix=it:")
    }

    fn exact_url(&self) -> String {
        with(&self.server.url(), "recipe=get_lock")
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("mysql://somebody:{secret}@127.0.0.1:1/db?recipe=get_lock"))
    }

    fn has_leases(&self) -> bool {
        false
    }

    fn lease(&self, ttl: Duration) -> Option<Duration> {
        Some(ttl)
    }

    /// The server counts in whole seconds.
    fn rounding(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// The entry of a waiter ends with its lease.
    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn has_slots(&self) -> bool {
        false
    }

    fn has(&self, mode: Mode) -> bool {
        mode == Mode::Exclusive
    }

    /// MySQL ignores the case of the names of GET_LOCK.
    fn has_name(&self, name: &str) -> bool {
        self.product != Product::Mysql9_7 || name.to_lowercase() == name
    }

    fn delete(&mut self, name: &str) {
        self.kill_holder(name);
        self.server.sql(&format!("DELETE FROM dlock_locks WHERE name = 'it:{name}'"));
        self.server.await_free(&format!("it:{name}"));
    }

    fn cut(&mut self, name: &str) {
        self.kill_holder(name);
    }

    fn replace(&mut self, name: &str) {
        if self.holder(name).is_some() {
            self.kill_holder(name);
            self.server.await_free(&format!("it:{name}"));
        }
        assert!(self.foreign_lock(name, None));
    }

    fn is_untouched(&self, name: &str) -> bool {
        let holder = self.holder(name);
        holder.is_some() && holder == self.foreign.get(name).map(Session::id)
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        assert_eq!(lease, None, "a session has no lease");
        let mut session = self.server.session();
        let is_taken = session.ask(&format!("SELECT GET_LOCK('it:{name}', 0)")) == "1";
        if is_taken {
            self.foreign.insert(name.to_owned(), session);
        }
        is_taken
    }

    fn foreign_unlock(&mut self, name: &str) {
        let mut session = self.foreign.remove(name).expect("a foreign lock");
        assert_eq!(session.ask(&format!("SELECT RELEASE_LOCK('it:{name}')")), "1");
    }

    fn waiters(&self, name: &str) -> usize {
        let entries = self.column(name, "entries").unwrap_or_default();
        let ledger: serde_json::Value = serde_json::from_str(&entries).unwrap_or_default();
        ledger["line"].as_array().map_or(0, Vec::len)
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let holder = self.holder(name).map(|id| format!("connection {id}"));
        self.column(name, "leases").into_iter().chain(holder).collect()
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn wipe(&mut self) {
        let holders = self.server.sql(
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'",
        );
        for holder in holders.lines() {
            let _ = self.server.try_sql(&format!("KILL {holder}"));
        }
        self.server.await_free("it:x");
        self.server.sql("DROP TABLE dlock_locks");
    }

    /// A lock is one row.
    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }

    fn has_own_items(&self) -> bool {
        false
    }
}

super::gates::gate_checks!(GetLockRig::new);

// Nobody is notified when a foreign program unlocks.
super::topics! { GetLockRig::new;
    admin {
        inspect_reports_holders_and_waiters
    }
    holder {
        a_foreign_holder_has_no_name
    }
    names {
        different_names_never_collide
        different_names_never_collide_without_prefix_and_suffix
        a_notification_for_one_name_does_not_reach_another
    }
    slots by prove_slots {
        slots_limit_the_number_of_holders
    }
    nesting_refused by prove_slots {
        a_different_slot_count_inside_is_refused_at_once
    }
}

mod of_mysql_9_7 {
    use super::{GetLockRig, Product};

    fn rig() -> GetLockRig {
        GetLockRig::on(Product::Mysql9_7)
    }

    crate::stores::conformance::gates::gate_checks_of_another_product!(rig);
}
