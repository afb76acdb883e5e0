//! The item of a lock: its ledger, which is stored until its last entry ends.
//!
//! Its times are on the server's clock, or all of them count from when it was stored: those of a ledger that one request
//! stores without asking for the time.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::client::EARLIEST;
use super::reply::Item;
use crate::backend::StoreError;
use crate::backend::ledger::Ledger;
use crate::backend::ledger::waiting::calls;

/// What the value of a lock begins with. Anything else is the item of another program, or of a dlock before format 1 of
/// [`Ledger`] was stored here.
const LEDGER: &[u8] = br#"{"format":"#;

/// Returns the request that reads an item.
pub(super) fn get(key: &str) -> String {
    format!("mg {key} c f t v\r\n")
}

/// Returns the flags of an item: a hash of what concerns waiters. As long as it is the same, they need not read the
/// ledger again; another ledger has the same one by chance only.
fn mark(ledger: &Ledger) -> u64 {
    let mut hasher = DefaultHasher::new();
    calls(ledger).hash(&mut hasher);
    hasher.finish() >> 32
}

/// Returns the second in which the last entry of a ledger ends, and its freeze; 0 if that does not end.
fn expiry(ledger: &Ledger) -> u64 {
    let freeze = match ledger.freeze().map(|freeze| freeze.until) {
        Some(None) => return 0,
        Some(Some(until)) => Some(Duration::from_millis(until)),
        None => None,
    };
    let holders = ledger.holders.iter().map(|holder| holder.lease_ends.max(holder.kept_until));
    let waiters = ledger.waiters.iter().map(|waiter| waiter.lease_ends);
    let ends = holders.chain(waiters).chain([freeze]).flatten().max().unwrap_or_default();
    ends.as_secs().saturating_add(u64::from(ends.subsec_nanos() > 0))
}

/// Changes the ends of all entries.
pub(super) fn shift(ledger: &mut Ledger, shifted: impl Fn(Duration) -> Duration) {
    let holders =
        ledger.holders.iter_mut().flat_map(|holder| [&mut holder.lease_ends, &mut holder.kept_until]);
    for end in holders.chain(ledger.waiters.iter_mut().map(|waiter| &mut waiter.lease_ends)) {
        *end = end.map(&shifted);
    }
}

/// Returns the request that stores a ledger until its last entry ends. To the server a small number is a time from now.
pub(super) fn set(key: &str, flag: &str, ledger: &Ledger) -> String {
    let expiry = expiry(ledger);
    let value = String::from_utf8(ledger.to_json()).expect("JSON is UTF-8");
    format!("ms {key} {} {flag} F{} T{expiry} c\r\n{value}\r\n", value.len(), mark(ledger))
}

/// Returns a time that a server has told, which may be any number.
fn seconds(number: u64) -> Duration {
    Duration::from_secs(number.min(u64::from(u32::MAX)))
}

/// Returns whether it is the item of another program.
pub(super) fn is_foreign(item: &Item) -> bool {
    !item.value.starts_with(LEDGER)
}

/// Returns the ledger in an item, or the hold of another program.
pub(super) fn ledger(item: &Item, now: Duration) -> Result<Ledger, StoreError> {
    if !is_foreign(item) {
        let unreadable = |why| StoreError::Config(format!("its item was {why}"));
        let mut ledger = Ledger::parse(&item.value).map_err(unreadable)?;
        let ends = expiry(&ledger);
        if Duration::from_secs(ends) < EARLIEST && ledger.freeze().is_none() {
            // It was stored for a time from then. An item without expiry was touched by another program: it never ends.
            let left = if item.remaining > 0 { item.remaining } else { ends };
            let then = (now + seconds(left)).saturating_sub(seconds(ends));
            shift(&mut ledger, |end| then.saturating_add(end));
        }
        return Ok(ledger);
    }
    let mut ledger = Ledger::of_foreign_holder(0);
    ledger.holders[0].ticket = item.cas;
    ledger.holders[0].lease_ends = (item.remaining > 0).then(|| now + seconds(item.remaining));
    Ok(ledger)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(ledger: &Ledger, remaining: u64) -> Item {
        Item { value: ledger.to_json(), remaining, ..Item::default() }
    }

    #[test]
    fn times_that_count_from_the_storing_are_those_of_the_item() {
        let now = Duration::from_secs(1_769_824_800);
        let mut stored = Ledger::of_foreign_holder(0);
        stored.holders[0].lease_ends = Some(Duration::from_millis(5500));
        assert_eq!(expiry(&stored), 6);
        let ends =
            |remaining| ledger(&item(&stored, remaining), now).map(|ledger| ledger.holders[0].lease_ends);
        assert_eq!(ends(6), Ok(Some(now + Duration::from_millis(5500))));
        assert_eq!(ends(2), Ok(Some(now + Duration::from_millis(1500))));
        assert_eq!(ends(0), Ok(Some(now + Duration::from_millis(5500))), "it does not expire");
        shift(&mut stored, |end| now + end);
        for remaining in [6, 2, 0] {
            assert_eq!(ledger(&item(&stored, remaining), now).as_ref(), Ok(&stored));
        }
    }
}
