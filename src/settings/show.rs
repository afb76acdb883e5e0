//! `dlock config show`: its options, and the values that it prints.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::target::checked_name;
use super::{CommonArguments, Configuration, Keys, Settings, Source, Sourced, limits, said_above};
use crate::exit::Failure;
use crate::lease::validity::Terms;

/// `dlock config`
#[derive(Debug, Args)]
pub struct ConfigArguments {
    /// The subcommand.
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

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

fn show_help() -> String {
    let keys: Vec<String> = Settings::KEYS.chunks(8).map(|keys| keys.join(", ")).collect();
    include_str!("help/config-show.txt").replace("{keys}", &keys.join(",\n  "))
}

/// The values to show, in display order.
pub struct Shown {
    /// The files that were read; each overrides the ones before it.
    pub files: Vec<String>,
    /// The lock that was named.
    pub name: Option<String>,
    /// The pattern of the table that applies to it, and its source.
    pub table: Option<(String, Source)>,
    /// `[backends.NAME]`
    pub backends: Vec<ShownTable>,
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
    /// The key.
    pub key: String,
    /// The value; `None` if it is not set and there is no default.
    pub value: Option<Value>,
    /// Where it came from.
    pub source: Source,
    /// The source that overrides it.
    pub overridden: Option<Source>,
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
        let mut shown = Shown {
            files: configuration.files().iter().map(ToString::to_string).collect(),
            name: name.as_ref().map(ToString::to_string),
            table: None,
            backends: Vec::new(),
            locks: Vec::new(),
        };
        let (title, settings) = match &name {
            Some(name) => {
                let table = configuration.table_of(name)?;
                shown.table = table.map(|(text, place)| (text.to_owned(), Source::File(place.clone())));
                let names = std::slice::from_ref(name);
                (name.as_str(), configuration.settings(Settings::default(), common, names)?)
            }
            None => {
                shown.locks = written(&configuration, common)?;
                ("*", configuration.settings_of_others(common)?)
            }
        };
        let terms = limits::terms(&settings, Duration::ZERO)?;
        // A file without a backend is an error only for commands that need a backend.
        let named = settings.backend.clone();
        if named.is_some() {
            configuration.backend(named.as_ref())?;
        }
        let is_wanted =
            |alias: &str| name.is_none() || named.as_ref().is_some_and(|named| named.value == alias);
        for (alias, keys) in configuration.aliases() {
            if is_wanted(alias) {
                shown.backends.push(table(alias, keys, &Settings::default()));
            }
        }
        let fallback = shown.files.is_empty().then(|| "file:".to_owned());
        shown.locks.push(complete(title, settings, &terms, fallback));
        Ok(shown)
    }
}

/// Returns the tables of locks as written, with the values that are overridden.
fn written(configuration: &Configuration, common: &CommonArguments) -> Result<Vec<ShownTable>, Failure> {
    let above = said_above(common)?;
    let tables = configuration.lock_tables();
    Ok(tables.into_iter().map(|(pattern, keys)| table(pattern, keys, &above)).collect())
}

fn table(name: &str, keys: Keys, above: &Settings) -> ShownTable {
    let above = super::shown(above);
    let values = keys.into_iter().map(|(key, value, source)| {
        let overridden = above.iter().find(|(other, ..)| *other == key).map(|(.., source)| source.clone());
        ShownValue { key, value: Some(value), source, overridden }
    });
    ShownTable { name: name.to_owned(), values: values.collect() }
}

/// Returns every setting with its value in effect.
fn complete(name: &str, settings: Settings, terms: &Terms, backend: Option<String>) -> ShownTable {
    fn default<T>(value: T) -> Option<Sourced<T>> {
        Some(Sourced { value, source: Source::Default })
    }
    let known = settings.over_defaults().over(Settings {
        backend: backend.and_then(default),
        grace: default(terms.grace),
        ..Settings::default()
    });
    let shown = super::shown(&known);
    let values = Settings::KEYS.iter().map(|key| {
        let (value, source) = match shown.iter().find(|(known, ..)| known == key) {
            Some((_, value, source)) => (Some(value.clone()), source.clone()),
            None => (None, Source::Default),
        };
        ShownValue { key: (*key).to_owned(), value, source, overridden: None }
    });
    ShownTable { name: name.to_owned(), values: values.collect() }
}
