//! How the command's time under the locks ended: what running finds out, and releasing and the report tell.

use std::time::Duration;

use crate::backend::Loss;
use crate::child::protocol::Ended;
use crate::clock::Moment;
use crate::lease::acquire_all::HeldLock;
use crate::lock::Revocation;
use crate::report::Histogram;

/// How the command's time under the locks ended.
#[derive(Debug, Default)]
pub(super) struct RunOutcome {
    /// The command was let go, and the kernel could execute it.
    pub(super) ran: bool,
    /// How the command itself ended, if it did before everything was over.
    pub(super) ended: Option<Ended>,
    /// Why dlock stopped it, if it did.
    pub(super) stopped: Option<Stopped>,
    /// Background processes live on.
    pub(super) orphans_left: bool,
    /// Some process could not be signalled.
    pub(super) not_permitted: bool,
    /// For each lock, whether it was lost and the command went on (`--on-lost warn`).
    pub(super) lost: Vec<bool>,
    /// What was said of the last such loss.
    pub(super) loss_said: Option<String>,
    /// For each lock, the last failure to renew, since the last success.
    pub(super) trouble: Vec<Option<String>>,
    /// For each lock, the earliest end of the lease at the store.
    pub(super) lease_ends: Vec<Option<Moment>>,
    /// For each lock, how long the acknowledged renewals took.
    pub(super) renewals: Vec<Histogram>,
}

impl RunOutcome {
    /// For these locks, at the beginning.
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

    /// The command was not let go.
    pub(super) fn never_ran(held: &[HeldLock]) -> RunOutcome {
        RunOutcome { ran: false, ..RunOutcome::at_first(held) }
    }
}

/// Why dlock stopped the command. Numbers are those of the locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The store says that this lock is not ours.
    Lost(usize, Loss),
    /// Somebody wants this lock.
    Revoked(usize, Revocation),
    /// No renewal of this lock was acknowledged in time.
    Deadline(usize),
    /// `--max-runtime`
    MaxRuntime(Duration),
    /// The guarding process failed.
    Guard(String),
}

/// A loss in words.
pub(super) fn describe(loss: Loss) -> &'static str {
    match loss {
        Loss::Gone => "it is gone from the store (deleted, expired or evicted)",
        Loss::FailedOver => "the store has failed over to a server that has not got it",
        Loss::Taken => "somebody else holds it now",
    }
}
