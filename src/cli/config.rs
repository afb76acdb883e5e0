//! `dlock config`: its options and its help.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::CommonArguments;

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
#[command(after_help = "With --help: examples, files and exit status.", after_long_help = SHOW_DETAILS)]
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

const SHOW_DETAILS: &str = "\
Nothing is contacted. Passwords are shown as ***.

Examples:
  dlock config show
      every backend and every table of locks
  dlock config show nightly-db
      what a dlock run nightly-db would do, and why

Files:
  /etc/dlock/config.toml        the host's
  ~/.config/dlock/config.toml   the user's, which overrides it key by key
  --config FILE or DLOCK_CONFIG replaces both. The command line overrides the environment, which overrides the files.

  backend = \"prod\"                       # an alias or a URL
  [backends.prod]
  url = \"redis://redis.example.com\"
  username = \"dlock\"
  password_file = \"/etc/dlock/redis.pass\"
  accept = [\"eviction\"]                  # warnings to suppress: eviction, insecure, efficiency
  [locks.\"nightly-*\"]                    # an exact name overrides a pattern, a longer pattern a shorter one
  ttl = \"1m\"
  min_hold = \"50s\"

  Keys of a backend: url, username, password, password_file, accept, and every option of its URL.
  Keys of locks: backend, wait, retry, ttl, grace, max_runtime, min_hold, orphans, on_lost, slots, conflict_exit_code,
  note, quiet, report, metrics_file. A file with a password in it must not be readable by others.

Exit status:
  0    printed                          78   configuration wrong
  64   wrong usage";
