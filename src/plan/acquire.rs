//! What `dlock acquire` is to do.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::limits::{checked_ttl, note, value};
use super::{StoreTarget, check_wait, one_name, patience};
use crate::backend::locator::Locator;
use crate::cli::{AcquireArguments, RunArguments};
use crate::config::{Accepted, Configuration, Source};
use crate::exit::Failure;
use crate::lease::acquire::Patience;
use crate::lease::validity::Terms;
use crate::lock::LockName;
use crate::report::TokenFile;

/// What `dlock acquire` is to do.
pub struct AcquirePlan {
    /// Which lock to take.
    pub name: LockName,
    /// Where it is.
    pub store: Locator,
    /// The lease and the time-outs.
    pub terms: Terms,
    /// How long to wait and retry.
    pub patience: Patience,
    /// The exit status for a lock that somebody else holds.
    pub conflict_exit_code: u8,
    /// Shown to others.
    pub note: Option<String>,
    /// Print an object instead of the token alone.
    pub json: bool,
    /// Where the token is to be written instead of standard output.
    pub token_file: Option<TokenFile>,
    /// Say nothing of contention, and no notices or warnings.
    pub quiet: bool,
    /// Warnings that are known and not to be said.
    pub accepted: Accepted,
    /// To be said once, before anything is contacted.
    pub notices: Vec<String>,
}

impl AcquirePlan {
    /// Checks everything, also that the token can be told.
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
                "no --ttl: nothing renews a token by itself, so say for how long it is good, as --ttl 10m \
                 (DLOCK_TTL does not count here)",
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

/// A run of the same settings: what the environment and the configuration say of one counts here too, but its lease.
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

/// Whether a standard descriptor is the one that we were started with: what exec passes on has no close-on-exec flag,
/// and what was opened in place of a closed one has.
fn is_inherited(descriptor: impl AsFd) -> bool {
    let flags = fcntl(descriptor, FcntlArg::F_GETFD).map(FdFlag::from_bits_retain);
    flags.is_ok_and(|flags| !flags.contains(FdFlag::FD_CLOEXEC))
}
