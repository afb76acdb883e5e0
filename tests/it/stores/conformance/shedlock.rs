//! The table of ShedLock on PostgreSQL, MariaDB and MySQL. The foreign client sends the statements of ShedLock's own providers.

use super::rig::{Rig, with};
use crate::support::place::Place;
use dlock::lock::Mode;
use std::time::Duration;

/// A server with the table.
trait Server {
    /// The URL of its database.
    fn url(&self) -> String;
    /// A URL with this password, and of no server.
    fn url_with_secret(secret: &str) -> String;
    /// The first column of the rows.
    fn sql(&self, sql: &str) -> Result<String, String>;
    fn restart(&mut self);
    /// An expression for a time so many milliseconds from now.
    fn after(milliseconds: u128) -> String;
    /// Takes the lock if it is free.
    fn take(name: &str, until: &str) -> String;
    const TABLE: &str;
    /// The server's clock in microseconds since 1970.
    const MICROS: &str;
}

struct ShedLockRig<S> {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    server: S,
}

const FOREIGN: &str = "app-server-1";
/// `lockAtMostFor` of a lock that ends only by its release.
const FOR_LONG: Duration = Duration::from_secs(3600);

impl<S: Server> ShedLockRig<S> {
    fn on(server: S) -> Self {
        let rig = Self { place: Place::new(), server };
        rig.sql(S::TABLE);
        rig
    }

    #[track_caller]
    fn sql(&self, sql: &str) -> String {
        self.server.sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn held(&self, name: &str) -> String {
        let now = S::after(0);
        self.sql(&format!("SELECT locked_by FROM shedlock WHERE name = '{name}' AND lock_until > {now}"))
    }

    /// A column of the row of the ledger.
    fn ledger(&self, name: &str, column: &str) -> String {
        self.server
            .sql(&format!("SELECT {column} FROM dlock_locks WHERE name = '{name}'"))
            .unwrap_or_default()
    }
}

impl<S: Server> Rig for ShedLockRig<S> {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        with(&with(&self.server.url(), "recipe=shedlock"), "clock=db-utc")
    }

