//! `dlock renew`, `release` and `check`: their options and their help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{CommonArguments, checked};
use crate::duration;

/// What those take who come with a token.
#[derive(Debug, Default, Args)]
pub struct TokenArguments {
    /// Name of the lock
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// Read the token from this file instead of DLOCK_TOKEN
    #[arg(long, value_name = "FILE", help_heading = "Lock")]
    pub token_file: Option<PathBuf>,

    /// Those of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

/// `dlock renew`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock renew [OPTIONS] NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = RENEW
)]
pub struct RenewArguments {
    /// What proves ownership.
    #[command(flatten)]
    pub token: TokenArguments,

    /// Length of the lease from now on, from 1s to 24h [default: as it was acquired]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub ttl: Option<Duration>,

    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// `dlock release`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock release [OPTIONS] NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = RELEASE
)]
pub struct ReleaseArguments {
    /// What proves ownership.
    #[command(flatten)]
    pub token: TokenArguments,
}

/// `dlock check`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock check [OPTIONS] [NAME]",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = CHECK
)]
pub struct CheckArguments {
    /// What proves ownership.
    #[command(flatten)]
    pub token: TokenArguments,
}

const RENEW: &str = "\
Lets the lease of a lock that dlock acquire has taken begin anew: as long as it
was acquired for, or as --ttl says, even if that is less than what is left. A
lock that is not ours any more is not taken again.

Examples:
  dlock renew deploy
  dlock renew --ttl 1h --token-file token deploy

Environment:
  DLOCK_TOKEN     the token, unless --token-file is given
  DLOCK_BACKEND   default of --backend
  REDISCLI_AUTH   password of Redis, when the URL has none

Exit status:
  0    the lease is extended
  64   wrong usage, or the token of a dlock run, which renews by itself
  69   the store could not be asked     77   the store refused us
  70   internal error                   78   configuration or URL wrong
  76   the token does not own the lock, or not any more; nothing has changed";

const RELEASE: &str = "\
Gives back a lock that dlock acquire has taken. Whoever waits for it is told at once.

Examples:
  dlock release deploy
  dlock release --token-file token deploy && rm token

Environment:
  DLOCK_TOKEN     the token, unless --token-file is given
  DLOCK_BACKEND   default of --backend
  REDISCLI_AUTH   password of Redis, when the URL has none

Exit status:
  0    the lock is given back
  64   wrong usage, or the token of a dlock run, which releases by itself
  69   the store could not be asked     77   the store refused us
  70   internal error                   78   configuration or URL wrong
  76   the token does not own the lock, or not any more; nothing has changed";

const CHECK: &str = "\
Asks the store whether the lock is still ours, and says nothing if it is. What
is asked about is, in this order: the token in --token-file; under dlock run,
what DLOCK_HELD tells (without NAME all of that has to be ours, with NAME each
hold of it); the token in DLOCK_TOKEN.

A hold of DLOCK_HELD is asked for at the store where it was taken, unless -b
names another. DLOCK_HELD has no passwords: where one is needed, name the store
by DLOCK_BACKEND or -b.

Examples:
  dlock run nightly -c './dump.sh && dlock check && ./upload.sh'
  dlock check --token-file token deploy || exit

Environment:
  DLOCK_HELD      the locks that we run under
  DLOCK_TOKEN     the token, unless --token-file is given
  DLOCK_BACKEND   default of --backend
  REDISCLI_AUTH   password of Redis, when the URL has none

Exit status:
  0    it is ours
  64   wrong usage, or nothing to ask about
  69   the store could not be asked     77   the store refused us
  70   internal error                   78   configuration or URL wrong
  76   it is not, or not any more";
