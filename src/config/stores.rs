//! The backend of several locks, which is one or none; and the backends of locks that were not asked for by name.

use std::fmt;

use super::file::LockTable;
use super::source::{Source, Sourced};
use super::{Backend, Configuration, backend_flag, backend_variable};
use crate::backend::locator::Locator;
use crate::cli::CommonArguments;
use crate::exit::Failure;
use crate::glob::Pattern;
use crate::lock::LockName;

/// What there is to do about locks with different backends, for a command that takes them.
pub(super) const RUN_APART: &str =
    "a run is on one store: give --backend, or put one dlock run into the other";
/// The same for a command that shows them.
const ASK_APART: &str = "one store is asked at a time: give --backend, or ask for these one by one";

impl Configuration {
    /// Resolves the backend of these locks, or the one of every lock that has none of its own.
    ///
    /// # Errors
    /// A variable holds what it cannot hold, two of the locks have different backends, or nobody named any (78).
    pub fn resolve(&self, arguments: &CommonArguments, names: &[LockName]) -> Result<Backend, Failure> {
        let mut named = backend_flag(arguments)?;
        if named.is_none() {
            named = backend_variable()?;
        }
        if named.is_none() {
            named = self.named_of(names, ASK_APART)?;
        }
        self.backend(named.as_ref())
    }

    /// The backend that the files name for these locks: each has that of its table, else that of every lock. A lock on
    /// another store would be another lock.
    ///
    /// # Errors
    /// Two of them have different ones, or two patterns fit equally well (78).
    pub(super) fn named_of(
        &self,
        names: &[LockName],
        apart: &str,
    ) -> Result<Option<Sourced<String>>, Failure> {
        let Some((first, others)) = names.split_first() else { return Ok(self.tables.backend.clone()) };
        let one = self.named(first)?;
        for name in others {
            let other = self.named(name)?;
            if !self.is_same(one, other)? {
                return Err(Failure::config(format!(
                    "NAME '{first}' {} and NAME '{name}' {}: {apart}",
                    On(one),
                    On(other)
                )));
            }
        }
        Ok(one.cloned())
    }

    fn named(&self, name: &LockName) -> Result<Option<&Sourced<String>>, Failure> {
        let own = self.table(name)?.and_then(|table| table.settings.backend.as_ref());
        Ok(own.or(self.tables.backend.as_ref()))
    }

    /// Whether two names of a backend mean one store: an alias and its URL do.
    fn is_same(
        &self,
        one: Option<&Sourced<String>>,
        other: Option<&Sourced<String>>,
    ) -> Result<bool, Failure> {
        match (one, other) {
            (Some(one), Some(other)) => {
                Ok(one.value == other.value || self.backend(Some(one))?.url == self.backend(Some(other))?.url)
            }
            (one, other) => Ok(one.is_none() && other.is_none()),
        }
    }

    /// The other backends on which the files have locks that one of the patterns could match, each once and without
    /// secrets; no pattern is every lock. None if somebody chose the backend for all locks.
    ///
    /// # Errors
    /// One of them is none (78).
    pub fn others(&self, asked: &Backend, patterns: &[&str]) -> Result<Vec<String>, Failure> {
        let mut known = vec![asked.url.clone()];
        let mut others = Vec::new();
        if !matches!(asked.source, Source::File(_)) {
            return Ok(others);
        }
        let meant = self.tables.locks.iter().filter(|table| {
            patterns.is_empty() || patterns.iter().any(|pattern| could_match(table, pattern))
        });
        let own = meant.filter_map(|table| table.settings.backend.as_ref());
        for named in self.tables.backend.iter().chain(own) {
            let url = self.backend(Some(named))?.url;
            if !known.contains(&url) {
                known.push(url);
                others.push(Locator::redacted(&named.value));
            }
        }
        Ok(others)
    }
}

/// Whether there could be a name that both match. Of two patterns only the beginnings are compared: too much is better
/// than too little here.
fn could_match(table: &LockTable, pattern: &str) -> bool {
    if let Some(name) = table.pattern.literal() {
        return Pattern::new(pattern).matches(&name);
    }
    let beginning = |text: &str| text.split(['*', '?', '[', '\\']).next().unwrap_or_default().to_owned();
    let (one, other) = (beginning(&table.text), beginning(pattern));
    one.starts_with(&other) || other.starts_with(&one)
}

/// Where a lock lives, and who said so.
struct On<'a>(Option<&'a Sourced<String>>);

impl fmt::Display for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Sourced { value, source }) => write!(f, "is on {} ({source})", Locator::redacted(value)),
            None => f.write_str("has no backend"),
        }
    }
}
