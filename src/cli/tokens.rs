//! `dlock renew`, `release` and `check`: their options and their help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{CommonArguments, checked};
use crate::duration;

/// Arguments of the commands that take a token.
#[derive(Debug, Default, Args)]
pub struct TokenArguments {
    /// Name of the lock
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// Read the token from this file instead of DLOCK_TOKEN
    #[arg(long, value_name = "FILE", help_heading = "Lock")]
    pub token_file: Option<PathBuf>,

    /// Options of every command.
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
    /// The token and the lock that it owns.
    #[command(flatten)]
    pub token: TokenArguments,

    /// Length of the lease from now on, from 1s to 24h [default: the length it was acquired with]
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
    /// The token and the lock that it owns.
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
    /// The token and the lock that it owns.
    #[command(flatten)]
    pub token: TokenArguments,
}

const RENEW: &str = "\
Renews the lease of a lock that dlock acquire has taken. The new lease begins now
and has the length that the lock was acquired with, or that of --ttl, even if
that is less than what is left. A lock that the token no longer owns is not
taken again.

Examples:
  dlock renew deploy
  dlock renew --ttl 1h --token-file token deploy

Environment:
  DLOCK_TOKEN     the token, unless --token-file is given
  DLOCK_BACKEND   default of --backend
  REDISCLI_AUTH   the Redis password, when the URL has none

Exit status:
  0    the lease is extended
  64   wrong usage, or the token of a dlock run, which renews by itself
  69   the store is unavailable         77   the store denied access
  70   internal error                   78   configuration or URL wrong
  76   the token does not own the lock, or no longer; nothing was changed";

const RELEASE: &str = "\
Releases a lock that dlock acquire has taken. The first waiter is notified at once.

Examples:
  dlock release deploy
  dlock release --token-file token deploy && rm token

Environment:
  DLOCK_TOKEN     the token, unless --token-file is given
  DLOCK_BACKEND   default of --backend
  REDISCLI_AUTH   the Redis password, when the URL has none

Exit status:
  0    the lock is released
  64   wrong usage, or the token of a dlock run, which releases by itself
  69   the store is unavailable         77   the store denied access
  70   internal error                   78   configuration or URL wrong
  76   the token does not own the lock, or no longer; nothing was changed";

const CHECK: &str = "\
Queries the store whether the lock is still held, and prints nothing if it is.
The lock to check is determined by, in this order: the token in --token-file;
under dlock run, DLOCK_HELD (without NAME all its locks must still be held, with
NAME each hold of that lock); the token in DLOCK_TOKEN.

A hold in DLOCK_HELD is checked at the store where it was taken, unless -b names
another. DLOCK_HELD contains no passwords: if one is needed, name the store with
DLOCK_BACKEND or -b.

Examples:
  dlock run nightly -c './dump.sh && dlock check && ./upload.sh'
  dlock check --token-file token deploy || exit

Environment:
  DLOCK_HELD      the locks that the calling command runs under
  DLOCK_TOKEN     the token, unless --token-file is given
  DLOCK_BACKEND   default of --backend
  REDISCLI_AUTH   the Redis password, when the URL has none

Exit status:
  0    the lock is still held
  64   wrong usage, or no lock to check
  69   the store is unavailable         77   the store denied access
  70   internal error                   78   configuration or URL wrong
  76   it is not, or no longer";
