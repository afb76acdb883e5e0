//! `dlock status`: its options and its help.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::{CommonArguments, checked};
use crate::duration;

/// `dlock status`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock status [OPTIONS] [NAME|GLOB]...",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = STATUS_DETAILS
)]
pub struct StatusArguments {
    /// Names or patterns (* ? [..]) of the locks to show; by default all that are held or awaited
    #[arg(value_name = "NAME|GLOB", num_args = 0..)]
    pub names: Vec<OsString>,

    /// Show the last outcomes: who ran it, when, for how long, or why it did not run
    #[arg(long, help_heading = "What to show")]
    pub history: bool,

    /// Refresh continuously until interrupted
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = checked(duration::parse), help_heading = "What to show")]
    pub watch: Option<Duration>,

    /// Print one JSON object; with --watch, one per line
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Exit with 75 if any of the locks is held
    #[arg(long, help_heading = "Output")]
    pub exit_code: bool,

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

const STATUS_DETAILS: &str = "\
Examples:
  dlock status
      every lock that a dlock holds or waits for
  dlock status nightly-job 'deploy-*'
      only these; a foreign lock is shown when it is named
  dlock status --history nightly-job
      why did my job not run last night?
  dlock status --watch
      live, until Ctrl-C
  dlock status --exit-code deploy >/dev/null || echo deploying
  dlock status --json | jq -r '.locks[] | select(.state == \"held\") | .name'

Patterns:
  * matches any text (including /), ? any character, [a-z] a range, \\* an asterisk. Quote them for the shell.

Environment:
  DLOCK_BACKEND   default of --backend
  NO_COLOR        no colour, even on a terminal

Exit status:
  0    shown, also when there is nothing to show
  64   wrong usage                      75   with --exit-code: one of them is held
  69   the store is unavailable         77   the store denied access, or with --exit-code:
                                             it is unknown whether one of them is held
  78   configuration or URL wrong";
