//! The plan of `dlock break`.

use std::time::Duration;

use super::{StoreTarget, checked_name};
use crate::cli::{BreakArguments, WaitArgument};
use crate::exit::Failure;
use crate::lease::acquire::Wait;
use crate::lock::{FencingToken, LockName};

/// The plan of `dlock break`.
pub struct BreakPlan {
    /// The access to the store.
    pub access: StoreTarget,
    /// The lock.
    pub name: LockName,
    /// Break only the hold with this fencing token.
    pub fencing: Option<FencingToken>,
    /// The reason reported to the holder.
    pub reason: Option<String>,
    /// How long to wait; `None` means the rest of the lease.
    pub wait: Option<Wait>,
    /// Do not ask for confirmation.
    pub yes: bool,
    /// Remove holds whose holders cannot be notified, or have not responded.
    pub force: bool,
}

/// The limit of `--reason`, which is stored beside the lock.
const LONGEST_REASON: usize = 1000;

impl BreakPlan {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Bad names and values (64), bad environment or URL (78).
    pub fn new(arguments: &BreakArguments) -> Result<BreakPlan, Failure> {
        let name = match arguments.names.as_slice() {
            [name] => checked_name(name)?,
            [] => return Err(Failure::usage("break: which lock? dlock break NAME")),
            _ => return Err(Failure::usage("break takes one NAME: a lock is broken on its own")),
        };
        if let Some(reason) = arguments.reason.as_ref().filter(|reason| reason.len() > LONGEST_REASON) {
            return Err(Failure::usage(format!(
                "--reason: {} bytes are too many, at most {LONGEST_REASON}",
                reason.len()
            )));
        }
        Ok(BreakPlan {
            access: StoreTarget::of(&arguments.common, std::slice::from_ref(&name))?,
            name,
            fencing: arguments.fencing_token,
            reason: arguments.reason.clone().filter(|reason| !reason.is_empty()),
            wait: arguments.wait.map(|wait| match wait {
                WaitArgument::For(Duration::ZERO) => Wait::No,
                WaitArgument::For(duration) => Wait::For(duration),
                WaitArgument::Forever => Wait::Forever,
            }),
            yes: arguments.yes,
            force: arguments.force,
        })
    }
}
