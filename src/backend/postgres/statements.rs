//! The statements. Each of them is one transaction, and returns the row as it is after it.

use tokio_postgres::Row as Record;

use crate::backend::sql::{COLUMNS, LEASE_DIGITS, Row};

/// The time, read once, after the request has arrived: no lease is shorter than the client counts it. And the process that
/// serves the request.
const NOW: &str = "now AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, \
                   pg_backend_pid() AS process)";

/// The statements for one table, whose name is quoted.
pub(super) struct Statements {
    /// Reads the row of a name. Returns the time in any case.
    pub(super) read: String,
    /// The same where there is no table.
    pub(super) read_nothing: String,
    /// Whether the role may create the table.
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
    /// The names of the locks with outcomes.
    pub(super) recorded: String,
}

impl Statements {
    /// Returns the statements for this table.
    pub(super) fn of(table: &str) -> Statements {
        let rest = |done: &str| {
            format!(
                "SELECT now, process, {COLUMNS} FROM now, {done} UNION ALL SELECT now, process, {COLUMNS} FROM now LEFT JOIN {table} ON \
                 name = $1 WHERE NOT EXISTS (SELECT FROM {done})"
            )
        };
        let digits = |time: &str| format!("lpad(({time})::text, {LEASE_DIGITS}, '0')");
        // A channel and a payload for each waiter that is called. What is not selected would not be computed.
        let notify = "SELECT version, called FROM swapped LEFT JOIN LATERAL (SELECT count(pg_notify(channel, payload)) \
                      AS called FROM unnest($9::text[], $10::text[]) AS calls(channel, payload)) AS calls ON true";
        Statements {
            read: format!(
                "WITH {NOW} SELECT now, process, {COLUMNS} FROM now LEFT JOIN {table} ON name = $1"
            ),
            read_nothing: format!("WITH {NOW} SELECT now, process, NULL::integer FROM now"),
            may_create: format!(
                "SELECT coalesce(bool_or(has_schema_privilege(oid, 'CREATE')), false) FROM pg_namespace WHERE nspname = {}",
                table
                    .split_once('.')
                    .map_or("current_schema()".to_owned(), |(schema, _)| schema.replace('"', "'")),
            ),
            take: format!(
                "WITH {NOW}, taken AS (INSERT INTO {table} AS old (name, format, version, fencing_token, ticket, \
                 taken_at, ends_at, leases, entries, outcomes) SELECT $1, 1, now, now, now, now, now + $5, $3 || {}, \
                 $2, '[]' FROM now ON CONFLICT (name) DO UPDATE SET version = old.version + 1, fencing_token = \
                 greatest(old.fencing_token + 1, excluded.fencing_token), ticket = greatest(old.ticket + 1, \
                 excluded.ticket), taken_at = excluded.taken_at, ends_at = excluded.ends_at, leases = excluded.leases, \
                 entries = excluded.entries WHERE old.ends_at <= excluded.taken_at AND old.format = 1 AND \
                 old.fencing_token < $6 RETURNING *) {}",
                digits("now + $4"),
                rest("taken"),
            ),
            touch: format!(
                "WITH {NOW}, touched AS (UPDATE {table} SET version = version + 1, ends_at = greatest(ends_at, now + $3), \
                 leases = overlay(leases PLACING {} FROM position($2 IN leases) + length($2)) FROM now WHERE name = $1 \
                 AND format = 1 AND position($2 IN leases) > 0 AND substr(leases, position($2 IN leases) + length($2), \
                 {LEASE_DIGITS}) COLLATE \"C\" > {} RETURNING {table}.*) {}",
                digits("now + $3"),
                digits("now"),
                rest("touched"),
            ),
            insert: format!(
                "WITH {NOW}, swapped AS (INSERT INTO {table} (name, format, version, fencing_token, ticket, taken_at, \
                 ends_at, leases, entries, success, outcomes) SELECT $1, 1, now, $2, $3, 0, $4, $5, $6, $7, $8 FROM now \
                 ON CONFLICT DO NOTHING RETURNING version) {notify}"
            ),
            swap: format!(
                "WITH swapped AS (UPDATE {table} SET version = version + 1, fencing_token = $2, ticket = $3, ends_at = \
                 $4, leases = $5, entries = $6, success = $7, outcomes = $8 WHERE name = $1 AND version = $11 AND \
                 format = 1 RETURNING version) {notify}"
            ),
            used: format!("WITH {NOW} SELECT name FROM now, {table} WHERE ends_at > now ORDER BY name"),
            recorded: format!("SELECT name FROM {table} WHERE outcomes <> '[]' ORDER BY name"),
        }
    }
}

/// Returns a number as the server stores it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The time, the serving process, and the row, if there is one.
pub(super) type Reading = (u64, i32, Option<Row>);

/// Reads what the statements return of a row.
pub(super) fn reading(record: &Record) -> Result<Reading, tokio_postgres::Error> {
    let number = |column: usize| record.try_get::<_, Option<i64>>(column).map(Option::unwrap_or_default);
    let text = |column: usize| record.try_get::<_, Option<String>>(column);
    let unsigned = |number: i64| u64::try_from(number).unwrap_or_default();
    let (now, process) = (unsigned(number(0)?), record.try_get(1)?);
    let Some(format) = record.try_get::<_, Option<i32>>(2)? else { return Ok((now, process, None)) };
    let row = Row {
        format: u32::try_from(format).unwrap_or_default(),
        version: unsigned(number(3)?),
        fencing_token: unsigned(number(4)?),
        ticket: unsigned(number(5)?),
        taken_at: unsigned(number(6)?),
        leases: text(7)?.unwrap_or_default(),
        entries: text(8)?.unwrap_or_default(),
        success: text(9)?,
        outcomes: text(10)?.unwrap_or_default(),
    };
    Ok((now, process, Some(row)))
}
