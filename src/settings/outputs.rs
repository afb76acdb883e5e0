//! The output files for the outcome of a run, known even if the remaining settings are invalid.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{Configuration, RunArguments, Settings, Source, Sourced, file_of};
use crate::lock::LockName;

/// The output files for the outcome of a run.
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
        let only_these = |settings: Settings| Settings {
            report: settings.report,
            metrics_file: settings.metrics_file,
            ..Settings::default()
        };
        let above = only_these(arguments.settings.clone());
        let names = arguments.names.iter().filter_map(|name| LockName::new(name.to_str()?).ok());
        let resolved = configuration
            .and_then(|known| known.under(above.clone(), &names.collect::<Vec<_>>(), only_these).ok())
            .unwrap_or(above);
        OutputFiles { report: resolved.report, metrics: resolved.metrics_file }
    }
}
