//! Values, and where they came from.

use std::fmt;
use std::sync::Arc;

use crate::exit::Failure;

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An option on the command line: a bad value is wrong usage (64).
    Flag(&'static str),
    /// A variable of the environment: a bad value is wrong configuration (78).
    Environment(&'static str),
    /// A configuration file: a bad value is wrong configuration (78).
    File(FileLocation),
    /// Nobody said anything.
    Default,
}

/// Where something stands in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLocation {
    /// The file, as it was named.
    pub file: Arc<str>,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The key whose value stands there.
    pub key: Arc<str>,
}

impl Source {
    /// A failure of the kind that this source makes it, naming the source.
    pub fn failure(&self, message: impl fmt::Display) -> Failure {
        match self {
            Source::Flag(flag) => Failure::usage(format!("{flag}: {message}")),
            Source::Environment(name) => Failure::config(format!("{name}: {message}")),
            Source::File(place) => Failure::config(format!("{place}: {}: {message}", place.key)),
            Source::Default => Failure::config(message.to_string()),
        }
    }

    /// Whether it is somewhere else than on the command line, as far as anybody said anything at all.
    pub fn is_configuration(&self) -> bool {
        matches!(self, Source::Environment(_) | Source::File(_))
    }
}

/// As one refers to it: the flag, the variable, or the line of the file.
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
