//! The ledger of a lock, as stored.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::backend::admin::Listed;
use crate::lock::{Claim, Freeze, Identity, LockName, Mode, NotedRecord, Revocation};

/// What a store keeps of one lock. Its form as JSON is a stored format: fields are only added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    format: u32,
    /// The last fencing token granted.
    pub fencing_token: u64,
    /// The last ticket assigned.
    #[serde(default)]
    pub ticket: u64,
    /// The holders of the lock, in the order of their grants.
    #[serde(default, rename = "members", deserialize_with = "entries")]
    pub holders: Vec<HolderEntry>,
    /// The waiters, in order.
    #[serde(default, rename = "line", deserialize_with = "entries")]
    pub waiters: Vec<WaiterEntry>,
    /// The name of the lock, if the key of the ledger does not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The ledger was lost while the lock was held: it may lack some of the holders.
    #[serde(default, rename = "lost", skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// The last success of a run with `--once-per`. Kept as it is by runs without the option, whatever its format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<serde_json::Value>,
    /// See [`Ledger::freeze`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    freeze: Option<Box<Freeze>>,
    /// The records of the last runs, the latest last; empty if the store keeps them elsewhere.
    #[serde(default, rename = "outcomes", skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<NotedRecord>,
}

/// A holder of the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderEntry {
    /// A number that is unique among all past and present holders, and among all past and present waiters.
    pub ticket: u64,
    /// The ticket of the holder that took the lock; for a nested holder, that of the outer hold.
    pub family: u64,
    /// Proves ownership.
    pub token: String,
    /// The mode of the hold; nested holders share it.
    pub mode: Mode,
    /// The slot of a semaphore.
    pub slot: Option<u32>,
    /// The fencing token of the hold.
    pub fencing_token: u64,
    /// The gate that the holder has passed, if the store has one: for files, device and inode of the lock file; elsewhere,
    /// what identifies the holder in it, such as its session.
    #[serde(default, rename = "file", skip_serializing_if = "Option::is_none")]
    pub gate: Option<(u64, u64)>,
    /// In microseconds since 1970.
    pub acquired_at: u64,
    /// When its command ended, if the lock is then kept by `--min-hold`; in microseconds since 1970.
    pub ended_at: Option<u64>,
    /// The lock is kept until then even without its owner, on the clock of [`Now::clock`](super::Now::clock).
    pub kept_until: Option<Duration>,
    /// When its lease ends, on the clock of [`Now::clock`](super::Now::clock); `None` if it lives as long as its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ends: Option<Duration>,
    /// The length of the lease that it requested last; `None` without a lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Duration>,
    /// The request to end the hold, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
    /// The owner.
    pub identity: Identity,
}

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterEntry {
    /// A number that is unique among all past and present waiters.
    pub ticket: u64,
    /// Identifies the claim; empty if a dlock that did not know this field has rewritten the ledger.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// The requested mode.
    pub mode: Mode,
    /// In microseconds since 1970.
    pub since: u64,
    /// When it was called to claim the lock, on the clock of [`Now::clock`](super::Now::clock).
    #[serde(rename = "turn")]
    pub called: Option<Duration>,
    /// When its entry expires unless it is repeated; `None` if it lives as long as its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ends: Option<Duration>,
    /// The owner.
    pub identity: Identity,
}

impl HolderEntry {
    /// Returns the owner, unless it is a foreign client.
    pub fn identity(&self) -> Option<&Identity> {
        (!self.token.is_empty()).then_some(&self.identity)
    }
}

impl WaiterEntry {
    /// Returns the owner, unless it is a foreign client.
    pub fn identity(&self) -> Option<&Identity> {
        (self.identity != Identity::default()).then_some(&self.identity)
    }
}

/// Why a stored ledger cannot be used. It must not be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It has another format number.
    #[error("written by another dlock (format {0}, known: {known})", known = Ledger::KNOWN_FORMATS)]
    OtherFormat(u32),
    /// It is not a ledger.
    #[error("not written by dlock, or damaged")]
    Damaged,
    /// It is longer than [`Ledger::LONGEST`].
    #[error("larger than dlock writes it ({} MiB)", Ledger::LONGEST >> 20)]
    TooLong,
}

