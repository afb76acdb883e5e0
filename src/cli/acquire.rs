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

    /// Give up at once when somebody else holds the lock (the default)
    #[arg(short, long, visible_aliases = ["nb", "nonblock"], help_heading = "Lock")]
    pub no_wait: bool,

    /// Wait at most so long for the lock, or forever
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION|forever", allow_hyphen_values = true, value_parser = checked(parse_wait), help_heading = "Lock")]
    pub wait: Option<WaitArgument>,

    /// Keep trying a store that cannot be reached, also with --no-wait
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub retry: Option<Duration>,

    /// Shown to others while the lock is held
    #[arg(long, value_name = "TEXT", help_heading = "Lock")]
    pub note: Option<String>,

    /// Write the token to this file (mode 0600), and nothing to standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub token_file: Option<PathBuf>,

    /// Print one JSON object instead of the token alone
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Exit with this status instead of 75 when somebody else holds the lock
    #[arg(short = 'E', long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(u8), help_heading = "Output")]
    pub conflict_exit_code: Option<u8>,

    /// Those of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

const DETAILS: &str = "\
Takes the lock for later steps, which may run on other machines, and ends. No
process keeps the lock: whoever has the token renews it, or it ends with its
lease. Where one command is all there is to do, dlock run is safer: it renews by
itself, and stops the command when the lock is lost.

Examples:
  DLOCK_TOKEN=$(dlock acquire --ttl 10m --wait 30m deploy) && export DLOCK_TOKEN
      take it for ten minutes, after waiting for half an hour at most
  dlock renew deploy
      ten minutes more, from now
  dlock check deploy && ./migrate.sh
      go on only if the lock is still ours
  dlock release deploy
      give it back
  dlock acquire --ttl 10m --token-file token deploy
      the same with a file, for the --token-file of the others

Stores:
  Those that keep a lease: redis://, rediss://, redis-cluster://. What file: locks
  is locked only as long as a process lives.

Environment:
  DLOCK_BACKEND, DLOCK_WAIT   defaults of --backend, --wait; DLOCK_TTL does not count
  REDISCLI_AUTH               password of Redis, when the URL has none

Exit status:
  0    the lock is ours, and the token has been told
  64   wrong usage                      75   somebody else holds the lock
  69   the store could not be asked     77   the store refused us
  70   internal error, or the token     78   configuration or URL wrong
       could not be told: given back
  and dlock dies of a signal that ends it while it waits";
