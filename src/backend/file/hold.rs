//! The hold and the queue position of this process: the descriptors that keep them.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::errors::describe;
use super::lock_file::{is_at, try_lock};
use super::presence::{Role, announce, withdraw};
use super::sidecar;
use super::sidecar::Sidecar;
use crate::backend::ledger::{GateMode, HolderEntry};
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
    /// Marks this process as the holder that `entry` records.
    pub(super) fn announce(
        entry: HolderEntry,
        file: File,
        owns_flock: bool,
        sidecar: &Sidecar,
    ) -> io::Result<HeldFile> {
        announce(sidecar.file(), Role::Holding, entry.ticket)?;
        let presence = Arc::new(sidecar.file().try_clone()?);
        Ok(HeldFile { file: Arc::new(file), owns_flock, contested: None, presence, entry })
    }

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
            return Err(StoreError::unanswered("another program holds the lock file at the moment"));
        }
        Ok(self.owns_flock)
    }

    /// Frees the kernel's lock, then lets other processes read the sidecar, then removes the mark of a holder.
    pub(super) fn free(self, sidecar: Option<Sidecar>) -> io::Result<()> {
        // Explicitly, because the guard may still have its duplicates open for a moment.
        let unlocked = if self.owns_flock { self.file.unlock() } else { Ok(()) };
        drop(sidecar);
        withdraw(&self.presence, Role::Holding, self.entry.ticket);
        unlocked
    }
}

impl QueuePosition {
    /// Marks this process as the waiter with this ticket.
    pub(super) fn announce(ticket: u64, claim: &Claim, path: &Path) -> Result<QueuePosition, StoreError> {
        // A separate descriptor: that of the sidecar is closed after each use.
        let presence = sidecar::open(path).map_err(|error| describe(&error, "open", path))?;
        announce(&presence, Role::Waiting, ticket).map_err(|error| describe(&error, "lock", path))?;
        Ok(QueuePosition { presence, ticket, token: claim.token.reveal().to_owned() })
    }
}

impl Drop for QueuePosition {
    fn drop(&mut self) {
        withdraw(&self.presence, Role::Waiting, self.ticket);
    }
}