/// Reads the holders or the waiters, up to [`Ledger::MOST_ENTRIES`].
fn entries<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Entries<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "up to {} entries", Ledger::MOST_ENTRIES)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
            let mut read = Vec::new();
            while let Some(entry) = entries.next_element()? {
                if read.len() == Ledger::MOST_ENTRIES {
                    return Err(de::Error::invalid_length(read.len() + 1, &self));
                }
                read.push(entry);
            }
            Ok(read)
        }
    }
    deserializer.deserialize_seq(Entries(PhantomData))
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            format: Ledger::FORMAT,
            fencing_token: 0,
            ticket: 0,
            holders: Vec::new(),
            waiters: Vec::new(),
            name: None,
            incomplete: false,
            success: None,
            freeze: None,
            history: Vec::new(),
        }
    }
}

impl Ledger {
    /// The format number of a ledger, ...
    pub const FORMAT: u32 = 1;
    /// ... and of one with a freeze: a dlock that does not know of freezes must not grant the lock.
    const FROZEN_FORMAT: u32 = 2;
    const KNOWN_FORMATS: &str = "1 and 2";
    /// The maximum length of a stored ledger in bytes: that of a reply of MySQL, for about 10,000 holders and waiters; no
    /// other store accepts or returns more of one lock.
    pub const LONGEST: usize = 6 << 20;
    /// The maximum number of holders, and of waiters: more than fit into this length, unless most of their fields are
    /// empty. The memory that they take is then a small multiple of it.
    const MOST_ENTRIES: usize = 20_000;

    /// Checks the format number of what a store keeps beside a ledger.
    ///
    /// # Errors
    /// It is another one.
    pub fn check_format(format: u32) -> Result<(), Unreadable> {
        if format == Ledger::FORMAT { Ok(()) } else { Err(Unreadable::OtherFormat(format)) }
    }

    /// Returns the freeze that was stored last: perhaps it has ended.
    pub fn freeze(&self) -> Option<&Freeze> {
        self.freeze.as_deref()
    }

    /// Sets the freeze, and with it the format number.
    pub fn set_freeze(&mut self, freeze: Option<Freeze>) {
        self.format = if freeze.is_some() { Ledger::FROZEN_FORMAT } else { Ledger::FORMAT };
        self.freeze = freeze.map(Box::new);
    }

