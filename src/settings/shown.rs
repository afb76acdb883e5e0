//! The configuration for display, without secrets.

use serde_json::Value;

use super::backends::{Alias, PASSWORD_FILE, Secret};
use super::configuration::above;
use super::tables::LockTable;
use super::value::Setting;
use super::{CommonArguments, Configuration, FileLocation, Settings, Source, Sourced};
use crate::backend::registry;
use crate::exit::Failure;
use crate::lock::LockName;
use crate::secret::HIDDEN;

/// The pattern of all names.
const EVERY: &str = "*";

/// A table of a backend or of locks, by key.
pub type Keys = Vec<(String, Value, Source)>;

impl Configuration {
    /// Returns each named backend with its table.
    pub fn aliases(&self) -> Vec<(&str, Keys)> {
        let later = |one: &Source, other: &Source| self.is_later(one, other);
        self.tables.backends.iter().map(|alias| (alias.name.as_str(), alias.shown(later))).collect()
    }

    /// Returns each table of locks except the default one.
    pub fn lock_tables(&self) -> Vec<(&str, Keys)> {
        let tables = self.tables.locks.iter().filter(|table| table.text != EVERY);
        tables.map(|table| (table.text.as_str(), shown(&table.settings))).collect()
    }

    /// Returns the table that applies to a lock: its pattern, and its source.
    ///
    /// # Errors
    /// Two patterns match equally well (78).
    pub fn table_of(&self, name: &LockName) -> Result<Option<(&str, &FileLocation)>, Failure> {
        Ok(self.table(name)?.map(|LockTable { text, place, .. }| (text.as_str(), place)))
    }

    /// Returns the settings of a lock that no table but the default one matches.
    ///
    /// # Errors
    /// A variable has an invalid value (78).
    pub fn settings_of_others(&self, arguments: &CommonArguments) -> Result<Settings, Failure> {
        let table = self.tables.locks.iter().find(|table| table.text == EVERY);
        let below = table.map(|table| table.settings.clone()).unwrap_or_default();
        Ok(said_above(arguments)?.over(below).over(self.of_all()))
    }
}

/// Returns the settings of the command line and the environment for every lock.
///
/// # Errors
/// A variable has an invalid value (78).
pub fn said_above(arguments: &CommonArguments) -> Result<Settings, Failure> {
    above(Settings::default(), arguments)
}

/// Returns the settings that are set, without secrets.
pub fn shown(settings: &Settings) -> Keys {
    let known = settings.shown().into_iter();
    known
        .filter_map(|(key, known)| {
            let Sourced { value, source } = known?;
            let value = match (key, value) {
                ("backend", Value::String(url)) => registry::redacted(&url).into(),
                (_, value) => value,
            };
            Some((key.to_owned(), value, source))
        })
        .collect()
}

impl Alias {
    /// Returns the values in effect: of a password and a password file only the one that is used.
    fn shown(&self, later: impl Fn(&Source, &Source) -> bool) -> Keys {
        let secret = self.secret(later).ok().flatten();
        let mut keys = Keys::new();
        let mut add =
            |key: &str, value: Value, source: &Source| keys.push((key.into(), value, source.clone()));
        if let Some(Sourced { value, source }) = &self.url {
            add("url", registry::redacted(value).into(), source);
        }
        if let Some(Sourced { value, source }) = &self.username {
            add("username", value.shown(), source);
        }
        if let Some(Secret::Text(Sourced { source, .. })) = secret {
            add("password", HIDDEN.into(), source);
        }
        let scheme = self.url.as_ref().and_then(|url| url.value.split(':').next()).unwrap_or_default();
        let has_known_options = registry::options(&scheme.to_ascii_lowercase()).is_some();
        let is_used = |name: &str| name != PASSWORD_FILE || matches!(secret, Some(Secret::File(_)));
        for option in self.options.iter().filter(|option| is_used(&option.name)) {
            // The options of a store that this build lacks are unknown: one may be a secret.
            let value = match has_known_options || option.name == PASSWORD_FILE {
                true => option.value.value.shown(),
                false => HIDDEN.into(),
            };
            add(&option.name, value, &option.value.source);
        }
        if let Some(Sourced { value, source }) = &self.accept {
            add("accept", value.iter().map(|warning| warning.name()).collect(), source);
        }
        keys
    }
}
