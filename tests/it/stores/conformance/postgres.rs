//! The lease table of PostgreSQL.

use super::client::claim;
use super::rig::Rig;
use crate::support::pgbouncer::PgBouncer;
use crate::support::place::Place;
use crate::support::pool::Lent;
use crate::support::postgres::{Plan, Postgres};
use dlock::backend::Intent;
use dlock::backend::ledger::document::Shortcut;
use dlock::backend::ledger::{HolderEntry, Ledger, Purpose, decide};
use dlock::backend::sql::{COLUMNS, Row, Taken};
use dlock::lock::{Claim, Token};
use std::time::Duration;

pub struct PostgresRig {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    /// Between the clients and the server.
    pooler: Option<PgBouncer>,
    server: Lent<Postgres>,
}

/// The token of a client that is neither a client of the check nor a run.
const ANOTHER: &str = "another";
const FOR_LONG: Duration = Duration::from_secs(3600);

impl PostgresRig {
    pub fn new() -> Self {
        Self::on(Postgres::lent())
    }

    fn of_today() -> Self {
        Self::on(Postgres::lent_with(Plan::current()))
    }

    fn on(server: Lent<Postgres>) -> Self {
        Self { place: Place::new(), pooler: None, server }
    }

    pub fn behind(mode: &str) -> Self {
        let server = Postgres::lent();
        // Fewer connections than clients, where they can share them.
        let connections = if mode == "session" { 50 } else { 2 };
        let pooler = Some(PgBouncer::start(server.port(), mode, connections));
        Self { place: Place::new(), pooler, server }
    }

    /// Runs SQL on the server itself.
    #[track_caller]
    pub fn sql(&self, text: &str) -> String {
        self.server.sql(text)
    }

    fn ledger(&self, name: &str) -> Ledger {
        let object = format!(
            "SELECT to_json(r) FROM (SELECT {COLUMNS} FROM dlock_locks WHERE name = {}) AS r",
            bytes(name)
        );
        let Ok(text) = self.server.try_sql(&object) else { return Ledger::default() };
        if text.is_empty() {
            return Ledger::default();
        }
        let value: serde_json::Value = serde_json::from_str(&text).expect("one row");
        let number = |name: &str| value[name].as_u64().expect("a number");
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let row = Row {
            format: u32::try_from(number("format")).expect("a format"),
            version: number("version"),
            fencing_token: number("fencing_token"),
            ticket: number("ticket"),
            taken_at: number("taken_at"),
            leases: text("leases").expect("a text"),
            entries: text("entries").expect("a text"),
            success: text("success"),
            history: text("outcomes").expect("a text"),
        };
        row.ledger().expect("a ledger")
    }

    fn now(&self) -> Duration {
        let now = self.server.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
        Duration::from_micros(now.parse().expect("a number"))
    }

    /// A client that holds the lock.
    fn holder(name: &str, lease: Duration) -> HolderEntry {
        let claim = Claim { token: Token::from_text(ANOTHER), ttl: lease, ..claim(name) };
        let purpose = Purpose::Claim(claim.clone());
        let taken = Shortcut::of::<(), _>(&purpose, None, &|ledger, observed| {
            decide::claim(ledger, observed, &claim, Intent::TakeNow)
        });
        match taken {
            Shortcut::TakeIfIdle(holder) => *holder,
            other => panic!("{other:?}"),
        }
    }

    /// Takes the lock in SQL, in any state or only if it is idle.
    fn take(&self, name: &str, lease: Duration, condition: &str) -> bool {
        drop(self.server.try_sql(&self.ddl()));
        let Taken { entries, lease_key, lease, .. } = Taken::of(&Self::holder(name, lease));
        let statement = format!(
            "INSERT INTO dlock_locks AS l SELECT {name}, 1, n, n, n, n, n + {lease}, '{lease_key}' || lpad((n + \
             {lease})::text, 17, '0'), '{entries}', NULL, '[]' FROM (SELECT (extract(epoch FROM clock_timestamp()) * \
             1000000)::bigint AS n) AS now ON CONFLICT (name) DO UPDATE SET version = l.version + 1, fencing_token = \
             greatest(l.fencing_token + 1, excluded.fencing_token), ticket = excluded.ticket, taken_at = \
             excluded.taken_at, ends_at = excluded.ends_at, leases = excluded.leases, entries = excluded.entries WHERE \
             {condition} RETURNING version",
            name = bytes(name),
        );
        !self.server.sql(&statement).is_empty()
    }

