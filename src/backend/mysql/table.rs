//! The table of locks, in SQL that MySQL and MariaDB have in common. Texts are written as hexadecimal literals: they mean
//! the same in every SQL mode and character set.

use std::time::Duration;

use super::reply;
use crate::backend::ledger::Ledger;
use crate::backend::sql::{LEASE_DIGITS, Row, TABLE, Taken, Values, create_table, lease_key};
use crate::lock::FencingToken;

/// The longest name of a lock, with its prefix.
pub(super) const LONGEST_NAME: usize = 512;
/// The server's clock, in microseconds since 1970. The same during a statement, and in every time zone.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
/// The server's clock at the beginning of a request. A shortcut and the reading behind it have it in common, so that the
/// decision on what was read finds the lease that it would write itself, and changes nothing.
///
/// It is earlier than the change when that has waited for the row: the lease then ends earlier, but not before it does
/// for its owner, who counts from the request. An entry whose lease has ended meanwhile is extended only if nobody else
/// was granted the lock, which would have removed it.
pub(super) const TIME: &str = "@dlock_time";

/// What waiters look at: the tickets of those that are called, separated by commas, a slash, and the next ticket.
const CALLS: &str = ", calls blob NOT NULL";

/// Returns the statement that creates the table.
pub(super) fn create() -> String {
    let name_type = format!("varbinary({LONGEST_NAME})");
    create_table(TABLE, &name_type, "mediumblob", CALLS, " ENGINE = InnoDB")
}

/// Returns the statement that takes a lock if no entry is alive. `ends_at` is changed last: the values of the others
/// depend on it, and are assigned in their order.
pub(super) fn take_if_idle(key: &str, taken: &Taken) -> String {
    let Taken { entries, lease_key, lease, lasts } = taken;
    let idle = format!(
        "format = {} AND ends_at <= {TIME} AND fencing_token + 1 < {}",
        Ledger::FORMAT,
        FencingToken::END
    );
    let leases = format!("CONCAT({}, LPAD({TIME} + {lease}, {LEASE_DIGITS}, '0'))", literal(lease_key));
    let set = |column: &str, value: &str| format!("{column} = IF({idle}, {value}, {column})");
    let changes = [
        set("version", "version + 1"),
        set("fencing_token", &format!("GREATEST(fencing_token + 1, {TIME})")),
        set("ticket", &format!("GREATEST(ticket + 1, {TIME})")),
        set("taken_at", TIME),
        set("leases", "VALUES(leases)"),
        set("entries", "VALUES(entries)"),
        set("calls", "VALUES(calls)"),
        set("ends_at", "VALUES(ends_at)"),
    ];
    format!(
        "INSERT INTO {TABLE} (name, format, version, fencing_token, ticket, taken_at, ends_at, leases, entries, outcomes, \
         calls) VALUES ({key}, {}, {TIME}, {TIME}, {TIME}, {TIME}, {TIME} + {lasts}, {leases}, {}, '[]', '/') ON DUPLICATE KEY \
         UPDATE {}; ",
        Ledger::FORMAT,
        literal(entries),
        changes.join(", ")
    )
}

/// Returns the statement that extends the lease of the entry with this token, if it is alive.
pub(super) fn touch(key: &str, token: &str, lease: Duration) -> String {
    let token = literal(lease_key(token));
    let at = format!("LOCATE({token}, leases) + OCTET_LENGTH({token})");
    let ends = format!("{TIME} + {}", lease.as_micros());
    let padded = |time: &str| format!("LPAD({time}, {LEASE_DIGITS}, '0')");
    format!(
        "UPDATE {TABLE} SET leases = INSERT(leases, {at}, {LEASE_DIGITS}, {}), ends_at = GREATEST(ends_at, {ends}), \
         version = version + 1 WHERE name = {key} AND format = {} AND LOCATE({token}, leases) > 0 AND SUBSTRING(leases, \
         {at}, {LEASE_DIGITS}) > {}; ",
        padded(&ends),
        Ledger::FORMAT,
        padded(TIME)
    )
}

/// Returns the statement that stores a ledger in a new row with this version.
pub(super) fn insert(key: &str, version: u64, values: &Values, calls: &str) -> String {
    let (columns, values): (Vec<_>, Vec<_>) = columns(values, calls).into_iter().unzip();
    let (columns, values) = (columns.join(", "), values.join(", "));
    format!(
        "INSERT INTO {TABLE} (name, format, version, {columns}) VALUES ({key}, {}, {version}, {values})",
        Ledger::FORMAT
    )
}

/// Returns the statement that stores a ledger in the row that has this version still; it then has the next one.
pub(super) fn update(key: &str, version: u64, values: &Values, calls: &str) -> String {
    let values = columns(values, calls).map(|(column, value)| format!("{column} = {value}")).join(", ");
    format!(
        "UPDATE {TABLE} SET version = version + 1, {values} WHERE name = {key} AND version = {version} AND format = {}",
        Ledger::FORMAT
    )
}

fn columns(values: &Values, calls: &str) -> [(&'static str, String); 9] {
    let success = values.success.as_ref().map_or("NULL".to_owned(), literal);
    [
        ("fencing_token", values.fencing_token.to_string()),
        ("ticket", values.ticket.to_string()),
        ("taken_at", "0".to_owned()),
        ("ends_at", values.ends_at.to_string()),
        ("leases", literal(&values.leases)),
        ("entries", literal(&values.entries)),
        ("success", success),
        ("outcomes", literal(&values.history)),
        ("calls", literal(calls)),
    ]
}

/// Returns the time, and the row of a lock if there is one.
pub(super) fn read_row(row: &reply::Row) -> Option<(u64, Option<Row>)> {
    let (text, number) = (|column| reply::text(row, column), |column| reply::number(row, column));
    let now = number(0)?;
    let Some(format) = number(1) else { return Some((now, None)) };
    let row = Row {
        format: u32::try_from(format).ok()?,
        version: number(2)?,
        fencing_token: number(3)?,
        ticket: number(4)?,
        taken_at: number(5)?,
        leases: text(6)?,
        entries: text(7)?,
        success: text(8),
        history: text(9)?,
    };
    Some((now, Some(row)))
}

/// Returns a text or other bytes as a literal.
pub(super) fn literal(bytes: impl AsRef<[u8]>) -> String {
    let mut literal = String::with_capacity(2 * bytes.as_ref().len() + 3);
    literal.push_str("x'");
    for byte in bytes.as_ref() {
        literal.extend(
            [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or_default()),
        );
    }
    literal.push('\'');
    literal
}

/// Returns an identifier in quotes.
pub(super) fn quoted(identifier: &str) -> String {
    format!("`{}`", identifier.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_literals() {
        assert_eq!(literal("a'\u{e9}\\"), "x'6127c3a95c'");
        assert_eq!(literal(""), "x''");
        assert_eq!(quoted("a`b"), "`a``b`");
    }
}
