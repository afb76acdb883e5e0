//! Options of every command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Command, ValueEnum};

use super::backends::wrong_url;
use super::value::{checked, utf8};
use super::{Source, Sourced};
use crate::duration;
use crate::exit::Failure;

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct CommonArguments {
    /// Where the lock lives: a URL such as file: or redis://host/db (see dlock man backends), or an alias
    #[arg(short, long, value_name = "URL|ALIAS", help_heading = "Store")]
    pub backend: Option<OsString>,

    /// Read this configuration file instead of those of the host and the user
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    pub config: Option<PathBuf>,

    /// Time limit of an attempt to connect [default: 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Store")]
    pub connect_timeout: Option<Duration>,

    /// Suppress contention messages, notices and warnings
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Print more messages; may be repeated
    #[arg(short, long, action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,

    /// Format of messages: text, or json (an object per line) [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub log_format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line, after `dlock: `
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl CommonArguments {
    /// Returns the time limit for one attempt to reach the store.
    ///
    /// # Errors
    /// It is 0 (64).
    pub(super) fn connect_timeout(&self) -> Result<Duration, Failure> {
        match self.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT) {
            Duration::ZERO => Err(Failure::usage("--connect-timeout: 0 leaves no time to connect")),
            connect_timeout => Ok(connect_timeout),
        }
    }

    /// `--backend`
    ///
    /// # Errors
    /// It is not UTF-8 (78).
    pub(super) fn backend_flag(&self) -> Result<Option<Sourced<String>>, Failure> {
        let Some(value) = &self.backend else { return Ok(None) };
        let source = Source::Flag("--backend");
        match utf8(value) {
            Ok(value) => Ok(Some(Sourced { value: value.to_owned(), source })),
            Err(error) => Err(wrong_url(&source, error)),
        }
    }
}

/// Returns the position of the first word that is neither an option of every command nor its value.
pub(super) fn position_of_command(arguments: &[OsString]) -> Option<usize> {
    // Nearly always; parsing takes longer.
    if !arguments.get(1)?.as_encoded_bytes().starts_with(b"-") {
        return Some(1);
    }
    let options = CommonArguments::augment_args(Command::new("dlock")).args_override_self(true);
    let matches = options.allow_external_subcommands(true).try_get_matches_from(arguments).ok()?;
    let (_command, rest) = matches.subcommand()?;
    let rest = rest.get_many::<OsString>("").map_or(0, Iterator::count);
    Some(arguments.len() - 1 - rest)
}
