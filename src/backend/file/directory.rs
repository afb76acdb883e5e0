//! The state of one dlock in a directory of locks.

use std::fs::File;

use tokio::sync::mpsc::UnboundedSender;

use super::errors::describe;
use super::hold::{HeldFile, QueuePosition};
use super::lock_file::{is_at, try_flock, try_flock_of, try_lock};
use super::presence::{Role, Target, Watches};
use super::sidecar::{PATIENCE, Sidecar};
use super::{Location, history, lock_file, sidecar, trust};
use crate::backend::ledger::{GateMode, Ledger, Purpose, Watch};
use crate::backend::{Loss, StoreError};
use crate::clock::{Moment, boot_id};
use crate::lock::{Claim, LockName, Record};

/// The state of one dlock in a directory of locks. Every method blocks as long as the file system does.
pub(super) struct LockDirectory {
    pub(super) location: Location,
    pub(super) held: Option<HeldFile>,
    pub(super) position: Option<QueuePosition>,
    watches: Watches,
    /// The lock file whose lock a thread waits for, or has taken.
    pub(super) awaited: Option<Awaited>,
    /// Until when an inspection of many locks waits for locked sidecars, in total.
    pub(super) patient_until: Option<Moment>,
}

/// A lock file whose lock a thread waits for.
pub(super) struct Awaited {
    pub(super) file: File,
    pub(super) mode: GateMode,
    pub(super) has_arrived: bool,
}

impl LockDirectory {
    /// Creates the state without touching the file system. The watches also report their events to `changes`.
    pub(super) fn new(location: Location, changes: UnboundedSender<()>) -> LockDirectory {
        let watches = Watches::new(changes);
        LockDirectory { location, held: None, position: None, watches, awaited: None, patient_until: None }
    }

    pub(super) fn add_record(&self, name: &LockName, at: u64, record: &Record) -> Result<(), StoreError> {
        self.location.prepare()?;
        let path = self.location.history_path(name);
        history::append(&path, at, record).map_err(|error| describe(&error, "write", &path))
    }

    /// Opens the lock file before anything is written, and checks now, not only when the run has ended, whether the
    /// history can be written.
    pub(super) fn open_lock_file(&self, name: &LockName) -> Result<File, StoreError> {
        self.location.prepare()?;
        let path = self.location.lock_path(name);
        let file = lock_file::open(&path).map_err(|error| describe(&error, "open", &path))?;
        let history_path = self.location.history_path(name);
        trust::check_path(&history_path).map_err(|error| describe(&error, "use", &history_path))?;
        Ok(file)
    }

    /// Returns how the lock of this process was lost, if it was.
    pub(super) fn loss(&self, purpose: &Purpose, name: &LockName) -> Result<Option<Loss>, StoreError> {
        let path = self.location.lock_path(name);
        match (purpose, self.held.as_ref().filter(|held| is_holder(held, purpose))) {
            (Purpose::Renew(_), Some(held)) => held.loss(&path),
            (Purpose::Renew(_), None) => Ok(Some(Loss::Taken)),
            (_, Some(held)) => Ok((!is_at(&held.file, &path)).then_some(Loss::Taken)),
            (_, None) => Ok(None),
        }
    }

