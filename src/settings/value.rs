//! The types of settings: parsed from an option, a variable or a file, and shown as they would be written there.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::Value;
use toml::de::DeValue;

use super::{Source, Sourced};
use crate::backend::registry;
use crate::child::signals::StopSignal;
use crate::child::stop::Orphans;
use crate::duration;
use crate::exit::Failure;
use crate::lease::acquire::Wait;
use crate::lock::overdue::AgeLimits;
use crate::lock::{FencingToken, Mode};

pub(super) trait Setting: Clone + PartialEq + Send + Sync + 'static {
    /// The name of the value in the help; completions are derived from it.
    const VALUE_NAME: &'static str;

    /// Parses the text of an option or a variable.
    ///
    /// # Errors
    /// What was expected.
    fn parse(text: &str) -> Result<Self, String>;

    /// Describes the value of an option.
    fn option(option: Arg) -> Arg {
        option.allow_hyphen_values(true).value_parser(checked(Self::parse))
    }

    /// Parses a value of a file.
    ///
    /// # Errors
    /// The value is invalid; the message names what was found, but never a text that could be a secret.
    fn read(value: &DeValue<'_>) -> Result<Self, String> {
        let text = scalar(value)?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", invalid(&text)))
    }

    /// Returns the value in its file form.
    fn shown(&self) -> Value;
}

/// A setting with a few named values: each with its name and its help.
trait Choice: Copy + PartialEq + Send + Sync + 'static {
    const VALUES: &'static [(Self, &'static str, &'static str)];
}

/// Returns a value parser from a function; a value that is not UTF-8 is shown lossily.
pub(super) fn checked<T, F>(parse: F) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static,
{
    clap::builder::NonEmptyStringValueParser::new().try_map(move |text: String| parse(&text))
}

/// `--fencing-token`
///
/// # Errors
/// The text is not a positive integer below 2^53.
pub(super) fn parse_fencing_token(text: &str) -> Result<FencingToken, String> {
    let number = text.parse().ok().and_then(FencingToken::new);
    number.ok_or_else(|| "expected a positive integer, as dlock status --wide shows it".to_owned())
}

/// `--fencing-floor`
///
/// # Errors
/// The text is not a positive integer, or no larger fencing token would be left.
pub(super) fn parse_fencing_floor(text: &str) -> Result<FencingToken, String> {
    let number = text.parse().ok().and_then(FencingToken::new);
    number.filter(|floor| floor.number() < FencingToken::END - 1).ok_or_else(|| {
        format!("expected a positive integer below {}, which leaves a larger token", FencingToken::END - 1)
    })
}

/// The longest limit of `--overdue`: the store forgets a success a day later.
const LONGEST_AGE: Duration = Duration::from_secs(30 * 86400);

/// `--overdue`
///
/// # Errors
/// The text is not one duration, or two of which the second is longer.
pub(super) fn parse_age_limits(text: &str) -> Result<AgeLimits, String> {
    let (warning, critical) = match text.split_once(',') {
        Some((warning, critical)) => (warning, Some(critical)),
        None => (text, None),
    };
    let limit = |text: &str| match duration::parse(text)? {
        Duration::ZERO => Err("must be longer than zero".to_owned()),
        limit if limit > LONGEST_AGE => {
            let (limit, longest) = (duration::show(limit), duration::show(LONGEST_AGE));
            Err(format!("{limit} is longer than {longest}: stores forget a success after 31d"))
        }
        limit => Ok(limit),
    };
    let limits = AgeLimits { warning: limit(warning)?, critical: critical.map(limit).transpose()? };
    match limits.critical {
        Some(critical) if critical <= limits.warning => {
            let (warning, critical) = (duration::show(limits.warning), duration::show(critical));
            Err(format!("the second limit, {critical}, is not longer than the first, {warning}"))
        }
        _ => Ok(limits),
    }
}

/// Completes the description of an option.
pub(super) fn described<T: Setting>(option: Arg, help: &str, default: Option<Value>) -> Arg {
    let help = help.trim();
    let help = match default {
        Some(Value::Bool(_)) => help.to_owned(),
        Some(Value::String(default)) => format!("{help} [default: {default}]"),
        Some(default) => format!("{help} [default: {default}]"),
        None => help.to_owned(),
    };
    T::option(option.value_name(T::VALUE_NAME).help(help))
}

