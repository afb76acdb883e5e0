//! The keys of advisory locks, which are numbers: each library has a rule of its own for how a name becomes one.

use sha1::{Digest, Sha1};

use crate::backend::options::Options;
use crate::backend::url::UrlError;
use crate::lock::LockName;

/// How a name becomes a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rule {
    /// The name is the number.
    Raw,
    /// The name is two numbers, `a,b`.
    Pair,
    /// As the gem `with_advisory_lock` does it, with the number in `WITH_ADVISORY_LOCK_PREFIX`.
    Rails(i64),
    /// What the server's function `hashtext` returns.
    HashText,
    /// As DistributedLock's `PostgresAdvisoryLockKey(name, allowHashing: true)` does it. The default: it takes every name,
    /// and different names hardly ever have the same of its 64 bits.
    #[default]
    Medallion,
}

/// An advisory lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Number(i64),
    Pair(i32, i32),
}

impl Rule {
    /// By the names that the option has for them.
    pub(super) const ALL: [(&str, Rule); 5] = [
        ("raw", Rule::Raw),
        ("pair", Rule::Pair),
        ("rails", Rule::Rails(0)),
        ("hashtext", Rule::HashText),
        ("medallion", Rule::Medallion),
    ];

    /// Returns the rule that the options `key` and `prefix` name.
    ///
    /// # Errors
    /// The rule has no prefix, or the number is too large.
    pub(super) fn of(options: &mut Options) -> Result<Rule, UrlError> {
        let rule = options.word("key", &Rule::ALL);
        if let Rule::Rails(_) = rule {
            return options.number("prefix").map(Rule::Rails);
        }
        options.reject(&["prefix"], |_| "prefix= is for key=rails".into()).map(|()| rule)
    }

    /// Returns the key of a name; `None` if only the server knows it.
    ///
    /// # Errors
    /// The name does not fit.
    pub(super) fn key(self, name: &LockName) -> Result<Option<Key>, UrlError> {
        let name = name.as_str();
        let key = match self {
            Rule::HashText => return Ok(None),
            Rule::Raw => number(name).map(Key::Number).ok_or_else(|| {
                UrlError::new("with key=raw a name is a number from -2^63 to 2^63-1, such as 4711")
            })?,
            Rule::Pair => pair(name).ok_or_else(|| {
                UrlError::new("with key=pair a name is two numbers from -2^31 to 2^31-1, such as 47,11")
            })?,
            Rule::Rails(prefix) => {
                Key::Pair((crc32(name.as_bytes()) & POSITIVE) as i32, prefix as i32 & i32::MAX)
            }
            Rule::Medallion => medallion(name),
        };
        Ok(Some(key))
    }
}

const POSITIVE: u32 = 0x7fff_ffff;

/// Reads a number that is written in the usual way: a lock has one name.
fn number<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number: &T| number.to_string() == text)
}

fn pair(text: &str) -> Option<Key> {
    let (first, second) = text.split_once(',')?;
    Some(Key::Pair(number(first)?, number(second)?))
}

/// The checksum of zlib (RFC 1952, section 8).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

