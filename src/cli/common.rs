//! What every command takes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::checked;
use crate::duration;

/// What every command takes.
#[derive(Clone, Debug, Default, Args)]
pub struct CommonArguments {
    /// Where the lock lives: file:, file:///dir, redis://host:port/db, rediss://..., or a name from the configuration
    #[arg(short, long, value_name = "URL|ALIAS", help_heading = "Store")]
    pub backend: Option<OsString>,

    /// Read this configuration file, and neither /etc/dlock/config.toml nor ~/.config/dlock/config.toml
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    pub config: Option<PathBuf>,

    /// One attempt to reach the store [default: 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Store")]
    pub connect_timeout: Option<Duration>,

    /// Say nothing of contention, and no notices or warnings
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Say more; repeat for more still
    #[arg(short, long, action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,

    /// How to write messages on standard error [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub log_format: Option<LogFormat>,
}

/// `--log-format`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// dlock: text
    #[default]
    Text,
    /// One JSON object a line
    Json,
}
