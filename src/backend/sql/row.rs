//! The row of a lock in a table, for the stores that speak SQL: one row per lock, with its ledger in columns. All times are
//! microseconds since 1970, by the clock of the server.
//!
//! What one statement changes without a decision (see [`Shortcut`](crate::backend::ledger::document::Shortcut)) has columns of its
//! own, so that no statement has to take JSON apart: the counters, the end of the last entry, and the leases, which are
//! texts of a fixed width.

use std::collections::HashMap;
use std::time::Duration;

use crate::backend::StoreError;
use crate::backend::ledger::document::Seen;
use crate::backend::ledger::{HolderEntry, Ledger, Now, Occupant, Unreadable};
use crate::clock::Moment;
use crate::lock::{Freeze, LockName};

/// The default name of the table.
pub const TABLE: &str = "dlock_locks";

/// The columns that are read, in the order of the fields of [`Row`].
pub const COLUMNS: &str =
    "format, version, fencing_token, ticket, taken_at, leases, entries, success, outcomes";

/// The digits of the end of a lease in a text, ...
pub const LEASE_DIGITS: usize = 17;
/// ... and the latest one, for an entry without a lease.
const NEVER: u64 = 99_999_999_999_999_999;

/// Returns the statement that creates the table, which has to be quoted already, with the types of names (up to 200
/// bytes, compared as bytes) and of long texts, with more columns, each after a comma, and with the end of the statement.
pub fn create_table(table: &str, name_type: &str, text_type: &str, more: &str, end: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (name {name_type} NOT NULL PRIMARY KEY, format integer NOT NULL, version \
         bigint NOT NULL, fencing_token bigint NOT NULL, ticket bigint NOT NULL, taken_at bigint NOT NULL, ends_at bigint \
         NOT NULL, leases {text_type} NOT NULL, entries {text_type} NOT NULL, success {text_type}, outcomes {text_type} \
         NOT NULL{more}){end}"
    )
}

/// Returns the time that the server's clock shows.
pub fn now(micros: u64) -> Now {
    Now { clock: Duration::from_micros(micros), wall: micros }
}

/// Returns what a row, or that there is none, says of a lock, read at this time of the server's clock by a request sent then.
///
/// # Errors
/// The row is in another format, or damaged.
pub fn seen(
    name: &LockName,
    row: Option<Row>,
    micros: u64,
    sent: Moment,
    occupants: Option<Vec<Occupant>>,
) -> Result<Seen<u64>, StoreError> {
    let (ledger, version) = match row {
        None => (Ledger::default(), 0),
        Some(row) => {
            let unreadable = |why| StoreError::Config(format!("{name}: {why}"));
            (row.ledger().map_err(unreadable)?, row.version)
        }
    };
    Ok(Seen { ledger, version, now: now(micros), sent, occupants })
}

/// A row as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The format number of its texts.
    pub format: u32,
    /// The server's clock when it was inserted, and one more for every change since.
    pub version: u64,
    /// The last fencing token granted.
    pub fencing_token: u64,
    /// The last ticket assigned.
    pub ticket: u64,
    /// When the lock was taken in one step the last time.
    pub taken_at: u64,
    /// For each entry with a lease `;`, its token, `=`, and the end of the lease in 17 digits. They override those in the
    /// entries.
    pub leases: String,
    /// The ledger in JSON, without the other columns. A holder that was acquired at 0 was stored in one step: its ticket
    /// and its fencing token are those of the row, and its times count from `taken_at`.
    pub entries: String,
    /// The last success of a run with `--once-per`, in JSON.
    pub success: Option<String>,
    /// The history, in JSON.
    pub history: String,
}

