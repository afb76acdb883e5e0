//! The settings of a run that need not come from the command line: each once, with its flag.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;
use toml::de::DeValue;

use super::source::{Source, Sourced};
use super::{OnLostArgument, OrphansArgument, RunArguments, WaitArgument, parse_slots, parse_wait};
use crate::duration;
use crate::exit::Failure;

/// The type of a setting: parsed from a file, and shown as it would be written there.
pub trait Setting: Sized + Clone + PartialEq {
    /// Parses a value.
    ///
    /// # Errors
    /// The value is invalid; the message names what was found, but never a text that could be a secret.
    fn read(value: &DeValue<'_>) -> Result<Self, String>;
    /// Returns the value in its file form.
    fn shown(&self) -> Value;
}

macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident: $type:ty, $flag:literal;)*) => {
        /// The settings of a run that need not come from the command line.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Settings { $($(#[$doc])* pub $field: Option<Sourced<$type>>,)* }

        impl Settings {
            /// The keys in a file, in display order.
            pub const KEYS: &[&str] = &[$(stringify!($field)),*];

            /// Returns these settings, completed by those below.
            #[must_use]
            pub fn over(self, below: Settings) -> Settings {
                Settings { $($field: self.$field.or(below.$field)),* }
            }

            /// Sets the value of this key from a file; `None` if there is no such key.
            pub(super) fn set(&mut self, key: &str, value: &DeValue<'_>, source: Source) -> Option<Result<(), String>> {
                match key {
                    $(stringify!($field) => Some(Setting::read(value).map(|value| {
                        self.$field = Some(Sourced { value, source });
                    })),)*
                    _ => None,
                }
            }

            /// Merges the settings of two tables that both apply.
            ///
            /// # Errors
            /// They differ in a setting that nothing above them overrides.
            pub(super) fn together(self, other: Settings, above: &Settings) -> Result<Settings, Failure> {
                Ok(Settings { $($field: agreed(self.$field, other.$field, above.$field.is_some(), $flag)?),* })
            }

            /// Returns each key, and its value with its source if it is set.
            pub fn shown(&self) -> Vec<(&'static str, Option<(Value, Source)>)> {
                let pair = |value: Value, source: &Source| (value, source.clone());
                vec![$((
                    stringify!($field),
                    self.$field.as_ref().map(|known| pair(known.value.shown(), &known.source)),
                )),*]
            }
        }
    };
}

settings! {
    /// The alias or the URL of the backend.
    backend: String, "--backend";
    /// How long to wait.
    wait: WaitArgument, "--wait";
    /// How long to retry a store that cannot be reached.
    retry: Duration, "--retry";
    /// The length of the lease.
    ttl: Duration, "--ttl";
    /// The time between SIGTERM and SIGKILL.
    grace: Duration, "--grace";
    /// The command is stopped after this long; 0 means never.
    max_runtime: Duration, "--max-runtime";
    /// The lock is kept at least this long.
    min_hold: Duration, "--min-hold";
    /// What to do with background processes.
    orphans: OrphansArgument, "--orphans";
    /// What to do when the lock is lost.
    on_lost: OnLostArgument, "--on-lost";
    /// The maximum number of concurrent holders.
    slots: u32, "--slots";
    /// The exit status when another client holds the lock.
    conflict_exit_code: u8, "--conflict-exit-code";
    /// The note shown by `dlock status`.
    note: String, "--note";
    /// Whether contention messages, notices and warnings are suppressed.
    quiet: bool, "--quiet";
    /// The file for the outcome.
    report: PathBuf, "--report";
    /// The file for the metrics.
    metrics_file: PathBuf, "--metrics-file";
}