    /// Reads a ledger that was stored as JSON.
    ///
    /// # Errors
    /// It is in another format, which this dlock must not guess, or larger than any that dlock writes.
    pub fn parse(text: &[u8]) -> Result<Ledger, Unreadable> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let is_known = |format: u32| [Ledger::FORMAT, Ledger::FROZEN_FORMAT].contains(&format);
        if text.len() > Ledger::LONGEST {
            return Err(Unreadable::TooLong);
        }
        match serde_json::from_slice::<Ledger>(text) {
            Ok(ledger) if is_known(ledger.format) => Ok(ledger),
            _ => match serde_json::from_slice::<Format>(text) {
                Ok(Format { format }) if !is_known(format) => Err(Unreadable::OtherFormat(format)),
                _ => Err(Unreadable::Damaged),
            },
        }
    }

    /// Returns the ledger as it is stored.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are JSON")
    }

    /// Returns what is to be stored: with the name of its lock, which the key of such a lock does not contain.
    pub fn with_name(&self, name: &LockName) -> Ledger {
        Ledger { name: Some(name.to_string()), ..self.clone() }
    }

    /// Returns the name of its lock, if it was stored [with it](Ledger::with_name).
    pub fn lock_name(&self) -> Option<LockName> {
        LockName::new(self.name.as_deref()?).ok()
    }

    /// Returns the entry of a foreign client that holds the lock exclusively since this time, in microseconds since 1970;
    /// 0 if that is unknown. It has no token.
    pub fn of_foreign_holder(acquired_at: u64) -> Ledger {
        let holder = HolderEntry {
            ticket: 0,
            family: 0,
            token: String::new(),
            mode: Mode::Exclusive,
            slot: None,
            fencing_token: 0,
            gate: None,
            acquired_at,
            ended_at: None,
            kept_until: None,
            lease_ends: None,
            lease: None,
            revoked: None,
            identity: Identity::default(),
        };
        Ledger { holders: vec![holder], ..Ledger::default() }
    }

    /// Returns the entry of a foreign client that waits since this time to hold the lock exclusively, likewise.
    pub fn of_foreign_waiter(since: u64) -> Ledger {
        let waiter = WaiterEntry {
            ticket: 0,
            token: String::new(),
            mode: Mode::Exclusive,
            since,
            called: None,
            lease_ends: None,
            identity: Identity::default(),
        };
        Ledger { waiters: vec![waiter], ..Ledger::default() }
    }

    /// Returns how many holds are kept for the rest of their minimum time.
    pub fn kept(&self) -> usize {
        self.holders.iter().filter(|holder| holder.ended_at.is_some()).count()
    }

    /// Returns the hold of a claim, even if its lease has ended.
    pub fn hold_of(&self, claim: &Claim) -> Option<&HolderEntry> {
        self.holders.iter().find(|holder| holder.token == claim.token.reveal())
    }

    /// The same, to be changed.
    pub(super) fn hold_of_mut(&mut self, claim: &Claim) -> Option<&mut HolderEntry> {
        self.holders.iter_mut().find(|holder| holder.token == claim.token.reveal())
    }

    /// Has the hold of a claim stored, although nothing else has changed in it: whoever knows the version before changes nothing
    /// any more.
    pub(super) fn renew_version(&mut self, claim: &Claim) {
        if let Some(mine) = self.hold_of_mut(claim) {
            mine.acquired_at += 1;
        }
    }

    /// Returns the position of the waiter with this token.
    pub(super) fn position_of(&self, token: &str) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.token == token)
    }

    /// Returns whether it has neither holders nor waiters, and no freeze.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.freeze.is_none()
    }

    /// Returns whether its lock is one of these.
    pub fn is_listed(&self, which: Listed) -> bool {
        match which {
            Listed::InUse => !self.is_idle(),
            Listed::WithHistory => !self.history.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_of_another_format_is_refused() {
        let text = serde_json::to_vec(&Ledger::default()).expect("JSON");
        assert_eq!(Ledger::parse(&text), Ok(Ledger::default()));
        assert_eq!(
            Ledger::parse(br#"{"format":1,"fencing_token":7}"#).map(|ledger| ledger.fencing_token),
            Ok(7)
        );
        assert_eq!(Ledger::parse(br#"{"format":3,"fencing_token":7}"#), Err(Unreadable::OtherFormat(3)));
        assert_eq!(Ledger::parse(br#"{"format":3,"other":7}"#), Err(Unreadable::OtherFormat(3)));
        for damaged in [&br#"{"format":1}"#[..], b"{", b"", b"[]"] {
            assert_eq!(Ledger::parse(damaged), Err(Unreadable::Damaged));
        }
    }

    /// A hostile server, or whoever may write to the store, must not make dlock take any amount of memory.
    #[test]
    fn a_ledger_that_is_too_large_is_refused() {
        let of_waiters = |count: usize| {
            let waiters = vec![Ledger::of_foreign_waiter(1).waiters.remove(0); count];
            Ledger { waiters, ..Ledger::default() }.to_json()
        };
        let read = |text: &[u8]| Ledger::parse(text).map(|ledger| ledger.waiters.len());
        assert_eq!(read(&of_waiters(Ledger::MOST_ENTRIES)), Ok(Ledger::MOST_ENTRIES));
        assert_eq!(read(&of_waiters(Ledger::MOST_ENTRIES + 1)), Err(Unreadable::Damaged));
        let padded = |length: usize| {
            let mut text = Ledger::default().to_json();
            text.resize(length, b' ');
            text
        };
        assert_eq!(read(&padded(Ledger::LONGEST)), Ok(0));
        assert_eq!(read(&padded(Ledger::LONGEST + 1)), Err(Unreadable::TooLong));
    }
}
