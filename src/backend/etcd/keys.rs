//! The keys of a lock.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};

use crate::lock::LockName;

/// What the keys begin with that only dlock knows.
pub(super) const RESERVED: &str = "dlock#";
pub(super) const METADATA: &str = "dlock#beside/";
pub(super) const LAST: &str = "dlock#last/";
/// What ends the key of a freeze, in the place of a contender's lease.
const FREEZE: &str = "/dlock#frozen";
/// What ends a name in a key, and what marks an encoded character.
const ENCODED: &AsciiSet = &CONTROLS.add(b'/').add(b'%');

/// The keys of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// The prefix and the encoded name.
    base: String,
}

impl Keys {
    pub fn new(prefix: &str, name: &LockName) -> Keys {
        Keys { base: format!("{prefix}{}", utf8_percent_encode(name.as_str(), ENCODED)) }
    }

    /// Returns the beginning of the keys of all contenders, as `etcdctl lock` takes it, without the slash.
    pub fn lock(&self) -> &[u8] {
        self.base.as_bytes()
    }

    /// Returns the range of the keys of all contenders: the first key, and the first one after the last.
    pub fn range(&self) -> (Vec<u8>, Vec<u8>) {
        // '0' follows '/'.
        (format!("{}/", self.base).into_bytes(), format!("{}0", self.base).into_bytes())
    }

    /// Returns the key of a contender with this lease, as `etcdctl lock` forms it.
    pub fn contender(&self, lease: i64) -> Vec<u8> {
        format!("{}/{lease:x}", self.base).into_bytes()
    }

    /// Returns the key of a freeze. It has no owner, but the lease of the freeze. It stands among the contenders, so that no
    /// other one is alone, and later ones of other programs wait for its end.
    pub fn freeze(&self) -> Vec<u8> {
        format!("{}{FREEZE}", self.base).into_bytes()
    }

    /// Returns the key of the metadata.
    pub fn metadata(&self) -> Vec<u8> {
        format!("{METADATA}{}", self.base).into_bytes()
    }

    /// Returns the key that every grant writes: its revision is the last fencing token.
    pub fn last(&self) -> Vec<u8> {
        format!("{LAST}{}", self.base).into_bytes()
    }
}

/// Returns the range of the keys of all locks with this prefix.
pub(super) fn contenders(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    beginning_with(prefix.as_bytes())
}

/// Returns the range of the metadata of all locks with this prefix.
pub(super) fn documents(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    beginning_with(format!("{METADATA}{prefix}").as_bytes())
}

/// Returns the range of all keys with this beginning. Such a range ends before the next larger beginning of the same
/// length; without a beginning it has all keys, which etcd denotes by two zero bytes.
fn beginning_with(beginning: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut end = beginning.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return (beginning.to_vec(), end);
        }
    }
    (vec![0], vec![0])
}

/// Returns whether it is the key of a freeze.
pub(super) fn is_freeze(key: &[u8]) -> bool {
    key.ends_with(FREEZE.as_bytes())
}

/// Returns the name of the lock to which a key in one of these ranges belongs.
pub(super) fn name_in(key: &[u8], prefix: &str) -> Option<LockName> {
    let key = key.strip_prefix(METADATA.as_bytes()).unwrap_or(key);
    let name = key.strip_prefix(prefix.as_bytes())?.split(|byte| *byte == b'/').next()?;
    LockName::new(&percent_decode(name).decode_utf8().ok()?).ok()
}
