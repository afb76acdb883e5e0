//! What the kernel shows about a lock and about the holders and waiters in its sidecar.

use std::fs::File;
use std::path::Path;

use super::foreign;
use super::lock_file::{number_at, try_flock};
use super::presence::{Role, is_there};
use crate::backend::Loss;
use crate::backend::ledger::{Gate, GateMode, HolderEntry, Lifetime, Now, Observed, WaiterEntry};
use crate::clock::{Moment, wall_micros};
use crate::lock::{Holder, Mode};

/// The observations while a sidecar is open.
pub(super) struct Observation<'a> {
    pub(super) now: Now,
    pub(super) lock_path: &'a Path,
    /// `None` if the sidecar cannot be used: then every recorded process is assumed to be alive.
    pub(super) sidecar: Option<&'a File>,
    pub(super) gate: Gate,
    pub(super) proven: Option<&'a HolderEntry>,
    pub(super) loss: Option<Loss>,
    pub(super) is_nearly_full: bool,
}

impl<'a> Observation<'a> {
    /// Creates the observations of a process that has nothing to do with the lock.
    pub(super) fn new(lock_path: &'a Path, sidecar: Option<&'a File>) -> Observation<'a> {
        let (now, gate) = (now(), Gate::Untried);
        Observation { now, lock_path, sidecar, gate, proven: None, loss: None, is_nearly_full: false }
    }
}

/// Returns the time by the clocks of this host.
pub(super) fn now() -> Now {
    Now { clock: Moment::now().since_boot(), wall: wall_micros() }
}

impl Observed for Observation<'_> {
    fn now(&self) -> Now {
        self.now
    }

    /// An entry lives as long as a descriptor of its process.
    fn lifetime(&self) -> Lifetime {
        Lifetime::OfOwner(None)
    }

    fn is_holder_dead(&self, entry: &HolderEntry) -> bool {
        self.sidecar.is_some_and(|file| !is_there(file, Role::Holding, entry.ticket))
    }

    fn is_waiter_dead(&self, entry: &WaiterEntry) -> bool {
        self.sidecar.is_some_and(|file| !is_there(file, Role::Waiting, entry.ticket))
    }

    fn gate(&self) -> Gate {
        self.gate
    }

    fn admits(&self, mode: Mode) -> bool {
        let is_ours = matches!(self.gate, Gate::Passed(_));
        is_ours || try_flock(self.lock_path, GateMode::of(mode)).is_ok_and(|file| file.is_some())
    }

    fn is_gate_replaced(&self, entry: &HolderEntry) -> bool {
        number_at(self.lock_path) != entry.gate
    }

    fn foreign(&self) -> Option<(Mode, Holder)> {
        foreign::holder_of(self.lock_path)
    }

    fn proven_hold(&self) -> Option<&HolderEntry> {
        self.proven
    }

    fn loss(&self) -> Option<Loss> {
        self.loss
    }

    fn is_read_only(&self) -> bool {
        self.sidecar.is_none()
    }

    fn is_nearly_full(&self) -> bool {
        self.is_nearly_full
    }
}
