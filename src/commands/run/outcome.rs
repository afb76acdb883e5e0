//! The result of the second phase, which the release and the report use.

use std::time::Duration;

use crate::backend::Loss;
use crate::child::protocol::Ended;
use crate::clock::Moment;
use crate::lease::acquire_all::HeldLock;
use crate::lock::Revocation;
use crate::report::Histogram;

/// How the command ended, and what happened to its locks meanwhile.
#[derive(Debug, Default)]
pub(super) struct RunOutcome {
    /// The command was started, and the kernel could execute it.
    pub(super) ran: bool,
    /// How the command itself ended, if it did.
    pub(super) ended: Option<Ended>,
    /// Why dlock stopped it, if it did.
    pub(super) stopped: Option<Stopped>,
    /// Background processes are still alive.
    pub(super) orphans_left: bool,
    /// Some process could not be signalled.
    pub(super) not_permitted: bool,
    /// For each lock, whether it was lost and the command went on (`--on-lost warn`).
    pub(super) lost: Vec<bool>,
    /// The message about the last such loss.
    pub(super) loss_message: Option<String>,
    /// For each lock, the last failure to renew, since the last success.
    pub(super) trouble: Vec<Option<String>>,
    /// For each lock, the earliest end of the lease at the store.
    pub(super) lease_ends: Vec<Option<Moment>>,
    /// For each lock, how long the acknowledged renewals took.
    pub(super) renewals: Vec<Histogram>,
}

impl RunOutcome {
    /// Returns the initial outcome for these locks.
    pub(super) fn at_first(held: &[HeldLock]) -> RunOutcome {
        RunOutcome {
            ran: true,
            lost: vec![false; held.len()],
            trouble: vec![None; held.len()],
            renewals: vec![Histogram::of_renewals(); held.len()],
            lease_ends: held
                .iter()
                .map(|held| held.lease_state.validity.map(|validity| validity.ends))
                .collect(),
            ..RunOutcome::default()
        }
    }

    /// Returns the outcome of a command that was not started.
    pub(super) fn never_ran(held: &[HeldLock]) -> RunOutcome {
        RunOutcome { ran: false, ..RunOutcome::at_first(held) }
    }
}

/// Why dlock stopped the command. The numbers are indices of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// According to the store, this lock is no longer held.
    Lost(usize, Loss),
    /// This lock was revoked.
    Revoked(usize, Revocation),
    /// No renewal of this lock was acknowledged in time.
    Deadline(usize),
    /// `--max-runtime`
    MaxRuntime(Duration),
    /// The guard process failed.
    Guard(String),
}

/// Describes a loss.
pub(super) fn describe(loss: Loss) -> &'static str {
    match loss {
        Loss::Gone => "it is gone from the store (deleted, expired or evicted)",
        Loss::FailedOver => "the store has failed over to a server that does not have it",
        Loss::Taken => "another client holds it now",
    }
}