/// Returns the value of a flag that the command has and that was given.
pub(super) fn of_flag<T: Setting>(matches: &ArgMatches, key: &str, flag: &'static str) -> Option<Sourced<T>> {
    let value = matches.try_get_one::<T>(key).ok().flatten()?;
    // A flag without a value has one even if it was not given.
    let is_given = matches.value_source(key) == Some(ValueSource::CommandLine);
    is_given.then(|| Sourced { value: value.clone(), source: Source::Flag(flag) })
}

/// The variables that may not be empty, as an unset secret of a CI job is: the default in their place could be a lock for
/// this host only.
const NEVER_EMPTY: &[&str] = &["DLOCK_BACKEND", "DLOCK_CONFIG"];

/// Reads a variable; an empty one counts as unset.
///
/// # Errors
/// It is empty and may not be (78).
pub(super) fn variable(name: &'static str) -> Result<Option<OsString>, Failure> {
    match std::env::var_os(name) {
        Some(value) if value.is_empty() && NEVER_EMPTY.contains(&name) => {
            let why = "it is set and empty: set it to a value, or unset it";
            Err(Source::Environment(name).failure(why))
        }
        value => Ok(value.filter(|value| !value.is_empty())),
    }
}

/// Returns the value of a variable, if it is set.
///
/// # Errors
/// It has an invalid value (78).
pub(super) fn of_environment<T: Setting>(name: &'static str) -> Result<Option<Sourced<T>>, Failure> {
    let source = Source::Environment(name);
    let Some(value) = variable(name)? else { return Ok(None) };
    let parsed =
        utf8(&value).and_then(|text| T::parse(text).map_err(|error| format!("{}: {error}", invalid(text))));
    match parsed {
        Ok(value) => Ok(Some(Sourced { value, source })),
        Err(error) => Err(source.failure(error)),
    }
}

/// Returns that a value is invalid, repeating it. The password of a URL in the place of another value is not repeated.
fn invalid(text: &str) -> String {
    format!("invalid value '{}'", registry::repeatable(text))
}

pub(super) fn utf8(value: &OsStr) -> Result<&str, String> {
    value.to_str().ok_or_else(|| "not valid UTF-8".to_owned())
}

/// Returns a text of a file.
pub(super) fn text<'v>(value: &'v DeValue<'_>) -> Result<&'v str, String> {
    match value {
        DeValue::String(text) if text.contains('\0') => Err("a text may not contain \\u0000".into()),
        DeValue::String(text) => Ok(text),
        other => Err(format!("expected a string, found {}", kind(other))),
    }
}

/// Returns a text or a number of a file, as a text.
pub(super) fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::String(_) => text(value).map(str::to_owned),
        other => Err(format!("expected a string or a number, found {}", kind(other))),
    }
}

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

impl Setting for String {
    const VALUE_NAME: &'static str = "TEXT";
    fn parse(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }
    fn option(option: Arg) -> Arg {
        option.value_parser(ValueParser::string())
    }
    fn read(value: &DeValue<'_>) -> Result<String, String> {
        text(value).map(str::to_owned)
    }
    fn shown(&self) -> Value {
        self.as_str().into()
    }
}

impl Setting for PathBuf {
    const VALUE_NAME: &'static str = "FILE";
    fn parse(text: &str) -> Result<PathBuf, String> {
        match text.starts_with('/') {
            true => Ok(PathBuf::from(text)),
            false => Err("expected an absolute path".into()),
        }
    }
    /// On the command line, a path may be relative, and need not be UTF-8.
    fn option(option: Arg) -> Arg {
        option.value_parser(ValueParser::path_buf())
    }
    fn read(value: &DeValue<'_>) -> Result<PathBuf, String> {
        let text = text(value)?;
        PathBuf::parse(text).map_err(|error| format!("{}: {error}", invalid(text)))
    }
    fn shown(&self) -> Value {
        self.to_string_lossy().into()
    }
}

impl Setting for Duration {
    const VALUE_NAME: &'static str = "DURATION";
    fn parse(text: &str) -> Result<Duration, String> {
        duration::parse(text)
    }
    fn shown(&self) -> Value {
        duration::exact(*self).into()
    }
}