/// `DistributedLock.Postgres/PostgresAdvisoryLockKey.cs`: a short text in ASCII as a pair, 16 hexadecimal digits, a pair of
/// 8 each, or the beginning of the SHA-1 digest.
fn medallion(name: &str) -> Key {
    const LONGEST: usize = 9;
    if name.is_ascii() && name.len() <= LONGEST {
        let text = name.bytes().fold(0, |bits: u64, byte| bits << 7 | u64::from(byte));
        return Key::halves((name.len()..LONGEST).fold(text << 1, |bits, _| bits << 7 | 0x7f));
    }
    let digits = |text: &str, length| {
        let is_number = text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_number.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    if let Some(number) = digits(name, 16) {
        return Key::Number(number as i64);
    }
    let halves = name.split_once(',').and_then(|(high, low)| Some(digits(high, 8)? << 32 | digits(low, 8)?));
    halves.map_or_else(
        || {
            let digest = Sha1::digest(name.as_bytes());
            Key::Number(digest.iter().take(8).rev().fold(0, |number, byte| number << 8 | i64::from(*byte)))
        },
        Key::halves,
    )
}

impl Key {
    /// Splits a number into a pair.
    fn halves(bits: u64) -> Key {
        Key::Pair((bits >> 32) as i32, bits as i32)
    }

    /// Returns the arguments of the functions that lock and unlock.
    pub(super) fn arguments(self) -> String {
        match self {
            Key::Number(number) => format!("'{number}'::bigint"),
            Key::Pair(first, second) => format!("'{first}'::integer, '{second}'::integer"),
        }
    }

    /// Returns the condition for the rows of `pg_locks` (PostgreSQL manual, "pg_locks").
    pub(super) fn condition(self) -> String {
        let (high, low, kind) = match self {
            Key::Number(number) => ((number >> 32) as u32, number as u32, 1),
            Key::Pair(first, second) => (first as u32, second as u32, 2),
        };
        format!(
            "(classid OPERATOR(pg_catalog.=) '{high}'::pg_catalog.oid) AND (objid OPERATOR(pg_catalog.=) \
             '{low}'::pg_catalog.oid) AND (objsubid OPERATOR(pg_catalog.=) {kind})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::postgres::options::OPTIONS;
    use crate::backend::url::Url;

    fn key(rule: Rule, name: &str) -> Result<Option<Key>, UrlError> {
        rule.key(&LockName::new(name).expect("a name"))
    }

    #[test]
    fn names_are_numbers() {
        assert_eq!(key(Rule::Raw, "4711"), Ok(Some(Key::Number(4711))));
        assert_eq!(key(Rule::Raw, "-9223372036854775808"), Ok(Some(Key::Number(i64::MIN))));
        for name in ["9223372036854775808", "x", "1,2", "+1", "01", "-0", "1e3"] {
            assert!(key(Rule::Raw, name).is_err(), "{name}");
        }
        assert_eq!(key(Rule::Pair, "-1,2147483647"), Ok(Some(Key::Pair(-1, i32::MAX))));
        for name in ["1", "1,2147483648", "1,2,3", "1,", "1, 2", "01,2"] {
            assert!(key(Rule::Pair, name).is_err(), "{name}");
        }
    }

    /// Computed with Python's `zlib.crc32`.
    #[test]
    fn rails_takes_the_checksum() {
        for (name, expected) in
            [("nightly", 267_906_906), ("backup-database", 1_622_352_070), ("é", 235_179_326)]
        {
            assert_eq!(key(Rule::Rails(0), name), Ok(Some(Key::Pair(expected, 0))), "{name}");
        }
        assert_eq!(key(Rule::Rails(7), "nightly"), Ok(Some(Key::Pair(267_906_906, 7))));
        assert_eq!(key(Rule::Rails(-1), "nightly"), Ok(Some(Key::Pair(267_906_906, i32::MAX))));
    }

    /// Computed with Python's `hashlib.sha1`, and by hand.
    #[test]
    fn medallion_packs_short_names_and_hashes_long_ones() {
        for (name, expected) in [
            ("a", Key::Pair(-1_023_410_177, -1)),
            ("nightly", Key::Pair(-576_242_034, -1_690_517_505)),
            ("nightly-1", Key::Pair(-576_242_034, -1_690_522_270)),
            ("fedcba9876543210", Key::Number(-81_985_529_216_486_896)),
            ("FEDCBA98,76543210", Key::Pair(-19_088_744, 1_985_229_328)),
            ("backup-database", Key::Number(7_962_705_011_275_754_972)),
            ("é", Key::Number(-9_173_619_709_315_246_657)),
        ] {
            assert_eq!(key(Rule::Medallion, name), Ok(Some(expected)), "{name}");
        }
    }

    #[test]
    fn only_the_server_knows_hashtext() {
        assert_eq!(key(Rule::HashText, "nightly"), Ok(None));
    }

    #[test]
    fn keys_are_found_in_pg_locks() {
        let condition = |high, low, kind| {
            format!(
                "(classid OPERATOR(pg_catalog.=) '{high}'::pg_catalog.oid) AND (objid OPERATOR(pg_catalog.=) \
                 '{low}'::pg_catalog.oid) AND (objsubid OPERATOR(pg_catalog.=) {kind})"
            )
        };
        assert_eq!(Key::Number(-2).condition(), condition(4_294_967_295_u32, 4_294_967_294_u32, 1));
        assert_eq!(Key::Number(1 << 32 | 5).condition(), condition(1, 5, 1));
        assert_eq!(Key::Pair(-1, 7).condition(), condition(4_294_967_295, 7, 2));
    }

    #[test]
    fn rules_have_options() {
        let rule = |query: &str| {
            let url = Url::parse(&format!("postgres://h?{query}"))?;
            Rule::of(&mut Options::of(&url, OPTIONS)?)
        };
        assert_eq!(rule(""), Ok(Rule::Medallion));
        assert_eq!(rule("key=rails&prefix=12"), Ok(Rule::Rails(12)));
        for query in ["key=sha1", "key=raw&prefix=1", "key=rails&prefix=x"] {
            assert!(rule(query).is_err(), "{query}");
        }
    }
}
