//! Locks on this host: `flock(2)` on `DIRECTORY/NAME.lock`, so that `flock(1)` on the same file excludes dlock and is
//! excluded by it. The content of the lock file is never touched. What dlock processes have to agree on (fencing
//! counter, holders, queue, slots) is in a sidecar file beside it, under a short lock.

mod directory;
mod doctor;
mod foreign;
mod history;
mod holding;
mod inspect;
mod location;
mod lock_file;
mod presence;
mod queue;
mod sidecar;
mod trust;
mod waiting;
mod worker;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use self::directory::LockDirectory;
pub use self::location::Location;
pub(super) use self::location::OPTIONS;
use self::presence::Changes;
use self::sidecar::SidecarError;
use self::worker::Worker;
use super::{Attempt, Backend, Change, Intent, Release, Renewal, Reply, StoreError, io_text};
use crate::lock::{Claim, LockName, Record};

/// The `file:` store. A file system may hang (NFS, FUSE, a frozen one), so its calls are made by a separate thread,
/// while dlock handles signals and deadlines.
pub struct FileStore {
    location: Location,
    worker: Option<Worker>,
    /// Events that the worker thread was waiting for.
    changes: mpsc::UnboundedReceiver<()>,
    sender: mpsc::UnboundedSender<()>,
    /// The files that keep the lock that is held: the lock file and the sidecar.
    kept: Option<[Arc<File>; 2]>,
    /// The next inspection begins a new sequence of inspections of many locks.
    is_new_inspection: bool,
}

impl FileStore {
    /// Creates the store without touching the file system.
    pub fn new(location: Location) -> FileStore {
        let (sender, changes) = mpsc::unbounded_channel();
        FileStore { location, worker: None, changes, sender, kept: None, is_new_inspection: true }
    }

    /// Runs `act` on the worker thread. If the future is dropped before the thread has started it, nothing is done;
    /// later, the thread finishes it before it does anything else.
    async fn work<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut LockDirectory) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let worker = self.worker.get_or_insert_with(|| {
            Worker::start(LockDirectory::new(self.location.clone(), Changes::to(self.sender.clone())))
        });
        // The worker thread handles these events as well.
        while self.changes.try_recv().is_ok() {}
        let reply = worker.run(move |directory| {
            directory.take_events();
            let result = act(directory);
            (result, directory.kept())
        });
        let (result, kept) =
            reply.await.ok_or_else(|| StoreError::unanswered("the file thread has ended"))?;
        self.kept = kept;
        result
    }
}

impl Backend for FileStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    /// There is no connection; only begins a new inspection.
    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        self.is_new_inspection = true;
        Box::pin(async { Ok(()) })
    }

    fn try_acquire<'a>(
        &'a mut self,
        claim: &'a Claim,
        intent: Intent,
    ) -> Reply<'a, Result<Attempt, StoreError>> {
        let claim = claim.clone();
        Box::pin(self.work(move |directory| directory.acquire_now(&claim, intent)))
    }

    /// There is no lease; the lock is lost if its file was unlinked or replaced, because other processes lock the new
    /// one.
    fn renew<'a>(&'a mut self, claim: &'a Claim, _: Duration) -> Reply<'a, Result<Renewal, StoreError>> {
        let claim = claim.clone();
        Box::pin(self.work(move |directory| directory.renew_now(&claim)))
    }

    /// A descriptor cannot keep a lock without its process: with a `rest` the process has to stay. Other dlock
    /// processes respect the rest even if it does not.
    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        record: Option<&'a Record>,
    ) -> Reply<'a, Result<Release, StoreError>> {
        let (claim, record) = (claim.clone(), record.cloned());
        Box::pin(self.work(move |directory| {
            let release = directory.release_now(&claim, rest)?;
            if let Some(record) = record.filter(|_| !matches!(release, Release::NotYet(_))) {
                // The lock is free, even if the record cannot be written.
                let _ = directory.note(&claim.name, &record);
            }
            Ok(release)
        }))
    }

    fn record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> Reply<'a, Result<(), StoreError>> {
        let (name, record) = (name.clone(), record.clone());
        Box::pin(self.work(move |directory| directory.note(&name, &record)))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            // Never closed: this store holds a sender.
            let _ = self.changes.recv().await;
            Change::OurTurn
        })
    }

    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.kept.iter().flatten().map(|file| file.as_fd()).collect()
    }
}

fn sidecar_failure(error: SidecarError, path: &Path) -> StoreError {
    match error {
        SidecarError::Io(error) => describe(&error, "use", path),
        SidecarError::Unknown(what) => StoreError::Config(format!("{}: {what}", path.display())),
    }
}

fn describe(error: &io::Error, what: &str, path: &Path) -> StoreError {
    let text = match error.raw_os_error() {
        Some(libc::ELOOP) => "it is a symbolic link, which dlock does not follow".to_owned(),
        _ => io_text(error),
    };
    let message = format!("cannot {what} {}: {text}", path.display());
    match error.kind() {
        io::ErrorKind::PermissionDenied => StoreError::Denied(message),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::Config(message),
        _ if error.raw_os_error() == Some(libc::ELOOP) => StoreError::Denied(message),
        _ => StoreError::unreachable(message),
    }
}
