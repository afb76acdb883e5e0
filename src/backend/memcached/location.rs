//! The location of a Memcached server and the keys of its items, parsed from a URL without contacting the server.

use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::backend::net::{Address, COMMON, Security};
use crate::backend::options::Value::Text;
use crate::backend::options::{Options, Table, of_lock};
use crate::backend::url::{Environment, Url, UrlError};
use crate::hex;
use crate::lock::LockName;

const DEFAULT_PORT: u16 = 11211;
/// What the keys begin with that only dlock knows.
pub(super) const RESERVED: &str = "dlock#";
/// The longest key that a server accepts (`doc/protocol.txt`).
const LONGEST_KEY: usize = 250;
/// What cannot be part of a key, and what marks an encoded character.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');
/// A lease is longer by two seconds at the server; shorter ones would be mostly that.
pub(super) const SHORTEST_LEASE: Duration = Duration::from_secs(3);
const OPTIONS: Table = &[
    &[of_lock(
        "prefix",
        Text("dlock:"),
        "The prefix of the keys. If it is empty, the name is the exact key.",
    )],
    COMMON,
];

/// A server, and how to connect to it.
#[derive(Clone)]
pub struct Location {
    pub(super) server: Address,
    pub(super) security: Security,
    pub(super) prefix: String,
    pub(super) display: String,
}

impl Location {
    /// Returns the options of a URL.
    pub fn options(_: &str) -> Table {
        OPTIONS
    }

    /// Parses `memcached://[user:password@]host[:port]`, or `memcacheds://` for TLS.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, _: Environment<'_>) -> Result<Location, UrlError> {
        let scheme = url.scheme.as_str();
        let [host] = url.hosts.as_slice() else {
            return Err(UrlError::new(format!(
                "{scheme}:// takes one server, such as {scheme}://h1: clients that know different lists of servers would \
                 not exclude each other"
            )));
        };
        if !url.path.trim_matches('/').is_empty() {
            return Err(UrlError::new(format!(
                "{scheme}:// has no path: set the prefix of keys with prefix="
            )));
        }
        let options = Options::of(url, OPTIONS)?;
        let security = Security::of_scheme(url, &options, ["memcached", "memcacheds"])?;
        security.credentials.check_username("Memcached")?;
        let server = Address::of(host, DEFAULT_PORT);
        let display = format!("{scheme}://{}{server}{}", security.credentials.in_url(), options.query());
        Ok(Location { server, security, prefix: options.get("prefix").to_owned(), display })
    }

    /// Returns the key of a lock: the prefix and the name, byte for byte, so that the lock of an application can be taken
    /// by its exact key. What cannot be a key is encoded below the reserved prefix, which no name has.
    pub(super) fn key(&self, name: &LockName) -> String {
        let exact = format!("{}{name}", self.prefix);
        let is_key =
            |key: &str| key.len() <= LONGEST_KEY && !key.bytes().any(|byte| byte <= b' ' || byte == 0x7f);
        if is_key(&exact) {
            return exact;
        }
        let encoded = format!("{RESERVED}name:{}", utf8_percent_encode(&exact, ENCODED));
        if is_key(&encoded) {
            return encoded;
        }
        format!("{RESERVED}sha256:{}", digest(&exact))
    }

    /// Returns the key of the history of a lock.
    pub(super) fn history_key(&self, name: &LockName) -> String {
        format!("{RESERVED}history:{}", digest(&self.key(name)))
    }
}

fn digest(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(url: &str, name: &str) -> String {
        let location = Location::from_url(&Url::parse(url).expect("a URL"), &|_| None).expect("a location");
        location.key(&LockName::new(name).expect("a name"))
    }

    #[test]
    fn a_name_that_can_be_a_key_is_one_byte_for_byte() {
        for (url, name, expected) in [
            ("memcached://h", "nightly", "dlock:nightly"),
            ("memcached://h?prefix=", "shop:50%/é", "shop:50%/é"),
            ("memcached://h", "a b%", "dlock#name:dlock:a%20b%25"),
            ("memcached://h?prefix=a%0Ab%20", "x", "dlock#name:a%0Ab%20x"),
        ] {
            assert_eq!(key(url, name), expected);
        }
    }

    #[test]
    fn keys_are_never_too_long_and_never_the_same() {
        let names = ["a".repeat(200), " ".repeat(200), format!("{} ", " ".repeat(198)), "é".repeat(100)];
        let long = format!("memcached://h?prefix={}", "p".repeat(100));
        let mut keys: Vec<String> =
            ["memcached://h", &long].iter().flat_map(|url| names.iter().map(|name| key(url, name))).collect();
        assert!(keys.iter().all(|key| key.len() <= 250), "{keys:?}");
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 8);
    }
}
