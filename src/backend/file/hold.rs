//! The hold and the queue position of this process: the descriptors that keep them.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::directory::LockDirectory;
use super::lock_file::{is_at, try_flock_of, try_lock};
use super::presence::{Role, announce, withdraw};
use super::sidecar::Sidecar;
use super::{describe, sidecar};
use crate::backend::ledger::{GateMode, HolderEntry, Ledger};
use crate::backend::{Loss, StoreError, io_text};
use crate::clock::Moment;
use crate::lock::Claim;

/// How long a program may take that tests whether a lock is free.
const TEST_LIMIT: Duration = Duration::from_secs(1);

/// A lock that is held by this process.
pub(super) struct HeldFile {
    /// The lock file. A nested holder takes the kernel's lock over when its owner goes.
    pub(super) file: Arc<File>,
    pub(super) owns_flock: bool,
    /// Since when another program has the kernel's lock that should pass to this process.
    contested: Option<Moment>,
    /// Has the byte locked that marks this process as present.
    presence: Arc<File>,
    /// What the sidecar records about this hold.
    pub(super) entry: HolderEntry,
}

/// The queue position of this process.
pub(super) struct QueuePosition {
    presence: File,
    pub(super) ticket: u64,
    pub(super) token: String,
}

impl HeldFile {
    /// Returns the open files that keep the lock.
    pub(super) fn kept(&self) -> [Arc<File>; 2] {
        [self.file.clone(), self.presence.clone()]
    }

    /// Returns how the lock was lost, if it was: another process may lock the file that is at the path now.
    ///
    /// # Errors
    /// A file system that does not reply has not lost the lock.
    pub(super) fn loss(&self, path: &Path) -> Result<Option<Loss>, StoreError> {
        match fs::symlink_metadata(path) {
            Ok(_) if is_at(&self.file, path) => Ok(None),
            Ok(_) => Ok(Some(Loss::Taken)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Some(Loss::Gone))
            }
            Err(error) => {
                Err(StoreError::unanswered(format!("cannot inspect {}: {}", path.display(), io_text(&error))))
            }
        }
    }

    /// Marks this process as present in a sidecar that has replaced the one that it is present in. Returns whether it
    /// had been replaced: then not all holders may be recorded.
    pub(super) fn follow(&mut self, sidecar: &Sidecar, path: &Path) -> bool {
        if is_at(&self.presence, path) {
            return false;
        }
        // If that is impossible now, the next renewal does it.
        if announce(sidecar.file(), Role::Holding, self.entry.ticket).is_ok()
            && let Ok(presence) = sidecar.file().try_clone()
        {
            self.presence = Arc::new(presence);
        }
        true
    }

    /// Takes the kernel's lock over from a process that is gone.
    pub(super) fn take_over(&mut self, mode: GateMode, path: &Path) -> Result<bool, StoreError> {
        self.owns_flock = try_lock(&self.file, mode).map_err(|error| describe(&error, "lock", path))?;
        // Another program may only have tested whether it is free.
        if !self.owns_flock && Moment::now() - *self.contested.get_or_insert_with(Moment::now) < TEST_LIMIT {
            return Err(StoreError::unanswered("another program has the lock for a moment"));
        }
        Ok(self.owns_flock)
    }
}

impl LockDirectory {
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

    /// Marks this process as the holder with this ticket.
    pub(super) fn hold(
        &mut self,
        ticket: u64,
        file: File,
        owns_flock: bool,
        sidecar: &Sidecar,
        ledger: &Ledger,
    ) -> io::Result<()> {
        let Some(entry) = ledger.holders.iter().find(|entry| entry.ticket == ticket) else { return Ok(()) };
        announce(sidecar.file(), Role::Holding, ticket)?;
        let presence = Arc::new(sidecar.file().try_clone()?);
        let (file, entry) = (Arc::new(file), entry.clone());
        self.held = Some(HeldFile { file, owns_flock, contested: None, presence, entry });
        Ok(())
    }

    /// Marks this process as the waiter with this ticket.
    pub(super) fn wait(&mut self, ticket: u64, claim: &Claim) -> Result<(), StoreError> {
        if self.position.as_ref().is_some_and(|position| position.ticket == ticket) {
            return Ok(());
        }
        self.leave();
        let path = self.location.sidecar_path(&claim.name);
        // A separate descriptor: that of the sidecar is closed after each use.
        let presence = sidecar::open(&path).map_err(|error| describe(&error, "open", &path))?;
        announce(&presence, Role::Waiting, ticket).map_err(|error| describe(&error, "lock", &path))?;
        self.position = Some(QueuePosition { presence, ticket, token: claim.token.reveal().to_owned() });
        Ok(())
    }

    /// Removes the mark of a waiter.
    pub(super) fn leave(&mut self) {
        if let Some(position) = self.position.take() {
            withdraw(&position.presence, Role::Waiting, position.ticket);
        }
    }

    /// Frees the kernel's lock, then lets other processes read the sidecar, then removes the mark of a holder.
    pub(super) fn free(&mut self, sidecar: Option<Sidecar>, path: &Path) -> Result<(), StoreError> {
        let Some(held) = self.held.take() else { return Ok(()) };
        // Explicitly, because the guard may still have its duplicates open for a moment.
        let unlocked = if held.owns_flock { held.file.unlock() } else { Ok(()) };
        drop(sidecar);
        withdraw(&held.presence, Role::Holding, held.entry.ticket);
        unlocked.map_err(|error| describe(&error, "unlock", path))
    }
}
