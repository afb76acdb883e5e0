//! Backends by name: their tables, and the URLs that result from them.

use super::source::{FileLocation, Source, Sourced};
use crate::backend::registry;
use crate::backend::url::{Url, UrlError};
use crate::exit::Failure;

/// A warning of `run` that can be accepted for a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The store may evict live locks when it runs out of memory.
    Eviction,
    /// The server is not authenticated.
    Insecure,
    /// The store is suitable for efficiency only: it may forget locks.
    Efficiency,
}

impl Warning {
    pub const ALL: &[Warning] = &[Warning::Eviction, Warning::Insecure, Warning::Efficiency];

    /// Returns its name in `accept`.
    pub fn name(self) -> &'static str {
        match self {
            Warning::Eviction => "eviction",
            Warning::Insecure => "insecure",
            Warning::Efficiency => "efficiency",
        }
    }
}

/// The backend as named; the URL is not parsed yet.
pub struct BackendSettings {
    /// The URL, with the options from the table of an alias.
    pub url: Url,
    pub source: Source,
    pub accepted: Vec<Warning>,
    /// What refuses servers that need not prove their identity, besides the URL.
    pub requires_verified_tls: Option<Source>,
    url_source: Source,
    /// The sources of URL options that are not in the URL.
    options: Vec<(String, Source)>,
}

impl BackendSettings {
    /// Returns the backend of a URL without a table.
    pub(super) fn of_url(url: Url, source: Source) -> BackendSettings {
        let url_source = source.clone();
        BackendSettings {
            url,
            source,
            accepted: Vec::new(),
            requires_verified_tls: None,
            url_source,
            options: Vec::new(),
        }
    }

    /// Returns the failure for a bad URL, naming its source (78).
    pub fn failure(&self, error: &UrlError) -> Failure {
        let option = self.options.iter().find(|(name, _)| error.option() == Some(name));
        wrong_url(option.map_or(&self.url_source, |(_, source)| source), error)
    }

    /// Whether a password is on the command line, where every user of this host can read it.
    pub fn password_on_command_line(&self) -> bool {
        self.url.password.is_some() && matches!(self.url_source, Source::Flag(_))
    }
}

/// Returns the failure for a bad URL (78), whatever its source.
pub(super) fn wrong_url(source: &Source, error: impl std::fmt::Display) -> Failure {
    match source {
        Source::Flag(flag) => Failure::config(format!("{flag}: {error}")),
        source => source.failure(error),
    }
}

/// Whether a text has the form of a backend name; every URL has a colon.
pub(super) fn is_alias(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c))
}

/// `[backends.NAME]`
pub(super) struct Alias {
    pub(super) name: String,
    /// Its first occurrence.
    pub(super) place: FileLocation,
    /// The keys with a text, in display order.
    pub(super) keys: Vec<Key>,
    pub(super) accept: Option<Sourced<Vec<Warning>>>,
}

/// A key with a text: one of [`KEYS`], or a URL option of the store.
pub(super) struct Key {
    pub(super) name: String,
    /// The place of the key; the value has its own.
    pub(super) place: FileLocation,
    pub(super) value: Sourced<String>,
}

/// The keys of every backend, besides its URL options, in display order.
const KEYS: &[&str] = &["url", USERNAME, PASSWORD, "accept"];
const USERNAME: &str = "username";
pub(super) const PASSWORD: &str = "password";
pub(super) const PASSWORD_FILE: &str = "password_file";

impl Key {
    /// Whether the store decides what the key means, and whether there is such a key.
    pub(super) fn is_option(name: &str) -> bool {
        !KEYS.contains(&name)
    }
}

impl Alias {
    pub(super) fn new(name: &str, place: FileLocation) -> Alias {
        Alias { name: name.to_owned(), place, keys: Vec::new(), accept: None }
    }

    /// Merges a later file, or a key of the same file, which overrides this key by key.
    pub(super) fn add(&mut self, keys: Vec<Key>, accept: Option<Sourced<Vec<Warning>>>) {
        self.accept = accept.or(self.accept.take());
        for key in keys {
            self.keys.retain(|known| known.name != key.name);
            self.keys.push(key);
        }
        let rank = |key: &Key| KEYS.iter().position(|name| *name == key.name).unwrap_or(KEYS.len());
        self.keys.sort_by_key(rank);
    }

