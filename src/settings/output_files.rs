//! The files in which a run reports its outcome.

use std::ffi::OsString;
use std::path::PathBuf;

use super::any::AnyOf;
use super::{Configuration, RunArguments, Settings, Source, Sourced, file_of};
use crate::lock::LockName;

/// The output files for the outcome of a run, known even if the remaining settings are invalid.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OutputFiles {
    /// `--report`
    pub report: Option<Sourced<PathBuf>>,
    /// `--metrics-file`
    pub metrics: Option<Sourced<PathBuf>>,
}

impl OutputFiles {
    /// Finds them in a command line that is not valid.
    pub fn seen_in(arguments: &[OsString]) -> OutputFiles {
        let file = |option: &'static str| {
            file_of(option, arguments).map(|value| Sourced { value, source: Source::Flag(option) })
        };
        OutputFiles { report: file("--report"), metrics: file("--metrics-file") }
    }

    /// Resolves them separately: from the command line alone if the configuration cannot be read, or if the
    /// tables of the locks contradict each other.
    pub fn of(arguments: &RunArguments, configuration: Option<&Configuration>) -> OutputFiles {
        let Settings { report, metrics_file, .. } = arguments.settings.clone();
        let above = Settings { report, metrics_file, ..Settings::default() };
        let is_file = |key: &str| ["report", "metrics_file"].contains(&key);
        let names = |known: &Configuration| match arguments.any.as_deref().map(AnyOf::parse) {
            Some(choice) => choice.and_then(|choice| choice.names(known)).unwrap_or_default(),
            None => arguments.names.iter().filter_map(|name| LockName::new(name.to_str()?).ok()).collect(),
        };
        let resolved = configuration
            .and_then(|known| known.under(above.clone(), &names(known), is_file).ok())
            .unwrap_or(above);
        OutputFiles { report: resolved.report, metrics: resolved.metrics_file }
    }
}
