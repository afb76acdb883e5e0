//! Backends by name: their tables, and the URLs that result from them.

use super::source::{FileLocation, Source, Sourced};
use crate::backend::Hazard;
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
    /// All warnings.
    pub const ALL: &[Warning] = &[Warning::Eviction, Warning::Insecure, Warning::Efficiency];

    /// Returns the warning for a hazard of a store, if it can be accepted.
    pub fn of(hazard: &Hazard) -> Option<Warning> {
        match hazard {
            Hazard::Eviction(_) => Some(Warning::Eviction),
            Hazard::Node(_) => None,
        }
    }

    /// Returns its name in `accept`.
    pub fn name(self) -> &'static str {
        match self {
            Warning::Eviction => "eviction",
            Warning::Insecure => "insecure",
            Warning::Efficiency => "efficiency",
        }
    }
}

/// The accepted warnings, which are not printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted(pub Vec<Warning>);

impl Accepted {
    /// Whether this warning is accepted.
    pub fn accepts(&self, warning: Warning) -> bool {
        self.0.contains(&warning)
    }
}

/// The backend as named; the URL is not parsed yet.
pub struct BackendSettings {
    /// The URL, with the options from the table of an alias.
    pub url: Url,
    /// The source that names the backend, or `Default`.
    pub source: Source,
    /// The accepted warnings.
    pub accepted: Accepted,
    /// The source of the URL itself.
    url_source: Source,
    /// The sources of URL options that are not in the URL.
    options: Vec<(String, Source)>,
}

impl BackendSettings {
    /// Returns the backend of a URL without a table.
    pub(super) fn of_url(url: Url, source: Source) -> BackendSettings {
        let url_source = source.clone();
        BackendSettings { url, source, accepted: Accepted::default(), url_source, options: Vec::new() }
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
    pub(super) url: Option<Sourced<String>>,
    pub(super) username: Option<Sourced<String>>,
    pub(super) password: Option<Sourced<String>>,
    pub(super) accept: Option<Sourced<Vec<Warning>>>,
    pub(super) options: Vec<Extra>,
}

/// A key that is a URL option of the store.
pub(super) struct Extra {
    pub(super) name: String,
    /// The place of the key; the value has its own.
    pub(super) key: FileLocation,
    pub(super) value: Sourced<String>,
}

/// The keys of every backend, besides its URL options.
const KEYS: &[&str] = &["url", "username", "password", "accept"];
pub(super) const PASSWORD_FILE: &str = "password_file";

impl Alias {
    pub(super) fn new(name: &str, place: FileLocation) -> Alias {
        let name = name.to_owned();
        Alias { name, place, url: None, username: None, password: None, accept: None, options: Vec::new() }
    }

    /// Merges a later file, which overrides it key by key.
    pub(super) fn add(&mut self, later: Alias) {
        self.url = later.url.or(self.url.take());
        self.username = later.username.or(self.username.take());
        self.password = later.password.or(self.password.take());
        self.accept = later.accept.or(self.accept.take());
        for extra in later.options {
            self.options.retain(|known| known.name != extra.name);
            self.options.push(extra);
        }
    }

    /// Returns the URL with all keys applied. `later` returns whether the first source is in a file that
    /// overrides that of the second: a duplicate within one file is an error, and of two files the later one
    /// applies.
    ///
    /// # Errors
    /// No URL, a bad one, a duplicate, or an unknown key (78).
    pub(super) fn backend(
        &self,
        named_by: Source,
        later: impl Fn(&Source, &Source) -> bool,
    ) -> Result<BackendSettings, Failure> {
        let Some(Sourced { value: text, source: url_source }) = &self.url else {
            return Err(Source::File(self.place.clone()).failure("this backend has no url"));
        };
        let mut url = Url::parse(text).map_err(|error| url_source.failure(error))?;
        self.check_keys(&url)?;
        // Whether a key overrides the same option in the URL.
        let counts =
            |source: &Source, what: &str| match (later(source, url_source), later(url_source, source)) {
                (false, false) => {
                    Err(source.failure(format!("{what} is in the url as well: remove one of them")))
                }
                (counts, _) => Ok(counts),
            };
        let has = |url: &Url, option: &str| url.query.iter().any(|(name, _)| name == option);
        let mut options = Vec::new();
        if let Some(Sourced { value, source }) = &self.username
            && ((url.username.is_none() && !has(&url, "username")) || counts(source, "a username")?)
        {
            url.query.retain(|(name, _)| name != "username");
            url.username = Some(value.clone());
        }
        let secret = self.secret(&later)?;
        if let Some(extra) = secret
            && ((url.password.is_none() && !has(&url, PASSWORD_FILE))
                || counts(extra.source(), "a password")?)
        {
            url.password = None;
            url.query.retain(|(name, _)| name != PASSWORD_FILE);
            match extra {
                Secret::Text(password) => url.password = Some(password.value.clone()),
                Secret::File(extra) => {
                    url.query.push((extra.name.clone(), extra.value.value.clone()));
                    options.push((extra.name.clone(), extra.value.source.clone()));
                }
            }
        }
        for Extra { name, value: Sourced { value, source }, .. } in &self.options {
            if name != PASSWORD_FILE && (!has(&url, name) || counts(source, name)?) {
                url.query.retain(|(other, _)| other != name);
                url.query.push((name.clone(), value.clone()));
                options.push((name.clone(), source.clone()));
            }
        }
        let accepted = Accepted(self.accept.as_ref().map(|known| known.value.clone()).unwrap_or_default());
        Ok(BackendSettings { url, source: named_by, accepted, url_source: url_source.clone(), options })
    }

    /// Returns the password or the password file, which exclude each other.
    pub(super) fn secret(
        &self,
        later: impl Fn(&Source, &Source) -> bool,
    ) -> Result<Option<Secret<'_>>, Failure> {
        let file = self.options.iter().find(|extra| extra.name == PASSWORD_FILE);
        Ok(match (&self.password, file) {
            (Some(text), Some(file)) if later(&text.source, &file.value.source) => Some(Secret::Text(text)),
            (Some(text), Some(file)) if later(&file.value.source, &text.source) => Some(Secret::File(file)),
            (Some(text), Some(_)) => {
                return Err(text.source.failure("there is a password_file as well: remove one of them"));
            }
            (text, file) => text.as_ref().map(Secret::Text).or(file.map(Secret::File)),
        })
    }

    /// Checks that each key is an option of the store. A store that this build lacks is not checked.
    fn check_keys(&self, url: &Url) -> Result<(), Failure> {
        let Some(known) = registry::options(&url.scheme) else { return Ok(()) };
        let unknown = self.options.iter().find(|extra| !known.contains(&extra.name.as_str()));
        unknown.map_or(Ok(()), |Extra { name, key, .. }| {
            let others = known.iter().filter(|option| !KEYS.contains(option));
            let all: Vec<&str> = KEYS.iter().chain(others).copied().collect();
            Err(Failure::config(format!(
                "{key}: unknown key '{name}' in [backends.{}]: known for {}: are {}",
                self.name,
                url.scheme,
                all.join(", ")
            )))
        })
    }
}

/// The source of the password.
#[derive(Clone, Copy)]
pub(super) enum Secret<'a> {
    Text(&'a Sourced<String>),
    File(&'a Extra),
}

impl Secret<'_> {
    fn source(&self) -> &Source {
        match self {
            Secret::Text(text) => &text.source,
            Secret::File(extra) => &extra.value.source,
        }
    }
}
