//! The statements. Each of them is one transaction, and returns the row as it is after it.

use tokio_postgres::Row as Record;
use tokio_postgres::types::{ToSql, Type};

use crate::backend::sql::{COLUMNS, LEASE_DIGITS, Row};

/// The time, read once, after the request has arrived: no lease is shorter than the client counts it; and the process that
/// serves the request. The statement also limits the wait for a row that others have locked, for the case that the client
/// has given up: by default, an attempt is shorter. The limit is set for the transaction, because a pooler shares the
/// session.
const NOW: &str = "now AS MATERIALIZED (SELECT (EXTRACT(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) \
                   1000000)::bigint AS now, pg_catalog.pg_backend_pid() AS process, \
                   pg_catalog.set_config('lock_timeout', '10s', true))";

// Operators and functions are named with their schema: behind a pooler, the search path
// may begin with a stranger's schema. All operators in this form have the same precedence.
const EQ: &str = "OPERATOR(pg_catalog.=)";
const NE: &str = "OPERATOR(pg_catalog.<>)";
const LE: &str = "OPERATOR(pg_catalog.<=)";
const LT: &str = "OPERATOR(pg_catalog.<)";
const GT: &str = "OPERATOR(pg_catalog.>)";
const ADD: &str = "OPERATOR(pg_catalog.+)";
const JOIN: &str = "OPERATOR(pg_catalog.||)";

/// A parameter and its type: a statement with them is sent in one go, and leaves nothing prepared.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The statements for one table, whose name is quoted.
pub(super) struct Statements {
    /// Reads the row of a name. Returns the time in any case.
    pub(super) read: String,
    /// The same where there is no table.
    pub(super) read_nothing: String,
    /// Whether the role may create tables in the schema with this name; no row if there is none.
    pub(super) may_create: String,
    /// See [`Shortcut::TakeIfIdle`](crate::backend::ledger::document::Shortcut::TakeIfIdle), with the fields of
    /// [`Taken`](crate::backend::sql::Taken) and the last fencing token.
    pub(super) take: String,
    /// See [`Shortcut::Touch`](crate::backend::ledger::document::Shortcut::Touch), with the key and the length of the
    /// lease.
    pub(super) touch: String,
    /// Stores the [`Values`](crate::backend::sql::Values) of a new row, and notifies; returns the version, if it did.
    pub(super) insert: String,
    /// Likewise, if the version of the row is still this one.
    pub(super) swap: String,
    /// The names of the locks that are in use.
    pub(super) used: String,
    /// The names of the locks with a history.
    pub(super) with_history: String,
    /// Removes the row of a name.
    pub(super) forget: String,
}

