//! What happened to the command and its locks in the second phase: the release and the report depend on it.

use std::time::Duration;

use crate::backend::Loss;
use crate::child::protocol::Ended;
use crate::clock::Moment;
use crate::lease::acquire_all::HeldLock;
use crate::lease::validity::Validity;
use crate::lock::{LockName, Revocation};
use crate::report::{Histogram, label};

/// How the command ended, and what happened to its locks meanwhile.
#[derive(Debug, Default)]
pub(super) struct Supervised {
    /// The command was started, and the kernel could execute it.
    pub(super) ran: bool,
    /// How the command itself ended, if it did.
    pub(super) ended: Option<Ended>,
    /// Why dlock stopped it, if it did.
    pub(super) stopped: Option<Stopped>,
    /// Background processes are still alive.
    pub(super) orphans_left: bool,
    /// A signal that ends a process was forwarded to the command, or came to it from the terminal.
    pub(super) was_told_to_end: bool,
    /// Such a signal had not been read yet when the command ended.
    pub(super) has_unread_end: bool,
    /// When the lock was granted, if the run counts for `--once-per`.
    pub(super) success: Option<Moment>,
    /// Some process could not be signalled.
    pub(super) not_permitted: bool,
    /// The last lock that was lost while the command went on, and how.
    pub(super) loss: Option<(usize, Unguarded)>,
    pub(super) locks: Vec<SupervisedLock>,
}

/// What happened to one lock while the command ran.
#[derive(Debug)]
pub(super) struct SupervisedLock {
    pub(super) name: LockName,
    /// The lease; `None` without one, or when the lock is lost.
    pub(super) validity: Option<Validity>,
    /// The earliest end of the last lease at the store.
    pub(super) lease_ends: Option<Moment>,
    /// The last failure to renew, since the last success.
    pub(super) trouble: Option<String>,
    /// The user has been warned of it.
    pub(super) has_warned: bool,
    /// It was lost and the command went on (`--on-lost warn`).
    pub(super) is_lost: bool,
    /// How long the acknowledged renewals took.
    pub(super) renewals: Histogram,
}

impl SupervisedLock {
    /// Notes an acknowledged renewal.
    pub(super) fn note_renewal(&mut self, validity: Option<Validity>, took: Duration) {
        self.renewals.observe(took);
        self.validity = validity;
        self.lease_ends = validity.map(|validity| validity.ends);
    }
}

impl Supervised {
    /// Returns whether the parked command did not become the program, because too little of the lease was left by then.
    pub(super) fn was_launched_too_late(&self) -> bool {
        matches!(self.ended, Some(Ended::NotExecuted(libc::ETIME)))
    }

    /// Returns what is true of these locks when the command is started.
    pub(super) fn at_first(held: &[HeldLock<'_>]) -> Supervised {
        let lock = |held: &HeldLock<'_>| SupervisedLock {
            name: held.name().clone(),
            validity: held.lease_state.validity,
            lease_ends: held.lease_state.validity.map(|validity| validity.ends),
            trouble: None,
            has_warned: false,
            is_lost: false,
            renewals: Histogram::default(),
        };
        Supervised { ran: true, locks: held.iter().map(lock).collect(), ..Supervised::default() }
    }

    /// Returns whether the message about the end of the command, or one before, says that this lock may have been lost.
    pub(super) fn is_reported_lost(&self, lock: usize) -> bool {
        let by_stop = match &self.stopped {
            // What was revoked may have been removed by the operator.
            Some(Stopped::Lost(lost, _) | Stopped::Revoked(lost, _)) => *lost == lock,
            Some(Stopped::Deadline(_) | Stopped::Guard(_)) => true,
            Some(Stopped::MaxRuntime(_)) | None => false,
        };
        by_stop || self.locks[lock].is_lost
    }

    /// Returns the locks as shown in messages.
    pub(super) fn label(&self) -> String {
        label(self.locks.iter().map(|lock| &lock.name))
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
    Guard(String),
}

/// How a lock was lost under a command that goes on (`--on-lost warn`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unguarded {
    /// According to the store, it is no longer held.
    Lost(Loss),
    /// No renewal was acknowledged in time, for this reason.
    Deadline(String),
}

/// Returns the cause in few words, for the history of the lock.
pub(super) fn describe_briefly(loss: Loss) -> &'static str {
    match loss {
        Loss::Gone => "gone from the store",
        Loss::FailedOver => "gone after a fail-over of the store",
        Loss::Taken => "held by another client",
    }
}

pub(super) fn describe(loss: Loss) -> &'static str {
    match loss {
        Loss::Gone => "it is gone from the store (deleted, expired or evicted)",
        Loss::FailedOver => "the store has failed over to a server that does not have it",
        Loss::Taken => "another client holds it now",
    }
}