    /// Opens the sidecar. If that fails, a holder goes on with what it knows, and nothing is to be written.
    pub(super) fn open(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<(Option<Sidecar>, Ledger), StoreError> {
        let path = self.location.sidecar_path(name);
        let mut known = Ledger::default();
        let held = self.held.as_mut().filter(|held| is_holder(held, purpose));
        known.holders.extend(held.as_ref().map(|held| held.entry.clone()));
        if matches!(purpose, Purpose::Release(_)) {
            self.awaited = None;
            if held.is_none() && self.position.is_none() {
                return Ok((None, known));
            }
        }
        let opened = match purpose {
            Purpose::History => Ok(None),
            Purpose::Operate => Sidecar::open_existing(&path, PATIENCE),
            _ => Sidecar::open(&path).map(Some),
        };
        match (opened, purpose) {
            (Ok(Some((sidecar, mut ledger))), _) => {
                if matches!(purpose, Purpose::Renew(_)) {
                    ledger.incomplete |= held.is_some_and(|held| held.follow(&sidecar, &path));
                }
                self.adopt(&mut ledger);
                Ok((Some(sidecar), ledger))
            }
            (Ok(None), _) | (Err(_), Purpose::Release(_)) => Ok((None, known)),
            (Err(_), Purpose::Renew(_)) if held.is_some_and(|held| held.owns_flock) => Ok((None, known)),
            // The sidecar is not readable for this user: only whether the lock is free can be seen, unless this process
            // holds it.
            (Err(error), Purpose::Claim(claim))
                if !trust::is_refused(&error)
                    && self.awaited.take().is_none()
                    && matches!(
                        try_flock(&self.location.lock_path(name), GateMode::of(claim.mode)),
                        Ok(None)
                    ) =>
            {
                Ok((None, known))
            }
            (Err(error), _) => Err(describe(&error, "use", &path)),
        }
    }

    /// Recognizes the own queue position, also if a dlock that does not know this field has rewritten the sidecar.
    fn adopt(&self, ledger: &mut Ledger) {
        if let Some(position) = &self.position
            && let Some(mine) = ledger.waiters.iter_mut().find(|waiter| waiter.ticket == position.ticket)
        {
            mine.token.clone_from(&position.token);
        }
        forget_other_boots(ledger);
    }

    /// Takes the kernel's lock for a claim, if no foreign program has it.
    pub(super) fn take_flock(
        &mut self,
        claim: &Claim,
        file: File,
        mode: GateMode,
    ) -> Result<Option<File>, StoreError> {
        let path = self.location.lock_path(&claim.name);
        let taken = match self.awaited.take_if(|awaited| awaited.has_arrived && awaited.mode == mode) {
            // Held already, unless the thread has failed.
            Some(awaited)
                if is_at(&awaited.file, &path) && try_lock(&awaited.file, mode).unwrap_or(false) =>
            {
                Some(awaited.file)
            }
            _ if self.awaited.as_ref().is_some_and(|awaited| awaited.mode == mode) => None,
            _ => {
                self.awaited = None;
                try_flock_of(file, &path, mode).map_err(|error| describe(&error, "lock", &path))?
            }
        };
        let Some(file) = taken else { return Ok(None) };
        let is_kept = try_lock(&file, GateMode::of(claim.mode));
        Ok(is_kept.map_err(|error| describe(&error, "lock", &path))?.then_some(file))
    }

    /// Starts to watch for an event. Returns whether it will be reported.
    pub(super) fn watch(&mut self, name: &LockName, event: Watch) -> bool {
        match event {
            Watch::Gate(mode) => self.await_flock(name, mode),
            Watch::Holder(ticket) => self.await_end(name, Role::Holding, ticket),
            Watch::Waiter(ticket) => self.await_end(name, Role::Waiting, ticket),
            Watch::Entry(_) | Watch::Freeze => unreachable!("turns do not follow from the order alone"),
        }
    }

    fn await_flock(&mut self, name: &LockName, mode: GateMode) -> bool {
        if self.awaited.is_some() {
            return true;
        }
        let Ok(file) = lock_file::open(&self.location.lock_path(name)) else { return false };
        let is_watched = self.watches.flock(&file, mode);
        self.awaited = is_watched.then_some(Awaited { file, mode, has_arrived: false });
        is_watched
    }

    fn await_end(&mut self, name: &LockName, role: Role, ticket: u64) -> bool {
        self.watches.has(Target::Gone(role, ticket))
            || sidecar::open(&self.location.sidecar_path(name))
                .is_ok_and(|file| self.watches.gone(file, role, ticket))
    }

    /// Handles the events of this process's watching threads.
    pub(super) fn take_events(&mut self) {
        while let Some(target) = self.watches.ready() {
            if let Target::Flock(mode) = target
                && let Some(awaited) = self.awaited.as_mut().filter(|awaited| awaited.mode == mode)
            {
                awaited.has_arrived = true;
            }
        }
    }
}

/// Returns whether this hold belongs to the claim of the request.
pub(super) fn is_holder(held: &HeldFile, purpose: &Purpose) -> bool {
    let is_ours = |claim: &Claim| held.entry.token == claim.token.reveal();
    match purpose {
        Purpose::Claim(claim) | Purpose::Renew(claim) | Purpose::Release(claim) => is_ours(claim),
        Purpose::Operate | Purpose::Prepare | Purpose::History => false,
    }
}

/// Forgets until when a lock is kept if that was recorded before the host was restarted: the time since boot begins
/// anew.
pub(super) fn forget_other_boots(ledger: &mut Ledger) {
    let mut kept = ledger.holders.iter_mut().filter(|holder| holder.kept_until.is_some()).peekable();
    if kept.peek().is_some() {
        let boot = boot_id();
        kept.filter(|holder| holder.identity.boot != boot).for_each(|holder| holder.kept_until = None);
    }
}