impl Statements {
    /// Returns the statements for this table.
    pub(super) fn of(table: &str) -> Statements {
        let rest = |done: &str| {
            format!(
                "SELECT now, process, {COLUMNS} FROM now, {done} UNION ALL SELECT now, process, {COLUMNS} FROM now LEFT JOIN {table} ON \
                 name {EQ} $1 WHERE NOT EXISTS (SELECT FROM {done})"
            )
        };
        let digits = |time: &str| format!("pg_catalog.lpad(({time})::pg_catalog.text, {LEASE_DIGITS}, '0')");
        // A channel and a payload for each waiter that is called. What is not selected would not be computed.
        let notify = "SELECT version, called FROM swapped LEFT JOIN LATERAL (SELECT \
                      pg_catalog.count(pg_catalog.pg_notify(channel, payload)) AS called FROM ROWS FROM \
                      (pg_catalog.unnest($9), pg_catalog.unnest($10)) AS calls(channel, payload)) AS calls ON true";
        // Where the digits of the lease behind `$2` begin.
        let place = format!("(POSITION($2 IN leases) {ADD} pg_catalog.length($2))");
        Statements {
            read: format!(
                "WITH {NOW} SELECT now, process, {COLUMNS} FROM now LEFT JOIN {table} ON name {EQ} $1"
            ),
            read_nothing: format!("WITH {NOW} SELECT now, process, NULL::integer FROM now"),
            may_create: format!(
                "SELECT pg_catalog.has_schema_privilege(oid, 'CREATE') FROM pg_catalog.pg_namespace WHERE nspname {EQ} $1"
            ),
            take: format!(
                "WITH {NOW}, taken AS (INSERT INTO {table} AS old (name, format, version, fencing_token, ticket, \
                 taken_at, ends_at, leases, entries, outcomes) SELECT $1, 1, now, now, now, now, now {ADD} $5, $3 {JOIN} {}, \
                 $2, '[]' FROM now ON CONFLICT (name) DO UPDATE SET version = old.version {ADD} 1, fencing_token = \
                 GREATEST(old.fencing_token {ADD} 1, excluded.fencing_token), ticket = GREATEST(old.ticket {ADD} 1, \
                 excluded.ticket), taken_at = excluded.taken_at, ends_at = excluded.ends_at, leases = excluded.leases, \
                 entries = excluded.entries WHERE (old.ends_at {LE} excluded.taken_at) AND (old.format {EQ} 1) AND \
                 (old.fencing_token {LT} $6) RETURNING *) {}",
                digits(&format!("now {ADD} $4")),
                rest("taken"),
            ),
            touch: format!(
                "WITH {NOW}, touched AS (UPDATE {table} AS old SET version = version {ADD} 1, ends_at = GREATEST(ends_at, \
                 now {ADD} $3), leases = OVERLAY(leases PLACING {} FROM {place}) FROM now WHERE (name {EQ} $1) AND (format \
                 {EQ} 1) AND (POSITION($2 IN leases) {GT} 0) AND ((pg_catalog.substr(leases, {place}, {LEASE_DIGITS}) COLLATE \
                 pg_catalog.\"C\") {GT} {}) RETURNING old.*) {}",
                digits(&format!("now {ADD} $3")),
                digits("now"),
                rest("touched"),
            ),
            insert: format!(
                "WITH {NOW}, swapped AS (INSERT INTO {table} (name, format, version, fencing_token, ticket, taken_at, \
                 ends_at, leases, entries, success, outcomes) SELECT $1, 1, now, $2, $3, 0, $4, $5, $6, $7, $8 FROM now \
                 ON CONFLICT DO NOTHING RETURNING version) {notify}"
            ),
            swap: format!(
                "WITH {NOW}, swapped AS (UPDATE {table} SET version = version {ADD} 1, fencing_token = $2, ticket = $3, ends_at \
                 = $4, leases = $5, entries = $6, success = $7, outcomes = $8 FROM now WHERE (name {EQ} $1) AND (version {EQ} $11) \
                 AND (format {EQ} 1) RETURNING version) {notify}"
            ),
            used: format!("WITH {NOW} SELECT name FROM now, {table} WHERE ends_at {GT} now ORDER BY name"),
            with_history: format!("SELECT name FROM {table} WHERE outcomes {NE} '[]' ORDER BY name"),
            forget: format!("DELETE FROM {table} WHERE name {EQ} $1"),
        }
    }
}

/// Returns a number as the server stores it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Reads what the statements return: the time in microseconds, the row if there is one, and which process has served them.
pub(super) fn reading(record: &Record) -> Result<(u64, Option<Row>, i32), tokio_postgres::Error> {
    let number = |column: usize| record.try_get::<_, Option<i64>>(column).map(Option::unwrap_or_default);
    let text = |column: usize| record.try_get::<_, Option<String>>(column);
    let unsigned = |number: i64| u64::try_from(number).unwrap_or_default();
    let (now, process) = (unsigned(number(0)?), record.try_get(1)?);
    let Some(format) = record.try_get::<_, Option<i32>>(2)? else {
        return Ok((now, None, process));
    };
    let row = Row {
        format: u32::try_from(format).unwrap_or_default(),
        version: unsigned(number(3)?),
        fencing_token: unsigned(number(4)?),
        ticket: unsigned(number(5)?),
        taken_at: unsigned(number(6)?),
        leases: text(7)?.unwrap_or_default(),
        entries: text(8)?.unwrap_or_default(),
        success: text(9)?,
        history: text(10)?.unwrap_or_default(),
    };
    Ok((now, Some(row), process))
}
