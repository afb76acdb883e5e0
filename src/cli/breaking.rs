//! `dlock break`: its options and its help.

use std::ffi::OsString;

use clap::Args;

use super::{CommonArguments, WaitArgument, checked, parse_wait};
use crate::lock::FencingToken;

/// `dlock break`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock break [OPTIONS] NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = BREAK_DETAILS
)]
pub struct BreakArguments {
    /// Name of the lock
    #[arg(value_name = "NAME", num_args = 0..)]
    pub names: Vec<OsString>,

    /// Do not ask for confirmation, even on a terminal
    #[arg(short, long, help_heading = "Break")]
    pub yes: bool,

    /// Break only the hold with this fencing token, as shown by status
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = checked(parse_fencing_token), help_heading = "Break")]
    pub fencing_token: Option<FencingToken>,

    /// Reason to report to the holder
    #[arg(long, value_name = "TEXT", help_heading = "Break")]
    pub reason: Option<String>,

    /// Wait up to this long until the lock is free, or forever [default: the rest of the lease]
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION|forever", allow_hyphen_values = true, value_parser = checked(parse_wait), help_heading = "Break")]
    pub wait: Option<WaitArgument>,

    /// Remove the lock even if its holder cannot be notified or has not responded: its command may still run
    #[arg(long, help_heading = "Break")]
    pub force: bool,

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

/// `--fencing-token`
///
/// # Errors
/// The text is not a positive integer below 2^53.
fn parse_fencing_token(text: &str) -> Result<FencingToken, String> {
    let number = text.parse().ok().and_then(FencingToken::new);
    number.ok_or_else(|| "expected a positive integer, as dlock status shows it".to_owned())
}

const BREAK_DETAILS: &str = "\
Revokes the lock: the dlock that holds it stops its command (SIGTERM, grace, SIGKILL), releases it, and exits 76.
The next waiter gets the lock only then, so that two commands never run at the same time.

Examples:
  dlock break nightly-job --reason 'hangs, see #4711'
      asks for confirmation on a terminal; waits until the lock is free
  dlock break --yes --fencing-token 1769824800123456 nightly-job
      break only that hold
  dlock break --force nightly-job
      removes a lock whose holder cannot be notified: a foreign client, a token of dlock acquire, a crashed host.
      A command that still runs under it is not stopped: stop it first

Environment:
  DLOCK_BACKEND   default of --backend

Exit status:
  0    the lock is free, or was
  64   wrong usage                      75   not yet free, or the holder cannot be notified
  69   the store is unavailable         77   the store denied access
  78   configuration or URL wrong";
