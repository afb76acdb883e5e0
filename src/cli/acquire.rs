//! `dlock acquire`: its options and its help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{CommonArguments, WaitArgument, checked, parse_wait};
use crate::duration;

/// `dlock acquire`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock acquire [OPTIONS] --ttl <DURATION> NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = DETAILS
)]
pub struct AcquireArguments {
    /// Name of the lock
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// Length of the lease, from 1s to 24h; it ends by itself unless dlock renew extends it
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub ttl: Option<Duration>,

    /// Give up at once when another client holds the lock (the default)
    #[arg(short, long, visible_aliases = ["nb", "nonblock"], help_heading = "Lock")]
    pub no_wait: bool,

    /// Wait up to this long for the lock, or forever
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION|forever", allow_hyphen_values = true, value_parser = checked(parse_wait), help_heading = "Lock")]
    pub wait: Option<WaitArgument>,

    /// Keep trying a store that cannot be reached, also with --no-wait
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub retry: Option<Duration>,

    /// Text shown by dlock status while the lock is held or awaited
    #[arg(long, value_name = "TEXT", help_heading = "Lock")]
    pub note: Option<String>,

    /// Write the token to this file (mode 0600), and nothing to standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub token_file: Option<PathBuf>,

    /// Print one JSON object instead of the token alone
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Exit with this status instead of 75 when another client holds the lock
    #[arg(short = 'E', long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(u8), help_heading = "Output")]
    pub conflict_exit_code: Option<u8>,

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

const DETAILS: &str = "\
Takes the lock for later steps, which may run on other machines, and exits. No
process keeps the lock: it must be renewed with the token, or it expires with its
lease. For a single command, use dlock run instead: it renews the lease
automatically, and stops the command when the lock is lost.

Examples:
  DLOCK_TOKEN=$(dlock acquire --ttl 10m --wait 30m deploy) && export DLOCK_TOKEN
      take it for ten minutes, after waiting up to half an hour
  dlock renew deploy
      renew it for ten minutes from now
  dlock check deploy && ./migrate.sh
      continue only if the lock is still held
  dlock release deploy
      release it
  dlock acquire --ttl 10m --token-file token deploy
      the same with a file, for the --token-file option of the other commands

Stores:
  Stores with leases: redis://, rediss://, redis-cluster://. A lock of file: is
  held only as long as its process is alive.

Environment:
  DLOCK_BACKEND, DLOCK_WAIT   defaults of --backend, --wait; DLOCK_TTL is ignored
  REDISCLI_AUTH               the Redis password, when the URL has none

Exit status:
  0    the lock was acquired, and the token was written
  64   wrong usage                      75   another client holds the lock
  69   the store is unavailable         77   the store denied access
  70   internal error, or the token     78   configuration or URL wrong
       could not be written (the
       lock was released)
  dlock dies of a signal that terminates it while it waits";
