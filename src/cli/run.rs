//! `dlock run`: its options and its help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{CommonArguments, WaitArgument, checked, parse_slots, parse_wait};
use crate::duration;

/// `dlock run`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock run [OPTIONS] NAME... -- COMMAND [ARG]...\n       dlock run [OPTIONS] NAME... -c 'SHELL TEXT'",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = RUN_DETAILS
)]
pub struct RunArguments {
    /// Names of the locks, taken all or none
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// Give up at once when another client holds the lock (the default)
    #[arg(short, long, visible_aliases = ["nb", "nonblock"], help_heading = "Lock")]
    pub no_wait: bool,

    /// Wait up to this long for the lock, or forever
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION|forever", allow_hyphen_values = true, value_parser = checked(parse_wait), help_heading = "Lock")]
    pub wait: Option<WaitArgument>,

    /// Keep trying a store that cannot be reached, also with --no-wait
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub retry: Option<Duration>,

    /// Take the lock exclusively (the default)
    #[arg(short = 'x', long, visible_short_alias = 'e', help_heading = "Lock")]
    pub exclusive: bool,

    /// Share the lock with other shared holders
    #[arg(short, long, help_heading = "Lock")]
    pub shared: bool,

    /// A semaphore: share the lock with others, at most N at a time [default: 1]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = checked(parse_slots), help_heading = "Lock")]
    pub slots: Option<u32>,

    /// Keep the lock at least this long, even if the command ends sooner [default: 0]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub min_hold: Option<Duration>,

    /// Length of the lease: how long a crashed host blocks the others [default: 30s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub ttl: Option<Duration>,

    /// Text shown by dlock status while the lock is held or awaited
    #[arg(long, value_name = "TEXT", help_heading = "Lock")]
    pub note: Option<String>,

    /// Run this text with /bin/sh -c
    #[arg(short = 'c', value_name = "SHELL TEXT", help_heading = "Command")]
    pub shell: Option<OsString>,

    /// Time between SIGTERM and SIGKILL when the command must be stopped [default: a fifth of the ttl, at most 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Command")]
    pub grace: Option<Duration>,

    /// Stop the command after this long and exit 124; 0 means never [default: 0]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Command")]
    pub max_runtime: Option<Duration>,

    /// What to do with background processes left when the command has ended by itself [default: leave]
    #[arg(long, value_name = "WHAT", help_heading = "Command")]
    pub orphans: Option<OrphansArgument>,

    /// What to do when the lock is lost: stop the command, or warn and let it go on [default: kill]
    #[arg(long, value_name = "WHAT", help_heading = "Command")]
    pub on_lost: Option<OnLostArgument>,

    /// Exit with this status instead of 75 when another client holds the lock
    #[arg(short = 'E', long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(u8), help_heading = "Output")]
    pub conflict_exit_code: Option<u8>,

    /// Write the outcome to this file, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub report: Option<PathBuf>,

    /// Add the outcome to this file for node_exporter's textfile collector
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub metrics_file: Option<PathBuf>,

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,

    /// flock's -o
    #[arg(short = 'o', long = "close", hide = true)]
    pub flock_close: bool,

    /// flock's -u
    #[arg(short = 'u', long = "unlock", hide = true)]
    pub flock_unlock: bool,

    /// flock's -F
    #[arg(short = 'F', long = "no-fork", hide = true)]
    pub flock_no_fork: bool,

    /// Everything after the first `--`; `None` when there is none.
    #[arg(skip)]
    pub command: Option<Vec<OsString>>,
}

/// `--orphans`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrphansArgument {
    /// Leave them running without the lock
    Leave,
    /// Hold the lock until they have ended
    Wait,
    /// Kill them, then release the lock
    Kill,
}

/// `--on-lost`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLostArgument {
    /// Stop the command and exit 76
    Kill,
    /// Warn and let it go on
    Warn,
}

const RUN_DETAILS: &str = "\
Examples:
  dlock run nightly-job -- ./backup.sh
      skip the job while it is still running on this host
  dlock run -b redis://10.0.0.5/0 nightly-job -- ./backup.sh
      the same on many hosts
  dlock run --wait 10m deploy -- ./deploy.sh production
      wait for the other deployment to end
  dlock run --slots 3 --wait forever render -- ./render.sh
      up to three at a time, each with its own number in DLOCK_SLOT
  dlock run --min-hold 50s minutely -- ./poll.sh
      once a minute, even if the clocks of two hosts differ by seconds
  dlock run --max-runtime 2h --wait forever import -c 'cat *.csv | ./load'
  dlock run --report /run/nightly.json nightly -- ./backup.sh
      the outcome, for programs: ran, contended, lost, ...

Durations:
  250ms, 90s, 5m, 1h 30m, 1d, 1.5m; a bare number is in seconds.

Environment:
  DLOCK_BACKEND, DLOCK_TTL, DLOCK_WAIT   defaults of --backend, --ttl, --wait
  DLOCK_CONFIG                           default of --config
  REDISCLI_AUTH                          the Redis password, when the URL has none
  The command finds DLOCK_NAME, DLOCK_TOKEN, DLOCK_FENCING_TOKEN, DLOCK_HELD, and DLOCK_SLOT with --slots.

Files:
  /etc/dlock/config.toml, ~/.config/dlock/config.toml
      aliases of backends, and defaults of these options by lock name; see dlock config show

Exit status:
  that of the command, when it ran; if a signal killed the command, dlock dies of the same signal
  64   wrong usage                      77   the store denied access
  69   the store is unavailable         78   configuration or URL wrong
  70   internal error                   124  --max-runtime reached
  75   another client holds the lock    126  the command cannot be executed
  76   the lock was lost                127  the command was not found";
