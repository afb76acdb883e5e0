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

    /// Do not ask, on a terminal neither
    #[arg(short, long, help_heading = "Break")]
    pub yes: bool,

    /// Only the hold with this fencing token, as status shows it
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = checked(parse_fencing_token), help_heading = "Break")]
    pub fencing_token: Option<FencingToken>,

    /// Told to whoever holds the lock
    #[arg(long, value_name = "TEXT", help_heading = "Break")]
    pub reason: Option<String>,

    /// Wait at most so long until the lock is free, or forever [default: the rest of the lease]
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION|forever", allow_hyphen_values = true, value_parser = checked(parse_wait), help_heading = "Break")]
    pub wait: Option<WaitArgument>,

    /// Take the lock away though its holder cannot be told, or has not answered: its command may still run
    #[arg(long, help_heading = "Break")]
    pub force: bool,

    /// Those of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

/// `--fencing-token`
///
/// # Errors
/// No positive integer below 2^53.
fn parse_fencing_token(text: &str) -> Result<FencingToken, String> {
    let number = text.parse().ok().and_then(FencingToken::new);
    number.ok_or_else(|| "expected a positive integer, as dlock status shows it".to_owned())
}

const BREAK_DETAILS: &str = "\
The holder is told to give the lock up: its dlock stops the command (SIGTERM, grace, SIGKILL), releases, and exits 76.
Who waits for the lock goes on when that has happened, so that two commands never run at once.

Examples:
  dlock break nightly-job --reason 'hangs, see #4711'
      asks on a terminal; waits until the lock is free
  dlock break --yes --fencing-token 1769824800123456 nightly-job
      only if it is still that hold
  dlock break --force nightly-job
      takes away what cannot be told: the key of another program, a token of dlock acquire, a host that is gone.
      Whatever runs under it goes on running: stop it first

Environment:
  DLOCK_BACKEND   default of --backend

Exit status:
  0    the lock is free, or was
  64   wrong usage                      75   not yet free, or the holder cannot be told
  69   the store could not be asked     77   the store refused us
  78   configuration or URL wrong";
