//! The tables of a configuration file, with the place of each value.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::DeValue;

use super::backends::{Alias, Key, PASSWORD, Warning, is_alias};
use super::document::{Document, in_order};
use super::pool::{self, Pool};
use super::source::{FileLocation, Source, Sourced};
use super::suggestion;
use super::table::{LockTable, Settings};
use super::value::{Setting, kind, scalar, text};
use crate::backend::registry;
use crate::backend::url::{REQUIRE_VERIFIED_TLS, has_password};
use crate::exit::Failure;
use crate::glob::Pattern;
use crate::lock::LockName;

/// The content of one file, or of several files merged.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) backend: Option<Sourced<String>>,
    pub(super) require_server: Option<Sourced<bool>>,
    pub(super) require_verified_tls: Option<Sourced<bool>>,
    pub(super) backends: Vec<Alias>,
    /// `[locks."PATTERN"]`
    pub(super) locks: Vec<LockTable>,
    /// `[pools.NAME]`
    pub(super) pools: Vec<Pool>,
}

const KEYS: &[&str] = &["backend", "require_server", REQUIRE_VERIFIED_TLS, "backends", "locks", "pools"];

impl Tables {
    /// Parses a file.
    ///
    /// # Errors
    /// It is not TOML, has an unknown key or an invalid value, or a password that others can read (78).
    pub(super) fn of(document: &Document) -> Result<Tables, Failure> {
        let root = document.table()?;
        let mut tables = Tables::default();
        for (key, value) in in_order(root.get_ref()) {
            match key.get_ref().as_ref() {
                "backend" => tables.backend = Some(known(document, "backend", value)?),
                "require_server" => tables.require_server = Some(known(document, "require_server", value)?),
                REQUIRE_VERIFIED_TLS => {
                    tables.require_verified_tls = Some(known(document, REQUIRE_VERIFIED_TLS, value)?);
                }
                "backends" => {
                    for (name, value) in document.entries("backends", value)? {
                        tables.backends.push(alias(document, name, value)?);
                    }
                }
                "locks" => {
                    for (pattern, value) in document.entries("locks", value)? {
                        tables.locks.push(lock(document, pattern, value)?);
                    }
                }
                "pools" => {
                    for (name, value) in document.entries("pools", value)? {
                        tables.pools.push(pool_table(document, name, value)?);
                    }
                }
                _ => return Err(unknown_key(document, key, "", KEYS)),
            }
        }
        match tables.secret() {
            Some(secret) => document.check_secret(secret).map(|()| tables),
            None => Ok(tables),
        }
    }

    /// Merges a later file, which overrides it key by key.
    pub(super) fn add(&mut self, later: Tables) {
        self.backend = later.backend.or(self.backend.take());
        self.require_server = later.require_server.or(self.require_server.take());
        self.require_verified_tls = later.require_verified_tls.or(self.require_verified_tls.take());
        for alias in later.backends {
            match self.backends.iter_mut().find(|known| known.name == alias.name) {
                Some(known) => known.add(alias.keys, alias.accept),
                None => self.backends.push(alias),
            }
        }
        for pool in later.pools {
            match self.pools.iter_mut().find(|known| known.name == pool.name) {
                Some(known) => known.names = pool.names,
                None => self.pools.push(pool),
            }
        }
        for table in later.locks {
            match self.locks.iter_mut().find(|known| known.text == table.text) {
                Some(known) => known.settings = table.settings.over(std::mem::take(&mut known.settings)),
                None => self.locks.push(table),
            }
        }
    }

    /// Returns the key of a password, if there is one.
    fn secret(&self) -> Option<&FileLocation> {
        let locks = self.locks.iter().map(|table| &table.settings.backend);
        let backends = self.backends.iter().filter_map(|alias| alias.get("url"));
        let urls = std::iter::once(&self.backend).chain(locks).flatten().chain(backends);
        let in_urls = urls.filter(|url| has_password(&url.value)).map(|url| &url.source);
        let passwords =
            self.backends.iter().filter_map(|alias| alias.get(PASSWORD)).map(|known| &known.source);
        passwords.chain(in_urls).find_map(|source| match source {
            Source::File(place) => Some(place),
            _ => None,
        })
    }
}

fn source(document: &Document, key: &str, value: &Spanned<DeValue<'_>>) -> Source {
    Source::File(document.place(value.span(), key))
}

