//! Turns resolved settings into plans, with every cross-check, before any store is contacted.

mod acquire;
mod breaking;
mod check;
mod doctor;
mod limits;
mod run;
mod shown;
mod status;
mod token;

use std::ffi::{OsStr, OsString};
use std::time::Duration;

pub use self::acquire::AcquirePlan;
pub use self::breaking::BreakPlan;
pub use self::check::{CheckPlan, Proof};
pub use self::doctor::DoctorPlan;
pub use self::run::{OnLost, RunPlan, known, program_failure};
pub use self::shown::{Shown, ShownTable, ShownValue};
pub use self::status::StatusPlan;
pub use self::token::{RenewPlan, TokenPlan};
use crate::backend::locator::Locator;
use crate::cli::{CommonArguments, WaitArgument};
use crate::config::{self, Accepted, Backend, Source, Warning};
use crate::exit::Failure;
use crate::lease::acquire::{Patience, Wait};
use crate::lock::LockName;
use crate::report::Reporter;

const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The access to the store, which every command needs.
pub struct StoreTarget {
    /// The store.
    pub store: Locator,
    /// The time limit for one attempt to reach it.
    pub connect_timeout: Duration,
    /// Accepted warnings about it, which are not printed.
    pub accepted: Accepted,
    /// Notices to print once, before the store is contacted.
    pub notices: Vec<String>,
}

impl StoreTarget {
    /// Returns the access to the backend of these locks.
    ///
    /// # Errors
    /// Bad configuration or URL (78), or a name that this store cannot have (64).
    pub fn of(arguments: &CommonArguments, names: &[LockName]) -> Result<StoreTarget, Failure> {
        StoreTarget::new(arguments, config::resolve_backend(arguments, names)?, names)
    }

    /// Prints the notices.
    pub fn print_notices(&self, reporter: &Reporter) {
        for notice in &self.notices {
            reporter.warning(notice);
        }
    }

    /// Parses the backend that was named, and checks that these names can be stored there.
    ///
    /// # Errors
    /// A bad URL (78), or a name that this store cannot have (64).
    pub fn new(
        arguments: &CommonArguments,
        backend: Backend,
        names: &[LockName],
    ) -> Result<StoreTarget, Failure> {
        let mut notices = Vec::new();
        let environment = |name: &str| config::variable(name).and_then(|value| value.into_string().ok());
        let store = Locator::new(&backend.url, &environment).map_err(|error| backend.failure(&error))?;
        for name in names {
            store
                .check_name(name)
                .map_err(|error| Failure::usage(format!("NAME '{name}' on {}: {error}", store.display())))?;
        }
        if backend.source == Source::Default {
            notices.push(format!(
                "no backend configured: locking for user {} on this host only ({})",
                crate::identity::user(),
                store.display()
            ));
        }
        if backend.password_on_command_line() {
            notices.push(
                "a password on the command line can be read by every user of this host: use password_file= or \
                 DLOCK_BACKEND"
                    .into(),
            );
        }
        notices.extend(store.warning());
        if !backend.accepted.accepts(Warning::Insecure) {
            notices.extend(store.insecure().map(str::to_owned));
        }
        let what = crate::child::why_proc_is_unusable().filter(|_| cfg!(target_os = "linux"));
        if let Some(what) = what {
            notices.push(format!(
                "{what}: when the command has to be stopped, its grandchildren get SIGKILL without SIGTERM before"
            ));
        }
        let connect_timeout = connect_timeout(arguments)?;
        Ok(StoreTarget { store, connect_timeout, accepted: backend.accepted, notices })
    }
}

fn connect_timeout(arguments: &CommonArguments) -> Result<Duration, Failure> {
    match arguments.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT) {
        Duration::ZERO => Err(Failure::usage("--connect-timeout: 0 leaves no time to connect")),
        connect_timeout => Ok(connect_timeout),
    }
}

/// Returns the name, for a command that takes exactly one.
fn one_name(names: &[OsString], too_many: &str, example: &str) -> Result<LockName, Failure> {
    match names {
        [name] => checked_name(name),
        [] => Err(Failure::usage(format!("no lock name: did you mean: dlock {example}"))),
        // The further arguments may contain a secret, and are not repeated.
        _ => Err(Failure::usage(too_many)),
    }
}

fn patience(wait: Option<WaitArgument>, retry: Option<Duration>) -> Patience {
    let wait = match wait {
        None | Some(WaitArgument::For(Duration::ZERO)) => Wait::No,
        Some(WaitArgument::For(duration)) => Wait::For(duration),
        Some(WaitArgument::Forever) => Wait::Forever,
    };
    Patience { wait, retry: retry.unwrap_or_default() }
}

fn check_wait(no_wait: bool, wait: Option<WaitArgument>) -> Result<(), Failure> {
    match no_wait && wait.is_some() {
        true => Err(Failure::usage("--no-wait and --wait contradict each other: give one of them")),
        false => Ok(()),
    }
}

fn checked_name(name: &OsStr) -> Result<LockName, Failure> {
    let text = name
        .to_str()
        .ok_or_else(|| Failure::usage(format!("NAME '{}': a lock name is valid UTF-8", name.display())))?;
    LockName::new(text).map_err(|error| {
        let shown: String = text.chars().take(40).collect();
        Failure::usage(format!("NAME '{shown}': {error}"))
    })
}