impl Settings {
    /// Returns the settings of the command line.
    ///
    /// # Errors
    /// The backend is not UTF-8 (78).
    pub fn of_flags(arguments: &RunArguments) -> Result<Settings, Failure> {
        fn given<T: Clone>(value: &Option<T>, flag: &'static str) -> Option<Sourced<T>> {
            value.clone().map(|value| Sourced { value, source: Source::Flag(flag) })
        }
        let wait = match &arguments.wait {
            // --no-wait sets the wait to 0.
            None if arguments.no_wait => given(&Some(WaitArgument::For(Duration::ZERO)), "--no-wait"),
            wait => given(wait, "--wait"),
        };
        Ok(Settings {
            backend: super::configuration::backend_flag(&arguments.common)?,
            wait,
            retry: given(&arguments.retry, "--retry"),
            ttl: given(&arguments.ttl, "--ttl"),
            grace: given(&arguments.grace, "--grace"),
            max_runtime: given(&arguments.max_runtime, "--max-runtime"),
            min_hold: given(&arguments.min_hold, "--min-hold"),
            orphans: given(&arguments.orphans, "--orphans"),
            on_lost: given(&arguments.on_lost, "--on-lost"),
            slots: given(&arguments.slots, "--slots"),
            conflict_exit_code: given(&arguments.conflict_exit_code, "--conflict-exit-code"),
            note: given(&arguments.note, "--note"),
            quiet: given(&arguments.common.quiet.then_some(true), "--quiet"),
            report: given(&arguments.report, "--report"),
            metrics_file: given(&arguments.metrics_file, "--metrics-file"),
        })
    }
}

/// Merges one setting of two tables that both apply.
fn agreed<T: PartialEq>(
    one: Option<Sourced<T>>,
    other: Option<Sourced<T>>,
    is_overridden: bool,
    flag: &str,
) -> Result<Option<Sourced<T>>, Failure> {
    match (&one, &other) {
        (Some(first), Some(second)) if first.value != second.value && !is_overridden => {
            // The values are not repeated: a backend may have a password in it.
            Err(first.source.failure(format!(
                "{} has another value for a lock that is taken together with this one: use {flag}",
                second.source
            )))
        }
        _ => Ok(one.or(other)),
    }
}

/// A text.
pub(super) fn text<'v>(value: &'v DeValue<'_>) -> Result<&'v str, String> {
    match value {
        DeValue::String(text) if text.contains('\0') => Err("a text may not contain \\u0000".into()),
        DeValue::String(text) => Ok(text),
        other => Err(format!("expected a string, found {}", kind(other))),
    }
}

/// A text or a number, as a text.
pub(super) fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::String(_) => text(value).map(str::to_owned),
        other => Err(format!("expected a string or a number, found {}", kind(other))),
    }
}

/// Returns the kind of a value, for messages.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

fn parsed<T>(value: &DeValue<'_>, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, String> {
    let text = scalar(value)?;
    parse(&text).map_err(|error| format!("invalid value '{text}': {error}"))
}

fn chosen<T: ValueEnum>(value: &DeValue<'_>) -> Result<T, String> {
    let text = text(value)?;
    T::from_str(text, false).map_err(|_| {
        let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<String> = names.map(|name| name.get_name().to_owned()).collect();
        format!("invalid value '{text}'; possible: {}", names.join(", "))
    })
}

fn choice(value: &impl ValueEnum) -> Value {
    value.to_possible_value().map_or(Value::Null, |value| value.get_name().into())
}

impl Setting for String {
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        text(value).map(str::to_owned)
    }
    fn shown(&self) -> Value {
        self.as_str().into()
    }
}

impl Setting for Duration {
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        parsed(value, duration::parse)
    }
    fn shown(&self) -> Value {
        duration::exact(*self).into()
    }
}

impl Setting for WaitArgument {
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        parsed(value, parse_wait)
    }
    fn shown(&self) -> Value {
        match self {
            WaitArgument::For(duration) => duration.shown(),
            WaitArgument::Forever => "forever".into(),
        }
    }
}

/// A number of slots.
impl Setting for u32 {
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        parsed(value, parse_slots)
    }
    fn shown(&self) -> Value {
        (*self).into()
    }
}

/// An exit status.
impl Setting for u8 {
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        parsed(value, |text| text.parse().map_err(|_| "expected a number from 0 to 255".to_owned()))
    }
    fn shown(&self) -> Value {
        (*self).into()
    }
}

impl Setting for bool {
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::Boolean(value) => Ok(*value),
            other => Err(format!("expected true or false, found {}", kind(other))),
        }
    }
    fn shown(&self) -> Value {
        (*self).into()
    }
}

impl Setting for PathBuf {
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        let text = text(value)?;
        match text.starts_with('/') {
            true => Ok(PathBuf::from(text)),
            false => Err(format!("invalid value '{text}': expected an absolute path")),
        }
    }
    fn shown(&self) -> Value {
        self.to_string_lossy().into()
    }
}

impl Setting for OrphansArgument {
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        chosen(value)
    }
    fn shown(&self) -> Value {
        choice(self)
    }
}

impl Setting for OnLostArgument {
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        chosen(value)
    }
    fn shown(&self) -> Value {
        choice(self)
    }
}
