//! Maps a backend URL to a backend. The only module that names the concrete ones.

use super::Backend;
use super::admin::LockAdmin;
use super::file::FileStore;
use super::ledger::Contender;
#[cfg(feature = "redis")]
use super::redis::{RedisStore, RedlockStore};
use super::url::{Environment, Url, UrlError};

/// A parsed and checked backend URL; does not contact the store.
#[derive(Clone)]
pub enum Locator {
    /// Locks on this host.
    File(super::file::Location),
    /// A Redis store.
    #[cfg(feature = "redis")]
    Redis(Box<super::redis::Location>),
}

/// Schemes of stores that a build may lack, with the cargo feature that enables each.
#[cfg(not(feature = "redis"))]
const LEFT_OUT: &[(&str, &str)] = &[
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+unix", "redis"),
    ("redis-sentinel", "redis"),
    ("rediss-sentinel", "redis"),
    ("valkey", "redis"),
    ("valkeys", "redis"),
    ("valkey+unix", "redis"),
    ("redis-cluster", "redis"),
    ("rediss-cluster", "redis"),
    ("valkey-cluster", "redis"),
    ("valkeys-cluster", "redis"),
    ("valkey-sentinel", "redis"),
    ("valkeys-sentinel", "redis"),
    ("redlock", "redis"),
    ("redlocks", "redis"),
];
#[cfg(feature = "redis")]
const LEFT_OUT: &[(&str, &str)] = &[];

impl Locator {
    /// Parses a URL: the one match from scheme to backend.
    ///
    /// # Errors
    /// An unknown scheme or option, a store that this build lacks, or a value that the store does not accept.
    pub fn new(url: &Url, environment: Environment<'_>) -> Result<Locator, UrlError> {
        match url.scheme.as_str() {
            "file" => Ok(Locator::File(super::file::Location::from_url(url, environment)?)),
            #[cfg(feature = "redis")]
            scheme if super::redis::SCHEMES.contains(&scheme) => {
                Ok(Locator::Redis(Box::new(super::redis::Location::from_url(url, environment)?)))
            }
            scheme => match LEFT_OUT.iter().find(|(left_out, _)| *left_out == scheme) {
                Some((_, feature)) => Err(UrlError::new(format!(
                    "this build has no {scheme}: build it with --features {feature}"
                ))),
                None => {
                    Err(UrlError::new(format!("unknown scheme '{scheme}': known are {}", KNOWN.join(", "))))
                }
            },
        }
    }

    /// Returns the options of URLs with this scheme; `None` for a scheme that this build does not know.
    pub fn options(scheme: &str) -> Option<&'static [&'static str]> {
        match scheme {
            "file" => Some(super::file::OPTIONS),
            #[cfg(feature = "redis")]
            scheme if super::redis::SCHEMES.contains(&scheme) => Some(super::redis::options(scheme)),
            _ => None,
        }
    }

    /// Returns a backend URL as it was written, without possible secrets: the value of an option that its store does
    /// not have may be the password of a misspelt one.
    pub fn redacted(text: &str) -> String {
        let scheme = text.split(':').next().unwrap_or_default().to_ascii_lowercase();
        super::url::redacted(text, Locator::options(&scheme).unwrap_or_default())
    }

    /// Returns how the URLs of the stores in this build begin.
    pub fn known() -> &'static [&'static str] {
        KNOWN
    }

    /// Returns the store, without secrets, as shown in messages.
    pub fn display(&self) -> &str {
        match self {
            Locator::File(location) => location.display(),
            #[cfg(feature = "redis")]
            Locator::Redis(location) => location.display(),
        }
    }

    /// Checks that the store can hold a lock of this name.
    ///
    /// # Errors
    /// Its key would be one of dlock's own.
    pub fn check_name(&self, name: &crate::lock::LockName) -> Result<(), UrlError> {
        match self {
            Locator::File(location) => location.check_name(name),
            #[cfg(feature = "redis")]
            Locator::Redis(location) => location.check_name(name),
        }
    }

    /// Returns a warning about the location of the locks, if there is one.
    pub fn warning(&self) -> Option<String> {
        match self {
            Locator::File(location) => location.warning(),
            #[cfg(feature = "redis")]
            Locator::Redis(location) => location.warning(),
        }
    }

    /// Returns why the store does not support this mode; `None` if it does.
    pub fn refuses(&self, mode: crate::lock::Mode) -> Option<&'static str> {
        match (self, mode) {
            (Locator::File(_), _) => None,
            #[cfg(feature = "redis")]
            (Locator::Redis(location), mode) => location.refuses(mode),
        }
    }

    /// Returns a warning about a connection without authentication of the server, if there is one.
    pub fn insecure(&self) -> Option<&'static str> {
        match self {
            Locator::File(_) => None,
            #[cfg(feature = "redis")]
            Locator::Redis(location) => location.insecure(),
        }
    }

    /// Returns whether the store's locks have leases, rather than ending with a process.
    pub fn keeps_leases(&self) -> bool {
        match self {
            Locator::File(_) => false,
            #[cfg(feature = "redis")]
            Locator::Redis(_) => true,
        }
    }

    /// Returns the store for operators; does not contact it.
    pub fn oversee(&self) -> Box<dyn LockAdmin> {
        match self {
            Locator::File(location) => Box::new(Contender::new(FileStore::new(location.clone()))),
            #[cfg(feature = "redis")]
            Locator::Redis(location) if location.is_redlock() => {
                Box::new(RedlockStore::new((**location).clone()))
            }
            #[cfg(feature = "redis")]
            Locator::Redis(location) => Box::new(RedisStore::new((**location).clone())),
        }
    }

    /// Returns the store; does not contact it.
    pub fn open(&self) -> Box<dyn Backend> {
        self.oversee()
    }
}

#[cfg(feature = "redis")]
const KNOWN: &[&str] =
    &["file:", "redis://", "rediss://", "redis+unix:", "redis-sentinel://", "redis-cluster://", "redlock://"];
#[cfg(not(feature = "redis"))]
const KNOWN: &[&str] = &["file:"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Xorshift;

    /// Bytes of all kinds, made by a fixed generator: parsing never panics, and what parses has no control characters.
    #[test]
    fn any_text_is_parsed_or_rejected() {
        let alphabet: Vec<char> =
            "redis:/@?&=#%,[]0123456789abcdefABCDEF.-_ \n\u{0}é\u{202e}\u{1F512}".chars().collect();
        let mut random = Xorshift::new();
        for _ in 0..200_000 {
            let mut text = random.text(&alphabet, 40);
            if random.below(2) == 0 {
                text.insert_str(0, "redis://");
            }
            if let Ok(url) = Url::parse(&text) {
                assert!(url.hosts.iter().all(|host| !host.name.is_empty()), "{text:?}");
                let _ = Locator::new(&url, &|_| None);
            }
        }
    }
}
