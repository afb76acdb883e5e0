//! The lease table on MariaDB, and on MySQL.

use super::rig::{Rig, locate, with};
use crate::support::mariadb::{MariaDb, Product};
use crate::support::place::Place;
use crate::support::pool::Lent;
use dlock::backend::ledger::Ledger;
use std::collections::HashMap;
use std::time::Duration;

/// The server's clock in microseconds.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
/// The lease of a foreign lock that ends only by its release.
const FOR_LONG: Duration = Duration::from_secs(3600);

struct MysqlRig {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    server: Lent<MariaDb>,
    /// The leases of the locks that another client has taken.
    foreign: HashMap<String, String>,
}

impl MysqlRig {
    fn new() -> Self {
        Self::on(Product::System)
    }

    fn on(product: Product) -> Self {
        Self { place: Place::new(), server: MariaDb::lent_of(product), foreign: HashMap::new() }
    }

    /// One column of the row of a lock, if there is a row.
    fn column(&self, name: &str, column: &str) -> Option<String> {
        let rows =
            self.server.try_sql(&format!("SELECT {column} FROM dlock_locks WHERE name = '{name}'")).ok()?;
        rows.lines().next().map(str::to_owned)
    }
}

impl Rig for MysqlRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        with(&self.server.url(), "prefix=it:")
    }

    fn exact_url(&self) -> String {
        self.server.url()
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("mysql://somebody:{secret}@127.0.0.1:1/db?prefix=p"))
    }

    fn has_leases(&self) -> bool {
        true
    }

    /// An entry ends with its lease.
    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn delete(&mut self, name: &str) {
        self.server.sql(&format!("DELETE FROM dlock_locks WHERE name = 'it:{name}'"));
    }

    /// At no moment is the lock free.
    fn replace(&mut self, name: &str) {
        let micros = FOR_LONG.as_micros();
        self.server.sql(&format!(
            "UPDATE dlock_locks SET version = version + 1, ends_at = {NOW} + {micros}, leases = CONCAT(';another=', LPAD({NOW} \
             + {micros}, 17, '0')), entries = REGEXP_REPLACE(CONVERT(entries USING utf8mb4), '\"token\":\"[^\"]*\"', \
             '\"token\":\"another\"') WHERE name = 'it:{name}'"
        ));
        let leases = self.column(&format!("it:{name}"), "leases").expect("a row");
        self.foreign.insert(name.to_owned(), leases);
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.column(&format!("it:{name}"), "leases").as_ref() == self.foreign.get(name)
    }

    /// There are no other programs that use the table; this is what one could do.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        let micros = lease.unwrap_or(FOR_LONG).as_micros();
        let entries = String::from_utf8(Ledger::of_foreign_holder(1).to_json()).unwrap();
        let idle = format!("ends_at <= {NOW}");
        let sql = format!(
            "INSERT INTO dlock_locks (name, format, version, fencing_token, ticket, taken_at, ends_at, leases, entries, \
             outcomes, calls) VALUES ('it:{name}', 1, {NOW}, {NOW}, {NOW}, 0, {NOW} + {micros}, ';another={micros}', '{entries}', \
             '[]', '/') ON DUPLICATE KEY UPDATE version = version + 1, leases = IF({idle}, VALUES(leases), leases), entries = \
             IF({idle}, VALUES(entries), entries), ends_at = IF({idle}, VALUES(ends_at), ends_at)"
        );
        let create = locate(&self.url()).unwrap().policy().commands.swap_remove(1);
        self.server.sql(&format!("{create}{sql}"));
        self.column(&format!("it:{name}"), "entries").as_deref() == Some(&entries)
    }

    fn foreign_unlock(&mut self, name: &str) {
        let entries = String::from_utf8(Ledger::default().to_json()).unwrap();
        self.server.sql(&format!(
            "UPDATE dlock_locks SET version = version + 1, ends_at = 0, leases = '', entries = '{entries}' WHERE name = 'it:{name}'"
        ));
    }

    fn waiters(&self, name: &str) -> usize {
        let entries = self.column(&format!("it:{name}"), "entries").unwrap_or_default();
        let ledger: serde_json::Value = serde_json::from_str(&entries).unwrap_or_default();
        ledger["line"].as_array().map_or(0, Vec::len)
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let sql = format!("SELECT leases FROM dlock_locks WHERE name = 'it:{name}' AND ends_at > {NOW}");
        self.server.try_sql(&sql).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn wipe(&mut self) {
        self.server.sql("DROP TABLE dlock_locks");
    }

    /// A lock is one row.
    fn own_items(&self, names: &[&str]) -> Vec<String> {
        let rows = self.server.sql("SELECT HEX(name) FROM dlock_locks");
        let hex = |name: &&str| name.bytes().map(|byte| format!("{byte:02X}")).collect::<String>();
        let names: Vec<String> = names.iter().map(hex).collect();
        rows.lines().filter(|row| names.iter().all(|name| name != row)).map(str::to_owned).collect()
    }

    fn has_own_items(&self) -> bool {
        false
    }
}

super::list::trait_checks!(MysqlRig::new);
super::list::run_checks!(MysqlRig::new);
super::checks! { MysqlRig::new; supersede { an_older_waiter_is_notified_of_a_newer_one } }

#[test]
fn killed_after_a_renewal_they_cost_half_a_second_each() {
    super::rig::prove(MysqlRig::new(), super::crowds::killed_after_a_renewal_they_cost_half_a_second_each);
}

mod of_mariadb_11_8 {
    use super::{MysqlRig, Product};

    fn rig() -> MysqlRig {
        MysqlRig::on(Product::MariaDb11_8)
    }

    crate::stores::conformance::list::trait_checks!(rig; Request);
    crate::stores::conformance::list::run_checks!(rig; Request);
}

mod of_mysql_9_7 {
    use super::{MysqlRig, Product};

    fn rig() -> MysqlRig {
        MysqlRig::on(Product::Mysql9_7)
    }

    crate::stores::conformance::list::trait_checks!(rig; Request);
    crate::stores::conformance::list::run_checks!(rig; Request);
}
