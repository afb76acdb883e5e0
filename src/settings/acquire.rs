//! `dlock acquire`: its options and its plan.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::command_line::checked;
use super::limits::{checked_ttl, note, value};
use super::target::{check_wait, one_name, patience};
use super::{
    Accepted, CommonArguments, Configuration, RunArguments, Source, StoreTarget, WaitArgument, parse_wait,
};
use crate::backend::locator::Locator;
use crate::duration;
use crate::exit::Failure;
use crate::lease::acquire::Patience;
use crate::lease::validity::Terms;
use crate::lock::LockName;
use crate::report::TokenFile;

/// `dlock acquire`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock acquire [OPTIONS] --ttl <DURATION> NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/acquire.txt")
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

/// The plan of `dlock acquire`.
pub struct AcquirePlan {
    /// The lock to take.
    pub name: LockName,
    /// Its store.
    pub store: Locator,
    /// The lease and the timeouts.
    pub terms: Terms,
    /// How long to wait and retry.
    pub patience: Patience,
    /// The exit status when another client holds the lock.
    pub conflict_exit_code: u8,
    /// The note shown by `dlock status`.
    pub note: Option<String>,
    /// Print a JSON object instead of the token alone.
    pub json: bool,
    /// The file for the token instead of standard output.
    pub token_file: Option<TokenFile>,
    /// Suppress contention messages, notices and warnings.
    pub quiet: bool,
    /// Accepted warnings about the store, which are not printed.
    pub accepted: Accepted,
    /// Notices to print once, before the store is contacted.
    pub notices: Vec<String>,
}

impl AcquirePlan {
    /// Checks all arguments, and that the token can be written.
    ///
    /// # Errors
    /// Contradictions and bad values, a store that keeps no leases, a token file that cannot be written (64); bad
    /// environment or URL (78).
    pub fn new(arguments: &AcquireArguments) -> Result<AcquirePlan, Failure> {
        let name = one_name(
            &arguments.names,
            "one NAME, and no command: dlock acquire takes the lock for later steps; dlock run is for a command",
            "acquire --ttl 10m nightly",
        )?;
        check_wait(arguments.no_wait, arguments.wait)?;
        let ttl = arguments.ttl.ok_or_else(|| {
            Failure::usage(
                "no --ttl: the lease of a token is not renewed automatically: give its length, such as --ttl 10m \
                 (DLOCK_TTL is ignored here)",
            )
        })?;
        checked_ttl(ttl, &Source::Flag("--ttl"))?;
        let configuration = Configuration::read(&arguments.common)?;
        let settings = configuration.settings(&as_run(arguments, ttl), std::slice::from_ref(&name))?;
        let note = note(&settings)?;
        let backend = configuration.backend(settings.backend.as_ref())?;
        let unnamed = if backend.source == Source::Default { "no backend configured, and " } else { "" };
        let access = StoreTarget::new(&arguments.common, backend, std::slice::from_ref(&name))?;
        let StoreTarget { store, connect_timeout, accepted, notices } = access;
        if !store.keeps_leases() {
            return Err(Failure::usage(format!(
                "{unnamed}{} holds a lock only as long as a process does: use dlock run, or a store that keeps leases, as \
                 -b redis://HOST",
                store.display()
            )));
        }
        let token_file = arguments.token_file.as_deref().map(TokenFile::find).transpose();
        let token_file = token_file.map_err(|error| Source::Flag("--token-file").failure(error))?;
        if (token_file.is_none() || arguments.json) && !is_inherited(io::stdout()) {
            return Err(Failure::usage(
                "standard output is closed: the token would be lost, see --token-file",
            ));
        }
        Ok(AcquirePlan {
            name,
            store,
            terms: Terms { ttl, grace: Terms::default_grace(ttl), connect_timeout },
            patience: patience(value(&settings.wait), value(&settings.retry)),
            conflict_exit_code: value(&settings.conflict_exit_code).unwrap_or(crate::exit::CONTENDED),
            note,
            quiet: value(&settings.quiet).unwrap_or_default(),
            accepted,
            json: arguments.json,
            token_file,
            notices,
        })
    }
}

/// Returns the arguments of a run with the same settings: environment and configuration apply here too,
/// except for the lease.
fn as_run(arguments: &AcquireArguments, ttl: Duration) -> RunArguments {
    RunArguments {
        no_wait: arguments.no_wait,
        wait: arguments.wait,
        retry: arguments.retry,
        exclusive: true,
        ttl: Some(ttl),
        note: arguments.note.clone(),
        conflict_exit_code: arguments.conflict_exit_code,
        common: arguments.common.clone(),
        ..RunArguments::default()
    }
}

/// Whether a standard descriptor was inherited: those passed on by exec have no close-on-exec flag, and one
/// that was opened in place of a closed one does.
fn is_inherited(descriptor: impl AsFd) -> bool {
    let flags = fcntl(descriptor, FcntlArg::F_GETFD).map(FdFlag::from_bits_retain);
    flags.is_ok_and(|flags| !flags.contains(FdFlag::FD_CLOEXEC))
}