    /// Returns the value of a key.
    pub(super) fn get(&self, name: &str) -> Option<&Sourced<String>> {
        self.keys.iter().find(|key| key.name == name).map(|key| &key.value)
    }

    /// Returns the URL with all keys applied: a duplicate within one file is an error, and of two files the later one
    /// applies.
    ///
    /// # Errors
    /// No URL, a bad one, a duplicate, or an unknown key (78).
    pub(super) fn backend(&self, named_by: Source) -> Result<BackendSettings, Failure> {
        let Some(Sourced { value: text, source: url_source }) = self.get("url") else {
            self.check_keys_without_url()?;
            return Err(Source::File(self.place.clone())
                .failure("this backend has no url: add url = \"redis://HOST\""));
        };
        let mut url = Url::parse(text).map_err(|error| url_source.failure(error))?;
        self.check_keys(&url)?;
        let mut options = Vec::new();
        for key in self.keys_in_effect()?.filter(|key| key.name != "url") {
            let Key { name, value: Sourced { value, source }, .. } = key;
            // The option of the URL that means the same, and what the URL has of it.
            let (option, in_url, what) = match name.as_str() {
                USERNAME => (USERNAME, url.username.is_some(), "a username"),
                PASSWORD | PASSWORD_FILE => (PASSWORD_FILE, url.password.is_some(), "a password"),
                name => (name, false, name),
            };
            if in_url || url.query.iter().any(|(name, _)| name == option) {
                if url_source.overrides(source) {
                    continue;
                }
                if !source.overrides(url_source) {
                    return Err(source.failure(format!("{what} is in the url as well: remove one of them")));
                }
            }
            url.query.retain(|(name, _)| name != option);
            match name.as_str() {
                USERNAME => url.username = Some(value.clone()),
                PASSWORD => url.password = Some(value.clone()),
                _ => {
                    url.password = url.password.filter(|_| name != PASSWORD_FILE);
                    url.query.push((name.clone(), value.clone()));
                    options.push((name.clone(), source.clone()));
                }
            }
        }
        let accepted = self.accept.as_ref().map(|known| known.value.clone()).unwrap_or_default();
        let url_source = url_source.clone();
        let requires_verified_tls = None;
        Ok(BackendSettings { url, source: named_by, accepted, requires_verified_tls, url_source, options })
    }

    /// Returns the keys in effect: of a password and a password file only the one of the later file.
    ///
    /// # Errors
    /// Both are in one file (78).
    pub(super) fn keys_in_effect(&self) -> Result<impl Iterator<Item = &Key>, Failure> {
        let unused = match (self.get(PASSWORD), self.get(PASSWORD_FILE)) {
            (Some(text), Some(file)) if text.source.overrides(&file.source) => Some(PASSWORD_FILE),
            (Some(text), Some(file)) if file.source.overrides(&text.source) => Some(PASSWORD),
            (Some(text), Some(_)) => {
                return Err(text.source.failure("there is a password_file as well: remove one of them"));
            }
            _ => None,
        };
        Ok(self.keys.iter().filter(move |key| Some(key.name.as_str()) != unused))
    }

    /// Returns the first key that is neither one of every backend nor one of these options.
    fn unknown_key(&self, options: &[&str]) -> Option<&Key> {
        self.keys.iter().find(|key| Key::is_option(&key.name) && !options.contains(&key.name.as_str()))
    }

    /// Checks, for a table without a URL, that each key is an option of some store.
    fn check_keys_without_url(&self) -> Result<(), Failure> {
        self.unknown_key(&registry::all_options()).map_or(Ok(()), |Key { name, place, .. }| {
            Err(Failure::config(format!(
                "{place}: unknown key '{name}' in [backends.{}], which has no url: known are {} and the options of a URL",
                self.name,
                KEYS.join(", ")
            )))
        })
    }

    /// Checks that each key is an option of the store. A store that this build lacks is not checked.
    fn check_keys(&self, url: &Url) -> Result<(), Failure> {
        let Some(known) = registry::options(&url.scheme) else { return Ok(()) };
        self.unknown_key(&known).map_or(Ok(()), |Key { name, place, .. }| {
            let others = known.iter().filter(|option| Key::is_option(option));
            let all: Vec<&str> = KEYS.iter().chain(others).copied().collect();
            Err(Failure::config(format!(
                "{place}: unknown key '{name}' in [backends.{}]: known for {}: are {}",
                self.name,
                url.scheme,
                all.join(", ")
            )))
        })
    }
}
