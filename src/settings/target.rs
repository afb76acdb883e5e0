//! The store of a command, and the checks of names that several commands share.

use std::ffi::{OsStr, OsString};
use std::rc::Rc;
use std::time::Duration;

use super::suggestion;
use super::{BackendSettings, CommonArguments, Configuration, Settings, Source, Warning};
use crate::backend::location::Demand;
use crate::backend::registry;
use crate::backend::{Hazard, Location};
use crate::exit::Failure;
use crate::glob::Pattern;
use crate::input;
use crate::lock::LockName;

/// The access to the store, which every command needs.
pub struct StoreTarget {
    pub store: Rc<dyn Location>,
    /// The time limit for one attempt to reach it.
    pub connect_timeout: Duration,
    /// Accepted warnings about it, which are not printed.
    accepted: Vec<Warning>,
    /// Notices to print once, before the store is contacted.
    pub notices: Vec<String>,
}

impl StoreTarget {
    /// Returns the access to the backend of these locks.
    ///
    /// # Errors
    /// Bad configuration or URL (78), or a name that this store cannot have (64).
    pub fn of(arguments: &CommonArguments, names: &[LockName]) -> Result<StoreTarget, Failure> {
        let backend = Configuration::read(arguments)?.resolve(arguments, names)?;
        StoreTarget::new(arguments, backend, names)
    }

    /// Parses the backend that was named, and checks that these names can be stored there.
    ///
    /// # Errors
    /// A bad URL (78), or a name that this store cannot have (64).
    pub fn new(
        arguments: &CommonArguments,
        backend: BackendSettings,
        names: &[LockName],
    ) -> Result<StoreTarget, Failure> {
        StoreTarget::parsed(registry::parse, arguments, backend, names)
    }

    fn parsed(
        parse: registry::Parse,
        arguments: &CommonArguments,
        backend: BackendSettings,
        names: &[LockName],
    ) -> Result<StoreTarget, Failure> {
        let mut notices = Vec::new();
        let environment = |name: &str| input::variable(name).and_then(|value| value.into_string().ok());
        let store = parse(&backend.url, &environment).map_err(|error| backend.failure(&error))?;
        refuse_unverified(&*store, backend.requires_verified_tls.as_ref())?;
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
        if !backend.accepted.contains(&Warning::Insecure) {
            notices.extend(store.insecure().map(str::to_owned));
        }
        let what = crate::child::why_proc_is_unusable();
        if let Some(what) = what {
            notices.push(format!(
                "{what}: when the command has to be stopped, its grandchildren get SIGKILL without a preceding SIGTERM"
            ));
        }
        let connect_timeout = arguments.connect_timeout()?;
        Ok(StoreTarget { store, connect_timeout, accepted: backend.accepted, notices })
    }

    /// Returns the store for `dlock doctor`, whose checks report the warnings about it, accepted or not.
    ///
    /// # Errors
    /// Bad values (64), bad configuration or URL (78).
    pub fn of_doctor(arguments: &CommonArguments) -> Result<StoreTarget, Failure> {
        let mut target = StoreTarget::of(arguments, &[])?;
        let found = [target.store.warning(), target.store.insecure().map(str::to_owned)];
        target.notices.retain(|notice| found.iter().flatten().all(|found| found != notice));
        Ok(target)
    }

    /// Returns the store for `dlock doctor --policy`, which does not contact it, and needs no password.
    ///
    /// # Errors
    /// Bad values (64), bad configuration or URL (78).
    pub fn of_policy(arguments: &CommonArguments) -> Result<StoreTarget, Failure> {
        let backend = Configuration::read(arguments)?.resolve(arguments, &[])?;
        StoreTarget::parsed(registry::parse_without_login, arguments, backend, &[])
    }

    /// Checks that the store can meet a demand that comes from this source.
    ///
    /// # Errors
    /// It cannot (64, or 78 if the demand does not come from the command line).
    pub fn check(&self, demand: Demand, source: &Source) -> Result<(), Failure> {
        match self.store.refuses(demand) {
            Some(why) => Err(source.failure(format!("{}: {why}", self.store.display()))),
            None => Ok(()),
        }
    }

    /// Returns a warning that a password was sent to a server that may be anyone, unless the configuration accepts that;
    /// `None` after that.
    pub fn exposure(&self) -> Option<String> {
        let exposure = self.store.exposure().filter(|_| !self.accepted.contains(&Warning::Insecure));
        exposure.map(|exposure| format!("{}: {exposure}", self.store.display()))
    }

    /// Whether the configuration accepts this hazard.
    pub fn accepts(&self, hazard: &Hazard) -> bool {
        match hazard {
            Hazard::Eviction(_) => self.accepted.contains(&Warning::Eviction),
            Hazard::Forgetful => self.accepted.contains(&Warning::Efficiency),
            Hazard::Node(_) => false,
        }
    }
}

/// Rejects a store whose servers need not prove their identity, if this source demands it.
///
/// # Errors
/// It is one (78).
pub(super) fn refuse_unverified(store: &dyn Location, demanded_by: Option<&Source>) -> Result<(), Failure> {
    match (demanded_by, store.unverified()) {
        (Some(source), Some(how)) => {
            let why = registry::unverified(&how);
            Err(Failure::config(format!("{source}: {}: {why}", store.display())))
        }
        _ => Ok(()),
    }
}

/// Returns the name, for a command that takes exactly one.
pub(super) fn one_name(names: &[OsString], too_many: &str, example: &str) -> Result<LockName, Failure> {
    match names {
        [name] => checked_name(name),
        [] => Err(Failure::usage(format!("no lock name: did you mean: dlock {example}"))),
        // The further arguments may contain a secret, and are not repeated.
        _ => Err(Failure::usage(too_many)),
    }
}

/// Rejects `--no-wait` together with `--wait`.
pub(super) fn check_wait(no_wait: bool, flags: &Settings) -> Result<(), Failure> {
    if no_wait && flags.wait.is_some() { contradiction("--no-wait", "--wait") } else { Ok(()) }
}

/// Returns the failure for two options that exclude each other.
pub(super) fn contradiction<T>(one: &str, other: &str) -> Result<T, Failure> {
    Err(Failure::usage(format!("{one} and {other} contradict each other: give one of them")))
}

/// Returns the name for this command, which must not be a pattern: only what was shown is changed.
///
/// # Errors
/// It is a pattern, or no name (64).
pub(super) fn exact_name(command: &str, name: &OsStr) -> Result<LockName, Failure> {
    let text = name_text(name)?;
    match Pattern::exact(text) {
        Some(exact) => checked_name(OsStr::new(&exact)),
        None => Err(Failure::usage(format!(
            "NAME '{text}': {command} takes an exact name, not a pattern (\\* is a literal *)"
        ))),
    }
}

/// Returns the text of an argument that was probably meant as the name of a lock.
fn name_text(name: &OsStr) -> Result<&str, Failure> {
    let text = name
        .to_str()
        .ok_or_else(|| Failure::usage(format!("NAME '{}': a lock name is valid UTF-8", name.display())))?;
    match suggestion::name(text) {
        Some(why) => Err(Failure::usage(format!("NAME '{}' {why}", registry::redacted(text)))),
        None => Ok(text),
    }
}

pub(super) fn checked_name(name: &OsStr) -> Result<LockName, Failure> {
    let text = name_text(name)?;
    LockName::new(text).map_err(|error| {
        let shown: String = text.chars().take(40).collect();
        Failure::usage(format!("NAME '{shown}': {error}"))
    })
}