impl Setting for Wait {
    const VALUE_NAME: &'static str = "DURATION|forever";
    fn parse(text: &str) -> Result<Wait, String> {
        match text {
            "forever" => Ok(Wait::Forever),
            _ => match duration::parse(text) {
                Ok(Duration::ZERO) => Ok(Wait::No),
                Ok(duration) => Ok(Wait::For(duration)),
                Err(error) => Err(format!("{error}, or forever")),
            },
        }
    }
    fn shown(&self) -> Value {
        match self {
            Wait::No => Duration::ZERO.shown(),
            Wait::For(duration) => duration.shown(),
            Wait::Forever => "forever".into(),
        }
    }
}

/// A number of slots.
impl Setting for u32 {
    const VALUE_NAME: &'static str = "N";
    fn parse(text: &str) -> Result<u32, String> {
        let most = Mode::MOST_SLOTS;
        let slots = text.parse().ok().filter(|slots| (1..=most).contains(slots));
        slots.ok_or_else(|| format!("expected a number from 1 to {most}"))
    }
    fn shown(&self) -> Value {
        (*self).into()
    }
}

/// An exit status.
impl Setting for u8 {
    const VALUE_NAME: &'static str = "N";
    fn parse(text: &str) -> Result<u8, String> {
        text.parse().map_err(|_| "expected a number from 0 to 255".to_owned())
    }
    fn shown(&self) -> Value {
        (*self).into()
    }
}

impl Setting for StopSignal {
    const VALUE_NAME: &'static str = "SIG";
    fn parse(text: &str) -> Result<StopSignal, String> {
        StopSignal::parse(text).map_err(str::to_owned)
    }
    fn shown(&self) -> Value {
        self.to_string().into()
    }
}

impl Setting for bool {
    const VALUE_NAME: &'static str = "";
    fn parse(text: &str) -> Result<bool, String> {
        text.parse().map_err(|_| "expected true or false".to_owned())
    }
    fn option(option: Arg) -> Arg {
        option.action(ArgAction::SetTrue)
    }
    fn read(value: &DeValue<'_>) -> Result<bool, String> {
        match value {
            DeValue::Boolean(value) => Ok(*value),
            other => Err(format!("expected true or false, found {}", kind(other))),
        }
    }
    fn shown(&self) -> Value {
        (*self).into()
    }
}

impl Choice for Orphans {
    const VALUES: &'static [(Orphans, &'static str, &'static str)] = &[
        (Orphans::Leave, "leave", "Leave them running without the lock"),
        (Orphans::Wait, "wait", "Hold the lock until they have ended"),
        (Orphans::Kill, "kill", "Kill them, then release the lock"),
    ];
}

/// `--on-lost`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// Stop the command.
    Kill,
    /// Warn and let it go on.
    Warn,
}

impl Choice for OnLost {
    const VALUES: &'static [(OnLost, &'static str, &'static str)] = &[
        (OnLost::Kill, "kill", "Stop the command and exit 76"),
        (OnLost::Warn, "warn", "Warn and let it go on"),
    ];
}

/// `--supersede`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supersede {
    /// Waiters.
    Waiting,
    /// The holder as well.
    Running,
}

impl Choice for Supersede {
    const VALUES: &'static [(Supersede, &'static str, &'static str)] = &[
        (Supersede::Waiting, "waiting", "Older waiters leave and exit 75"),
        (Supersede::Running, "running", "The holder stops its command and exits 76, too"),
    ];
}

impl<T: Choice> Setting for T {
    const VALUE_NAME: &'static str = "WHAT";
    fn parse(text: &str) -> Result<T, String> {
        let found = T::VALUES.iter().find(|(_, name, _)| *name == text).map(|(value, ..)| *value);
        found.ok_or_else(|| {
            let names: Vec<&str> = T::VALUES.iter().map(|(_, name, _)| *name).collect();
            format!("{}; possible: {}", invalid(text), names.join(", "))
        })
    }
    fn option(option: Arg) -> Arg {
        let values = T::VALUES.iter().map(|(_, name, help)| PossibleValue::new(*name).help(*help));
        option.value_parser(PossibleValuesParser::new(values).try_map(|name| T::parse(&name)))
    }
    fn read(value: &DeValue<'_>) -> Result<T, String> {
        T::parse(text(value)?)
    }
    fn shown(&self) -> Value {
        T::VALUES.iter().find(|(value, ..)| value == self).map_or(Value::Null, |(_, name, _)| (*name).into())
    }
}