impl Row {
    /// Returns the ledger.
    ///
    /// # Errors
    /// It is in another format, or damaged.
    pub fn ledger(&self) -> Result<Ledger, Unreadable> {
        Ledger::check_format(self.format)?;
        let mut ledger = Ledger::parse(self.entries.as_bytes())?;
        let damaged = |_| Unreadable::Damaged;
        (ledger.fencing_token, ledger.ticket) = (self.fencing_token, self.ticket);
        ledger.success = self.success.as_deref().map(serde_json::from_str).transpose().map_err(damaged)?;
        ledger.history = serde_json::from_str(&self.history).map_err(damaged)?;
        for holder in ledger.holders.iter_mut().filter(|holder| holder.acquired_at == 0) {
            *holder = holder.taken(self.ticket, self.fencing_token, now(self.taken_at));
        }
        let leases: HashMap<&str, Duration> = self.leases.split(';').filter_map(lease).collect();
        for holder in &mut ledger.holders {
            holder.lease_ends = leases.get(holder.token.as_str()).copied().or(holder.lease_ends);
        }
        for waiter in &mut ledger.waiters {
            waiter.lease_ends = leases.get(waiter.token.as_str()).copied().or(waiter.lease_ends);
        }
        Ok(ledger)
    }
}

fn lease(text: &str) -> Option<(&str, Duration)> {
    let (token, ends) = text.split_once('=')?;
    Some((token, Duration::from_micros(ends.parse().ok()?)))
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(NEVER).min(NEVER)
}

/// Returns what precedes the digits of the lease of the entry with this token.
pub fn lease_key(token: &str) -> String {
    format!(";{token}=")
}

/// What is stored of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    /// See [`Row`].
    pub fencing_token: u64,
    /// See [`Row`].
    pub ticket: u64,
    /// When the lease of its last entry ends, and the freeze: until then nobody takes the lock in one step.
    pub ends_at: u64,
    /// See [`Row`].
    pub leases: String,
    /// See [`Row`].
    pub entries: String,
    /// See [`Row`].
    pub success: Option<String>,
    /// See [`Row`].
    pub history: String,
}

impl Values {
    /// Returns what is stored of this ledger.
    pub fn of(ledger: &Ledger) -> Values {
        let holders = ledger.holders.iter().map(|holder| {
            (
                &holder.token,
                holder.lease_ends,
                holder.lease_ends.and_then(|ends| holder.kept_until.map(|kept| kept.max(ends))),
            )
        });
        let end_of_freeze =
            |freeze: &Freeze| freeze.until.map_or(NEVER, |until| micros(Duration::from_millis(until)));
        let mut ends_at = ledger.freeze().map_or(0, end_of_freeze);
        let mut leases = String::new();
        let waiters = ledger.waiters.iter().map(|waiter| (&waiter.token, waiter.lease_ends, None));
        for (token, ends, kept) in holders.chain(waiters) {
            ends_at = ends_at.max(kept.or(ends).map_or(NEVER, micros));
            if let Some(ends) = ends.filter(|_| token.bytes().all(|byte| byte.is_ascii_alphanumeric())) {
                leases.push_str(&lease_key(token));
                leases.push_str(&format!("{:0LEASE_DIGITS$}", micros(ends)));
            }
        }
        let mut entries = ledger.clone();
        (entries.success, entries.history) = (None, Vec::new());
        Values {
            fencing_token: ledger.fencing_token,
            ticket: ledger.ticket,
            ends_at,
            leases,
            entries: text(entries.to_json()),
            success: ledger.success.as_ref().map(serde_json::Value::to_string),
            history: serde_json::to_string(&ledger.history).expect("texts and numbers are JSON"),
        }
    }
}

fn text(json: Vec<u8>) -> String {
    String::from_utf8(json).expect("JSON is UTF-8")
}

/// A holder that is stored in one step, by a statement that fills in what the row knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The entries of the row.
    pub entries: String,
    /// What precedes the digits in its leases, ...
    pub lease_key: String,
    /// ... and how long the lease lasts, in microseconds.
    pub lease: u64,
    /// How long the entry lasts: as long as its lease, or longer. Likewise.
    pub lasts: u64,
}

