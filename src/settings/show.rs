//! `dlock config show`: its options, and the values that it prints, without secrets.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::backends::{Alias, Key, PASSWORD, PASSWORD_FILE};
use super::configuration::above;
use super::pool::Pool;
use super::table::LockTable;
use super::target::checked_name;
use super::{CommonArguments, Configuration, Settings, Source, Sourced};
use crate::backend::registry;
use crate::backend::url::REQUIRE_VERIFIED_TLS;
use crate::exit::Failure;
use crate::lock::LockName;
use crate::secret::HIDDEN;

/// `dlock config`
#[derive(Debug, Args)]
pub struct ConfigArguments {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Subcommands of `dlock config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print each value in effect and its source
    Show(Box<ShowArguments>),
}

/// `dlock config show`
#[derive(Debug, Default, Args)]
#[command(after_help = "With --help: examples, files and exit status.", after_long_help = show_help())]
pub struct ShowArguments {
    /// Show the values for this lock, instead of the whole configuration
    #[arg(value_name = "NAME")]
    pub name: Option<OsString>,

    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    #[command(flatten)]
    pub common: CommonArguments,
}

fn show_help() -> String {
    let keys: Vec<String> = Settings::KEYS.chunks(8).map(|keys| keys.join(", ")).collect();
    include_str!("help/config-show.txt").replace("{keys}", &keys.join(",\n  "))
}

/// The pattern of all names.
const EVERY: &str = "*";

/// The values to show, in display order.
pub struct Shown {
    /// The files that were read; each overrides the ones before it.
    pub files: Vec<String>,
    pub name: Option<String>,
    /// The patterns of the tables that match it, and their sources; the first one that has a key applies.
    pub tables: Vec<(String, Source)>,
    /// `[backends.NAME]`
    pub backends: Vec<ShownTable>,
    /// `[pools.NAME]`; of a lock, those that it is in.
    pub pools: Vec<ShownTable>,
    /// `[locks."PATTERN"]`; the last one has every setting.
    pub locks: Vec<ShownTable>,
}

/// One table.
pub struct ShownTable {
    /// The name of the backend, the pattern, or the lock itself.
    pub name: String,
    /// Its keys.
    pub values: Vec<ShownValue>,
}

/// One key of a table.
pub struct ShownValue {
    pub key: String,
    /// `None` if it is not set and there is no default.
    pub known: Option<Sourced<Value>>,
    /// The pattern of the table of locks that it comes from.
    pub table: Option<String>,
    /// The source that overrides it.
    pub overridden: Option<Source>,
}

impl ShownValue {
    /// A key that nothing overrides, and that is in no table of locks.
    fn of(key: &str, known: Sourced<impl Into<Value>>) -> ShownValue {
        let known = Sourced { value: known.value.into(), source: known.source };
        ShownValue { key: key.to_owned(), known: Some(known), table: None, overridden: None }
    }
}

impl Shown {
    /// Reads the configuration and resolves the values in effect.
    ///
    /// # Errors
    /// A bad name (64), or an invalid value in files or environment (78).
    pub fn new(arguments: &ShowArguments) -> Result<Shown, Failure> {
        let common = &arguments.common;
        let name = arguments.name.as_deref().map(checked_name).transpose()?;
        let configuration = Configuration::read(common)?;
        let (mut tables, mut locks) = (Vec::new(), Vec::new());
        let settings = match &name {
            Some(name) => {
                let matching = configuration.tables_of(name).into_iter();
                tables.extend(matching.map(|table| (table.text.clone(), Source::File(table.place.clone()))));
                configuration.settings(Settings::default(), common, std::slice::from_ref(name))?
            }
            None => {
                let above = above(Settings::default(), common)?;
                locks = configuration.lock_tables(&above);
                above.over(configuration.of_other_locks())
            }
        };
        let terms = settings.terms(Duration::ZERO)?;
        // A file without a backend is an error only for commands that need a backend.
        let backend = settings.backend.clone();
        if backend.is_some() {
            configuration.backend(backend.as_ref())?;
        }
        let is_wanted = |alias: &&Alias| {
            name.is_none() || backend.as_ref().is_some_and(|named| named.value == alias.name)
        };
        let backends = configuration
            .tables
            .backends
            .iter()
            .filter(is_wanted)
            .map(|alias| ShownTable { name: alias.name.clone(), values: alias.shown() });
        let fallback = configuration.files.is_empty().then(|| default("file:".to_owned()));
        let has_lock = |pool: &&Pool| name.as_ref().is_none_or(|name| pool.names.value.contains(name));
        let pools = configuration.tables.pools.iter().filter(has_lock).map(Pool::shown);
        let grace = Some(default(terms.grace));
        let complete =
            settings.over(Settings { backend: fallback, grace, ..Settings::default() }).over_defaults();
        let mut values = complete.values();
        let required = configuration.tables.require_verified_tls.clone().unwrap_or(default(false));
        let after =
            values.iter().position(|shown| shown.key == "require_server").map_or(values.len(), |at| at + 1);
        values.insert(after, ShownValue::of(REQUIRE_VERIFIED_TLS, required));
        for shown in values.iter_mut().filter(|_| name.is_some()) {
            shown.table = configuration.table_of(&shown.key, shown.known.as_ref());
        }
        let name_or_every = name.as_ref().map_or(EVERY, |name| name.as_str()).to_owned();
        locks.push(ShownTable { name: name_or_every, values });
        Ok(Shown {
            files: configuration.files.iter().map(ToString::to_string).collect(),
            name: name.as_ref().map(ToString::to_string),
            tables,
            backends: backends.collect(),
            pools: pools.collect(),
            locks,
        })
    }
}

fn default<T>(value: T) -> Sourced<T> {
    Sourced { value, source: Source::Default }
}

impl Configuration {
    /// Returns each table of locks as written except the default one, and what overrides its values.
    fn lock_tables(&self, above: &Settings) -> Vec<ShownTable> {
        let tables = self.tables.locks.iter().filter(|table| table.text != EVERY);
        let shown = tables.map(|table| {
            let values = table.settings.values().into_iter().zip(above.values());
            let written = values.filter(|(value, _)| value.known.is_some());
            let overridden = |above: ShownValue| above.known.map(|known| known.source);
            let values = written.map(|(value, above)| ShownValue { overridden: overridden(above), ..value });
            ShownTable { name: table.text.clone(), values: values.collect() }
        });
        shown.collect()
    }

    /// Returns the pattern of the table of locks that a value of this key comes from.
    fn table_of(&self, key: &str, known: Option<&Sourced<Value>>) -> Option<String> {
        let source = known.map(|known| &known.source)?;
        let has_it = |table: &&LockTable| {
            table.settings.shown().iter().any(|(name, value)| {
                *name == key && value.as_ref().is_some_and(|value| value.source == *source)
            })
        };
        self.tables.locks.iter().find(has_it).map(|table| table.text.clone())
    }

    /// Returns the settings of the files for a lock that no table but the default one matches.
    fn of_other_locks(&self) -> Settings {
        let table = self.tables.locks.iter().find(|table| table.text == EVERY);
        let settings = table.map(|table| table.settings.clone()).unwrap_or_default();
        settings.over(Settings {
            backend: self.tables.backend.clone(),
            require_server: self.tables.require_server.clone(),
            ..Settings::default()
        })
    }
}

impl Settings {
    /// Returns every key, without secrets.
    fn values(&self) -> Vec<ShownValue> {
        let values = self.shown().into_iter().map(|(key, mut known)| {
            if let ("backend", Some(Sourced { value: Value::String(url), .. })) = (key, &mut known) {
                *url = registry::redacted(url);
            }
            ShownValue { key: key.to_owned(), known, table: None, overridden: None }
        });
        values.collect()
    }
}

impl Pool {
    fn shown(&self) -> ShownTable {
        let Sourced { value, source } = &self.names;
        let value: Value = value.iter().map(LockName::as_str).collect();
        let names = ShownValue::of("names", Sourced { value, source: source.clone() });
        ShownTable { name: self.name.clone(), values: vec![names] }
    }
}

impl Alias {
    /// Returns the values in effect, without secrets.
    fn shown(&self) -> Vec<ShownValue> {
        let scheme = self.get("url").and_then(|url| url.value.split(':').next()).unwrap_or_default();
        let has_known_options = registry::options(&scheme.to_ascii_lowercase()).is_some();
        let text = |key: &Key| match key.name.as_str() {
            "url" => registry::redacted(&key.value.value),
            PASSWORD => HIDDEN.to_owned(),
            // The options of a store that this build lacks are unknown: one may be a secret.
            name if Key::is_option(name) && name != PASSWORD_FILE && !has_known_options => HIDDEN.to_owned(),
            _ => key.value.value.clone(),
        };
        let shown = |key: &str, value: Value, source: &Source| {
            ShownValue::of(key, Sourced { value, source: source.clone() })
        };
        let keys = self.keys_in_effect().into_iter().flatten();
        let keys = keys.map(|key| shown(&key.name, text(key).into(), &key.value.source));
        let accept = self.accept.iter().map(|Sourced { value, source }| {
            shown("accept", value.iter().map(|warning| warning.name()).collect(), source)
        });
        keys.chain(accept).collect()
    }
}
