//! Command line over environment: one value for each setting, and where a bad one came from.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::{CommonArguments, RunArguments, WaitArgument, parse_wait};
use crate::duration;
use crate::exit::Failure;
use crate::lock::LockName;

/// The settings of a run that may come from elsewhere than the command line, resolved.
#[derive(Debug, PartialEq, Eq)]
pub struct RunSettings {
    /// The backend URL, if anybody named one.
    pub backend: Option<Sourced<String>>,
    /// The lease.
    pub ttl: Option<Sourced<Duration>>,
    /// How long to wait.
    pub wait: Option<Sourced<WaitArgument>>,
}

/// Where the outcome of a run is to be written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OutputFiles {
    /// `--report`
    pub report: Option<Sourced<PathBuf>>,
    /// `--metrics-file`
    pub metrics: Option<Sourced<PathBuf>>,
}

impl OutputFiles {
    /// Resolves them on their own, so that they are known whatever is wrong with the rest.
    pub fn of(arguments: &RunArguments) -> OutputFiles {
        let flag = |path: &Option<PathBuf>, flag| {
            path.clone().map(|value| Sourced { value, source: Source::Flag(flag) })
        };
        OutputFiles {
            report: flag(&arguments.report, "--report"),
            metrics: flag(&arguments.metrics_file, "--metrics-file"),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An option on the command line: a bad value is wrong usage (64).
    Flag(&'static str),
    /// A variable of the environment: a bad value is wrong configuration (78).
    Environment(&'static str),
    /// Nobody said anything.
    Default,
}

impl Source {
    /// A failure of the kind that this source makes it, naming the source.
    pub fn failure(self, message: impl fmt::Display) -> Failure {
        match self {
            Source::Flag(flag) => Failure::usage(format!("{flag}: {message}")),
            Source::Environment(name) => Failure::config(format!("{name}: {message}")),
            Source::Default => Failure::config(message.to_string()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Flag(name) | Source::Environment(name) => name,
            Source::Default => "the default",
        })
    }
}

/// Reads a variable; empty counts as unset.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Resolves the backend of these locks.
///
/// # Errors
/// A variable holds what it cannot hold, or the option does (78).
pub fn resolve_backend(
    arguments: &CommonArguments,
    _names: &[LockName],
) -> Result<Option<Sourced<String>>, Failure> {
    if variable("DLOCK_CONFIG").is_some() {
        return Err(Failure::config("DLOCK_CONFIG: this version reads no configuration file; unset it"));
    }
    match &arguments.backend {
        Some(url) => {
            let wrong = |error| Failure::config(format!("--backend: {error}"));
            Ok(Some(Sourced {
                value: text(url).map_err(wrong)?.to_owned(),
                source: Source::Flag("--backend"),
            }))
        }
        None => from_environment("DLOCK_BACKEND", |text| Ok::<_, String>(text.to_owned())),
    }
}

/// Resolves the settings of a run.
///
/// # Errors
/// A variable holds what it cannot hold (78), or an option does (64).
pub fn resolve(arguments: &RunArguments) -> Result<RunSettings, Failure> {
    let backend = resolve_backend(&arguments.common, &[])?;
    let ttl = match arguments.ttl {
        Some(value) => Some(Sourced { value, source: Source::Flag("--ttl") }),
        None => from_environment("DLOCK_TTL", duration::parse)?,
    };
    // Not to wait is a flag too, and flags come first.
    let wait = match arguments.wait {
        Some(value) => Some(Sourced { value, source: Source::Flag("--wait") }),
        None if arguments.no_wait => None,
        None => from_environment("DLOCK_WAIT", parse_wait)?,
    };
    Ok(RunSettings { backend, ttl, wait })
}

fn from_environment<T>(
    name: &'static str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<Sourced<T>>, Failure> {
    let source = Source::Environment(name);
    let Some(value) = variable(name) else { return Ok(None) };
    let parsed =
        text(&value).and_then(|text| parse(text).map_err(|error| format!("invalid value '{text}': {error}")));
    parsed.map(|value| Some(Sourced { value, source })).map_err(|error| source.failure(error))
}

fn text(value: &OsStr) -> Result<&str, String> {
    value.to_str().ok_or_else(|| "not valid UTF-8".to_owned())
}