    fn ddl(&self) -> String {
        let policy = super::rig::locate(&self.url()).expect("a URL").policy();
        let is_table = |command: &&String| command.starts_with("CREATE TABLE");
        policy.commands.iter().find(is_table).expect("a table").clone()
    }
}

/// A name as a literal.
fn bytes(name: &str) -> String {
    let digits: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("'\\x{digits}'::bytea")
}

impl Rig for PostgresRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.pooler.as_ref().map_or_else(|| self.server.url(), PgBouncer::url)
    }

    /// Names are not encoded.
    fn exact_url(&self) -> String {
        self.server.url()
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("postgres://somebody:{secret}@127.0.0.1:1,127.0.0.1:2/app"))
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn delete(&mut self, name: &str) {
        let deleted = format!("DELETE FROM dlock_locks WHERE name = {} RETURNING 1", bytes(name));
        assert_eq!(self.server.sql(&deleted), "1", "{name} was not held");
    }

    fn replace(&mut self, name: &str) {
        assert!(self.take(name, FOR_LONG, "true"));
    }

    fn is_untouched(&self, name: &str) -> bool {
        let ledger = self.ledger(name);
        ledger.waiters.is_empty() && ledger.holders.iter().map(|holder| holder.token.as_str()).eq([ANOTHER])
    }

    /// By a client with another token: no other programs use this table.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        self.take(name, lease.unwrap_or(FOR_LONG), "l.ends_at <= excluded.taken_at")
    }

    fn foreign_unlock(&mut self, name: &str) {
        let free = format!(
            "UPDATE dlock_locks SET version = version + 1, ends_at = 0, leases = ';{ANOTHER}=00000000000000000' WHERE \
             name = {} AND leases LIKE ';{ANOTHER}=%' RETURNING 1",
            bytes(name)
        );
        assert_eq!(self.server.sql(&free), "1");
    }

    fn waiters(&self, name: &str) -> usize {
        let now = self.now();
        let ledger = self.ledger(name);
        ledger.waiters.iter().filter(|waiter| waiter.lease_ends.is_some_and(|ends| now < ends)).count()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let (now, ledger) = (self.now(), self.ledger(name));
        let is_alive = |ends: Option<Duration>| ends.is_none_or(|ends| now < ends);
        let holders =
            ledger.holders.iter().filter(|one| is_alive(one.lease_ends)).map(|one| format!("{one:?}"));
        let waiters =
            ledger.waiters.iter().filter(|one| is_alive(one.lease_ends)).map(|one| format!("{one:?}"));
        holders.chain(waiters).collect()
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn wipe(&mut self) {
        self.server.sql("DROP TABLE IF EXISTS dlock_locks");
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }
}

super::list::trait_checks!(PostgresRig::new);
super::list::run_checks!(PostgresRig::new);
super::checks! { PostgresRig::new; supersede { an_older_waiter_is_notified_of_a_newer_one } }

#[test]
fn killed_together_they_cost_the_longest_lease() {
    let check = super::crowds::killed_together_they_cost_the_longest_lease::<60>;
    super::rig::prove(PostgresRig::new(), check);
}

#[test]
fn killed_after_a_renewal_they_cost_half_a_second_each() {
    super::rig::prove(PostgresRig::new(), super::crowds::killed_after_a_renewal_they_cost_half_a_second_each);
}

mod of_version_18 {
    use super::PostgresRig;

    crate::stores::conformance::list::trait_checks!(PostgresRig::of_today; Request);
    crate::stores::conformance::list::run_checks!(PostgresRig::of_today; Request);
}

/// Runs poll behind a pooler.
mod behind_a_pooler_of_transactions {
    use super::PostgresRig;

    fn rig() -> PostgresRig {
        PostgresRig::behind("transaction")
    }

    crate::stores::conformance::list::trait_checks!(rig; Pooling);
    crate::stores::conformance::list::run_checks!(rig; Pooling);
}

/// Runs poll behind a pooler.
mod behind_a_pooler_of_sessions {
    use super::PostgresRig;

    fn rig() -> PostgresRig {
        PostgresRig::behind("session")
    }

    crate::stores::conformance::list::trait_checks!(rig; Pooling);
    crate::stores::conformance::list::run_checks!(rig; Pooling);
}