    fn exact_url(&self) -> String {
        self.url()
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(with(&with(&S::url_with_secret(secret), "recipe=shedlock"), "clock=db-utc"))
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn has_slots(&self) -> bool {
        false
    }

    fn has(&self, mode: Mode) -> bool {
        mode == Mode::Exclusive
    }

    /// A release is decided with a time that may be ahead of the server's by as long as a request takes.
    fn rounding(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn delete(&mut self, name: &str) {
        assert_ne!(self.held(name), "", "{name} was not held");
        self.cut(name);
        self.sql(&format!("DELETE FROM dlock_locks WHERE name = '{name}'"));
    }

    fn cut(&mut self, name: &str) {
        self.sql(&format!("DELETE FROM shedlock WHERE name = '{name}'"));
    }

    fn replace(&mut self, name: &str) {
        let until = S::after(FOR_LONG.as_millis());
        self.sql(&format!(
            "UPDATE shedlock SET locked_by = '{FOREIGN}', lock_until = {until} WHERE name = '{name}'"
        ));
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.held(name) == FOREIGN
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        self.sql(&S::take(name, &S::after(lease.unwrap_or(FOR_LONG).as_millis())));
        self.held(name) == FOREIGN
    }

    fn foreign_unlock(&mut self, name: &str) {
        let now = S::after(0);
        self.sql(&format!(
            "UPDATE shedlock SET lock_until = {now} WHERE name = '{name}' AND locked_by = '{FOREIGN}'"
        ));
    }

    fn waiters(&self, name: &str) -> usize {
        let ledger: serde_json::Value =
            serde_json::from_str(&self.ledger(name, "entries")).unwrap_or_default();
        ledger["line"].as_array().map_or(0, Vec::len)
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let mut traces = vec![self.held(name)];
        let leases = format!("CASE WHEN ends_at > {} THEN leases ELSE '' END", S::MICROS);
        traces.push(self.ledger(name, &leases));
        traces.retain(|trace| !trace.is_empty());
        traces
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    /// Rows of ShedLock are never deleted, and neither is its table.
    fn wipe(&mut self) {
        self.sql("DELETE FROM shedlock");
        self.sql("DROP TABLE IF EXISTS dlock_locks");
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }

    fn has_own_items(&self) -> bool {
        false
    }
}

/// What the gate adds whose lease a run leaves behind.
macro_rules! shedlock_checks {
    ($rig:path) => {
        crate::stores::conformance::gates::gate_checks!($rig);
        crate::stores::conformance::topics! { $rig;
            queue {
                the_end_of_a_foreign_lease_is_noticed
            }
            several_locks {
                removing_one_lock_loses_all
                a_lock_lost_while_the_next_is_waited_for_is_acquired_again
                a_holder_that_waits_for_its_next_lock_is_shown_as_waiting
                the_time_of_a_grant_is_the_same_in_every_answer
            }
            min_hold {
                a_run_returns_as_soon_as_the_store_keeps_the_lock_by_itself
            }
        }
    };
}

mod postgres_shedlock {
    use super::{FOREIGN, Server, ShedLockRig};
    use crate::support::pool::Lent;
    use crate::support::postgres::Postgres;

    fn rig() -> ShedLockRig<Lent<Postgres>> {
        ShedLockRig::on(Postgres::lent())
    }

    impl Server for Lent<Postgres> {
        const TABLE: &str = "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at \
                             TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";
        const MICROS: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)";

        fn url(&self) -> String {
            Postgres::url(self)
        }

        fn url_with_secret(secret: &str) -> String {
            format!("postgres://somebody:{secret}@127.0.0.1:1,127.0.0.1:2/app")
        }

        fn sql(&self, sql: &str) -> Result<String, String> {
            self.try_sql(sql)
        }

        fn restart(&mut self) {
            Postgres::restart(self);
        }

        fn after(milliseconds: u128) -> String {
            format!("timezone('utc', CURRENT_TIMESTAMP) + {milliseconds} * interval '1 millisecond'")
        }

        /// `PostgresSqlServerTimeStatementsSource` of ShedLock.
        fn take(name: &str, until: &str) -> String {
            let now = Self::after(0);
            format!(
                "INSERT INTO shedlock (name, lock_until, locked_at, locked_by) VALUES ('{name}', {until}, {now}, '{FOREIGN}') \
                 ON CONFLICT (name) DO UPDATE SET lock_until = {until}, locked_at = {now}, locked_by = '{FOREIGN}' WHERE \
                 shedlock.name = '{name}' AND shedlock.lock_until <= {now}"
            )
        }
    }

    shedlock_checks!(rig);
}

mod mariadb_shedlock {
    use super::{FOREIGN, Server, ShedLockRig};
    use crate::support::mariadb::{MariaDb, Product};
    use crate::support::pool::Lent;

    fn rig() -> ShedLockRig<Lent<MariaDb>> {
        ShedLockRig::on(MariaDb::lent())
    }

    impl Server for Lent<MariaDb> {
        const TABLE: &str = "CREATE TABLE shedlock (name VARCHAR(64) COLLATE utf8mb4_bin NOT NULL, lock_until TIMESTAMP(3) \
                             NOT NULL, locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) \
                             NOT NULL, PRIMARY KEY (name)) CHARACTER SET utf8mb4";
        const MICROS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

        fn url(&self) -> String {
            MariaDb::url(self)
        }

        fn url_with_secret(secret: &str) -> String {
            format!("mysql://somebody:{secret}@127.0.0.1:1/db")
        }

        fn sql(&self, sql: &str) -> Result<String, String> {
            self.try_sql(sql).map(|rows| rows.trim_end().to_owned())
        }

        fn restart(&mut self) {
            MariaDb::restart(self);
        }

        fn after(milliseconds: u128) -> String {
            format!("TIMESTAMPADD(MICROSECOND, {milliseconds} * 1000, UTC_TIMESTAMP(3))")
        }

        /// `MySqlServerTimeStatementsSource` of ShedLock.
        fn take(name: &str, until: &str) -> String {
            let now = Self::after(0);
            format!(
                "INSERT IGNORE INTO shedlock (name, lock_until, locked_at, locked_by) VALUES ('{name}', {until}, {now}, \
                 '{FOREIGN}'); UPDATE shedlock SET lock_until = {until}, locked_at = {now}, locked_by = '{FOREIGN}' WHERE name \
                 = '{name}' AND lock_until <= {now}"
            )
        }
    }

    shedlock_checks!(rig);

    mod of_mysql_9_7 {
        use super::{Lent, MariaDb, Product, ShedLockRig};

        fn rig() -> ShedLockRig<Lent<MariaDb>> {
            ShedLockRig::on(MariaDb::lent_of(Product::Mysql9_7))
        }

        crate::stores::conformance::gates::gate_checks_of_another_product!(rig);
    }
}
