//! Values and their sources.

use std::fmt;
use std::sync::Arc;

use crate::exit::Failure;

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    pub value: T,
    pub source: Source,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An option on the command line: a bad value is wrong usage (64).
    Flag(&'static str),
    /// An environment variable: a bad value is wrong configuration (78).
    Environment(&'static str),
    /// A configuration file: a bad value is wrong configuration (78).
    File(FileLocation),
    /// The default: no source sets it.
    Default,
}

/// A place in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLocation {
    /// The file, as named.
    pub file: Arc<str>,
    /// The rank of the file: a later one overrides those before it.
    pub rank: usize,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The key of the value.
    pub key: Arc<str>,
}

impl Source {
    /// Returns a failure that names the source, and whose kind depends on it.
    pub fn failure(&self, message: impl fmt::Display) -> Failure {
        match self {
            Source::Flag(flag) => Failure::usage(format!("{flag}: {message}")),
            Source::Environment(name) => Failure::config(format!("{name}: {message}")),
            Source::File(place) => Failure::config(format!("{place}: {}: {message}", place.key)),
            Source::Default => Failure::config(message.to_string()),
        }
    }

    /// Returns the failure that the value does not go with that of another source. Only two flags contradict each other on the
    /// command line.
    pub fn conflict(&self, other: &Source, message: impl fmt::Display) -> Failure {
        match self {
            Source::Flag(flag) if other.is_configuration() => Failure::config(format!("{flag}: {message}")),
            _ => self.failure(message),
        }
    }

    /// Whether this is in a file that overrides the file of the other.
    pub fn overrides(&self, other: &Source) -> bool {
        matches!((self, other), (Source::File(one), Source::File(other)) if one.rank > other.rank)
    }

    /// Whether the value is set, but not on the command line.
    pub fn is_configuration(&self) -> bool {
        matches!(self, Source::Environment(_) | Source::File(_))
    }
}

/// Writes the flag, the variable, or the line of the file.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(name) | Source::Environment(name) => f.write_str(name),
            Source::File(place) => write!(f, "{}:{}", place.file, place.line),
            Source::Default => f.write_str("default"),
        }
    }
}

impl fmt::Display for FileLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}