impl Taken {
    /// Returns what is stored of the holder in a shortcut.
    pub fn of(holder: &HolderEntry) -> Taken {
        let mut ledger = Ledger::default();
        ledger.holders.push(HolderEntry { acquired_at: 0, ..holder.clone() });
        let lease = micros(holder.lease_ends.unwrap_or_default());
        Taken {
            entries: text(ledger.to_json()),
            lease_key: lease_key(&holder.token),
            lease,
            lasts: lease.max(micros(holder.kept_until.unwrap_or_default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ledger::decide;
    use crate::backend::ledger::document::Shortcut;
    use crate::backend::{Ending, Intent};
    use crate::lock::{Claim, LockName, Mode, Record, Token};

    const NOW: u64 = 1_769_824_800_123_456;

    fn claim(token: &str) -> Claim {
        let ttl = Duration::from_secs(30);
        Claim::new(LockName::new("x").expect("a name"), Token::from_text(token), ttl)
    }

    fn row(values: Values) -> Row {
        let Values { fencing_token, ticket, leases, entries, success, history, .. } = values;
        Row { format: 1, version: 1, fencing_token, ticket, taken_at: 0, leases, entries, success, history }
    }

    #[test]
    fn a_ledger_is_read_back() {
        let mut ledger = Ledger::default();
        let shared = |token| Claim { mode: Mode::Shared, ..claim(token) };
        decide::claim(&mut ledger, &now(NOW), &shared("a"), Intent::TakeNow);
        decide::claim(&mut ledger, &now(NOW + 1_000_000), &shared("b"), Intent::TakeNow);
        decide::claim(&mut ledger, &now(NOW + 2_000_000), &claim("c"), Intent::Enqueue);
        let record = Record::default();
        let ending = Ending { success: Some(Duration::ZERO), ..Ending::with_record(Some(&record)) };
        decide::release(&mut ledger, &now(NOW + 3_000_000), &shared("a"), Duration::ZERO, ending);
        let values = Values::of(&ledger);
        // A waiter's entry lives for one and a half leases.
        assert_eq!(values.ends_at, NOW + 47_000_000);
        assert_eq!(values.leases, ";b=01769824831123456;c=01769824847123456");
        assert!(values.success.is_some() && values.history.len() > 2);
        assert_eq!(row(values.clone()).ledger(), Ok(ledger.clone()));
        // As a statement extends it.
        let mut touched = row(values);
        touched.leases = ";b=01769824831123456;c=01769824869999999".to_owned();
        ledger.waiters[0].lease_ends = Some(Duration::from_micros(1_769_824_869_999_999));
        assert_eq!(touched.ledger(), Ok(ledger));
    }

    #[test]
    fn a_holder_that_was_stored_in_one_step_is_completed() {
        let mut before = Ledger::default();
        (before.fencing_token, before.ticket) = (NOW + 7, 3);
        let kept = Claim { min_hold: Duration::from_secs(60), ..claim("a") };
        let taken = Shortcut::of::<(), _>(
            &crate::backend::ledger::Purpose::Claim(kept.clone()),
            None,
            &|ledger, observed| decide::claim(ledger, observed, &kept, Intent::TakeNow),
        );
        let Shortcut::TakeIfIdle(holder) = &taken else { panic!("{taken:?}") };
        let Taken { entries, lease_key, lease, lasts } = Taken::of(holder);
        assert_eq!((lease_key.as_str(), lease, lasts), (";a=", 60_000_000, 60_000_000));
        let row = Row {
            format: 1,
            version: 2,
            fencing_token: NOW + 8,
            ticket: NOW,
            taken_at: NOW,
            leases: format!("{lease_key}{:017}", NOW + lease),
            entries,
            success: None,
            history: "[]".to_owned(),
        };
        let mut expected = before;
        taken.apply(&mut expected, now(NOW));
        assert_eq!(row.ledger(), Ok(expected));
    }

    #[test]
    fn a_row_in_another_format_is_refused() {
        let row = row(Values::of(&Ledger::default()));
        assert_eq!(row.ledger(), Ok(Ledger::default()));
        assert_eq!(Row { format: 2, ..row.clone() }.ledger(), Err(Unreadable::OtherFormat(2)));
        assert_eq!(Row { entries: "x".into(), ..row.clone() }.ledger(), Err(Unreadable::Damaged));
        assert_eq!(Row { history: "x".into(), ..row }.ledger(), Err(Unreadable::Damaged));
    }
}