/// Parses the value of a known key.
fn known<T: Setting>(
    document: &Document,
    key: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<Sourced<T>, Failure> {
    let source = source(document, key, value);
    match T::read(value.get_ref()) {
        Ok(value) => Ok(Sourced { value, source }),
        Err(error) => Err(source.failure(error)),
    }
}

fn unknown_key(document: &Document, key: &Spanned<Cow<'_, str>>, table: &str, known: &[&str]) -> Failure {
    let message = format!("unknown key '{}'{table}: known are {}", key.get_ref(), known.join(", "));
    document.failure(key.span().start, message)
}

/// `[backends.NAME]`
fn alias(
    document: &Document,
    name: &Spanned<Cow<'_, str>>,
    table: &Spanned<DeValue<'_>>,
) -> Result<Alias, Failure> {
    let place = document.place(name.span(), name.get_ref());
    if !is_alias(name.get_ref()) {
        return Err(
            Source::File(place).failure("the name of a backend is made of letters, digits, '-', '_' and '.'")
        );
    }
    let mut alias = Alias::new(name.get_ref(), place);
    let mut keys = Vec::new();
    for (key, value) in document.entries(name.get_ref(), table)? {
        match key.get_ref().as_ref() {
            "accept" => alias.accept = Some(warnings(document, value)?),
            name => {
                let source = source(document, name, value);
                // The valid options are known once the URL is.
                let text = match value.get_ref() {
                    DeValue::Boolean(value) if Key::is_option(name) => Ok(value.to_string()),
                    value if Key::is_option(name) => scalar(value),
                    value => text(value).map(str::to_owned),
                };
                let value = text.map_err(|error| source.failure(error))?;
                let place = document.place(key.span(), name);
                keys.push(Key { name: name.to_owned(), place, value: Sourced { value, source } });
            }
        }
    }
    alias.add(keys, None);
    Ok(alias)
}

/// `accept`
fn warnings(document: &Document, value: &Spanned<DeValue<'_>>) -> Result<Sourced<Vec<Warning>>, Failure> {
    let mut accepted = Vec::new();
    let source = texts(document, "accept", value, |name, one| {
        let warning = Warning::ALL.iter().find(|warning| warning.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Warning::ALL.iter().map(|warning| warning.name()).collect();
            one.failure(format!("unknown warning '{name}': known are {}", names.join(", ")))
        })?;
        accepted.push(*warning);
        Ok(())
    })?;
    Ok(Sourced { value: accepted, source })
}

/// `[pools.NAME]`
fn pool_table(
    document: &Document,
    name: &Spanned<Cow<'_, str>>,
    table: &Spanned<DeValue<'_>>,
) -> Result<Pool, Failure> {
    let place = document.place(name.span(), name.get_ref());
    if !is_alias(name.get_ref()) {
        return Err(
            Source::File(place).failure("the name of a pool is made of letters, digits, '-', '_' and '.'")
        );
    }
    let mut names = None;
    for (key, value) in document.entries(name.get_ref(), table)? {
        match key.get_ref().as_ref() {
            "names" => names = Some(pool_names(document, value)?),
            _ => {
                return Err(unknown_key(
                    document,
                    key,
                    &format!(" in [pools.{}]", name.get_ref()),
                    &["names"],
                ));
            }
        }
    }
    match names {
        Some(names) => Ok(Pool { name: name.get_ref().to_string(), names }),
        None => Err(Source::File(place).failure("this pool has no names")),
    }
}

/// `names`
fn pool_names(document: &Document, value: &Spanned<DeValue<'_>>) -> Result<Sourced<Vec<LockName>>, Failure> {
    let mut names = Vec::new();
    let whole = texts(document, "names", value, |name, source| {
        let wrong = |why: String| source.failure(why);
        if let Some(why) = suggestion::name(name) {
            return Err(wrong(format!("'{}' {why}", registry::redacted(name))));
        }
        let name = LockName::new(name).map_err(|error| wrong(format!("'{name}': {error}")))?;
        pool::add(&mut names, name).map_err(wrong)
    })?;
    match names.is_empty() {
        true => Err(whole.failure("a pool has at least one name")),
        false => Ok(Sourced { value: names, source: whole }),
    }
}

/// Parses an array of texts, and returns its place.
fn texts(
    document: &Document,
    key: &str,
    value: &Spanned<DeValue<'_>>,
    mut take: impl FnMut(&str, Source) -> Result<(), Failure>,
) -> Result<Source, Failure> {
    let whole = source(document, key, value);
    let DeValue::Array(array) = value.get_ref() else {
        return Err(whole.failure(format!("expected an array of strings, found {}", kind(value.get_ref()))));
    };
    for element in array.iter() {
        let one = source(document, key, element);
        let text = text(element.get_ref()).map_err(|error| one.failure(error))?;
        take(text, one)?;
    }
    Ok(whole)
}

/// `[locks."PATTERN"]`
fn lock(
    document: &Document,
    pattern: &Spanned<Cow<'_, str>>,
    table: &Spanned<DeValue<'_>>,
) -> Result<LockTable, Failure> {
    let text = pattern.get_ref();
    let mut settings = Settings::default();
    for (key, value) in document.entries(text, table)? {
        let source = source(document, key.get_ref(), value);
        match settings.set(key.get_ref(), value.get_ref(), source.clone()) {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(source.failure(error)),
            None => {
                let table = format!(" in [locks.\"{text}\"]");
                return Err(unknown_key(document, key, &table, Settings::KEYS));
            }
        }
    }
    Ok(LockTable {
        text: text.to_string(),
        pattern: Pattern::new(text),
        place: document.place(pattern.span(), text),
        settings,
    })
}
