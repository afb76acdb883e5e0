//! Resolves settings: the command line overrides the environment, which overrides the configuration files.
//! Each setting has one value and its source. And the backend that several locks share.

use std::fmt;

use super::tables::LockTable;
use super::value::of_environment;
use super::{BackendSettings, CommonArguments, Configuration, Settings, Source, Sourced};
use crate::backend::registry;
use crate::exit::Failure;
use crate::glob::Pattern;
use crate::lock::LockName;

/// The remedy for locks on different backends, for a command that takes them.
const RUN_APART: &str = "a run is on one store: give --backend, or nest one dlock run in the other";
/// The same for a command that shows them.
const ASK_APART: &str = "one store is queried at a time: give --backend, or query these one at a time";

/// Resolves the backend of these locks, or the default backend.
///
/// # Errors
/// A file or a variable has an invalid value, or two of the locks have different backends (78).
pub fn resolve_backend(arguments: &CommonArguments, names: &[LockName]) -> Result<BackendSettings, Failure> {
    Configuration::read(arguments)?.resolve(arguments, names)
}

impl Configuration {
    /// Returns the settings for these locks, in which those of the command line have the highest precedence.
    ///
    /// # Errors
    /// A variable has an invalid value, or the tables of two locks contradict each other (78).
    pub fn settings(
        &self,
        flags: Settings,
        common: &CommonArguments,
        names: &[LockName],
    ) -> Result<Settings, Failure> {
        let mut settings = self.under(above(flags, common)?, names, |table| table)?;
        if settings.backend.is_none() {
            settings.backend = self.named_of(names, RUN_APART)?;
        }
        Ok(settings)
    }

    /// Returns the settings of command line and environment over those of the files for these locks,
    /// restricted to the `wanted` ones; without the backend, which is resolved per lock.
    pub(super) fn under(
        &self,
        above: Settings,
        names: &[LockName],
        wanted: impl Fn(Settings) -> Settings,
    ) -> Result<Settings, Failure> {
        let mut tables: Vec<&LockTable> = Vec::new();
        for name in names {
            if let Some(table) = self.table(name)?
                && !tables.iter().any(|known| std::ptr::eq(*known, table))
            {
                tables.push(table);
            }
        }
        let mut below = Settings::default();
        for table in tables {
            let said = Settings { backend: None, ..table.settings.clone() };
            below = below.together(wanted(said), &above)?;
        }
        Ok(above.over(below))
    }

    /// Resolves the backend of these locks, or the default backend.
    ///
    /// # Errors
    /// A variable has an invalid value, two of the locks have different backends, or none is named (78).
    pub fn resolve(
        &self,
        arguments: &CommonArguments,
        names: &[LockName],
    ) -> Result<BackendSettings, Failure> {
        let named = self.named_backend(arguments, names)?;
        self.backend(named.as_ref())
    }

    /// Returns the backend that the command line, the environment or the files name for these locks.
    ///
    /// # Errors
    /// A variable has an invalid value, or two of the locks have different backends (78).
    pub(super) fn named_backend(
        &self,
        arguments: &CommonArguments,
        names: &[LockName],
    ) -> Result<Option<Sourced<String>>, Failure> {
        if let Some(flag) = arguments.backend_flag()? {
            return Ok(Some(flag));
        }
        match of_environment("DLOCK_BACKEND")? {
            None => self.named_of(names, ASK_APART),
            named => Ok(named),
        }
    }

    /// Returns the backend that the files name for these locks: that of its table for each, else the default.
    /// A lock of the same name on another store would be a different lock.
    ///
    /// # Errors
    /// Two of them have different backends, or two patterns match equally well (78).
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

    /// Whether two names of a backend mean the same store, such as an alias and its URL.
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

    /// Returns the other backends on which the files have locks that one of the patterns could match, each
    /// once and without secrets; no pattern means every lock. Empty if the backend was set for all locks.
    ///
    /// # Errors
    /// One of them is not valid (78).
    pub fn others(&self, asked: &BackendSettings, patterns: &[&str]) -> Result<Vec<String>, Failure> {
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
                others.push(registry::redacted(&named.value));
            }
        }
        Ok(others)
    }
}

/// Returns the settings of the command line and the environment.
///
/// # Errors
/// A variable or the backend has an invalid value (78).
pub(super) fn above(flags: Settings, common: &CommonArguments) -> Result<Settings, Failure> {
    let quiet = common.quiet.then_some(Sourced { value: true, source: Source::Flag("--quiet") });
    Settings { backend: common.backend_flag()?, quiet, ..flags }.over_environment()
}

/// Whether there could be a name that both patterns match. Of two patterns only the beginnings are compared:
/// a false positive is better than a false negative here.
fn could_match(table: &LockTable, pattern: &str) -> bool {
    if let Some(name) = table.pattern.literal() {
        return Pattern::new(pattern).matches(&name);
    }
    let beginning = |text: &str| text.split(['*', '?', '[', '\\']).next().unwrap_or_default().to_owned();
    let (one, other) = (beginning(&table.text), beginning(pattern));
    one.starts_with(&other) || other.starts_with(&one)
}

/// The store of a lock, and its source.
struct On<'a>(Option<&'a Sourced<String>>);

impl fmt::Display for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Sourced { value, source }) => write!(f, "is on {} ({source})", registry::redacted(value)),
            None => f.write_str("has no backend"),
        }
    }
}
