//! Locks on this host: `flock(2)` on `DIRECTORY/NAME.lock`, so that `flock(1)` on the same file excludes dlock and is
//! excluded by it. The content of the lock file is never touched. What dlock processes have to agree on (fencing
//! counter, holders, queue, slots) is in a sidecar file beside it, under a short lock.

mod directory;
mod doctor;
mod foreign;
mod history;
mod hold;
mod inspect;
mod location;
mod lock_file;
mod observation;
mod presence;
mod sidecar;
mod trust;

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use tokio::sync::mpsc;

use self::directory::LockDirectory;
use self::hold::HeldFile;
pub use self::location::Location;
use super::diagnosis::Diagnosis;
use super::ledger::{Done, Ledger, LedgerStore, Observed, Purpose, Step};
use super::worker::Worker;
use super::{Change, Location as _, Reply, StoreError, io_text};
use crate::lock::{LockName, LockState, NotedRecord};

/// The `file:` store. A file system may hang (NFS, FUSE, a frozen one), so its calls are made by a separate thread,
/// while dlock handles signals and deadlines.
pub struct FileStore {
    location: Location,
    worker: Option<Worker<LockDirectory>>,
    /// What the last worker has left.
    directory: Option<LockDirectory>,
    /// Events that the worker thread was waiting for.
    changes: mpsc::UnboundedReceiver<()>,
    sender: mpsc::UnboundedSender<()>,
    /// Of the lock that is held.
    kept: Kept,
    /// The next inspection begins a new sequence of inspections of many locks.
    is_new_inspection: bool,
}

impl FileStore {
    /// Creates the store without touching the file system.
    pub fn new(location: Location) -> FileStore {
        let (sender, changes) = mpsc::unbounded_channel();
        FileStore {
            location,
            worker: None,
            directory: None,
            changes,
            sender,
            kept: None,
            is_new_inspection: true,
        }
    }

    /// Runs `act` on the worker thread. If the future is dropped before the thread has started it, nothing is done;
    /// later, the thread finishes it before it does anything else.
    async fn work<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut LockDirectory) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let mut worker = self.worker();
        let reply = worker.run(observed(act));
        self.worker = Some(worker);
        let (result, kept) = reply.await.ok_or_else(thread_has_ended)?;
        self.kept = kept;
        result
    }

    /// The same with an `act` that is probably the last one.
    async fn finish<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut LockDirectory) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let ((result, kept), directory) =
            self.worker().finish(observed(act)).await.ok_or_else(thread_has_ended)?;
        (self.kept, self.directory) = (kept, Some(directory));
        result
    }

    /// Takes the worker, or a new one.
    fn worker(&mut self) -> Worker<LockDirectory> {
        // The worker thread handles these events as well.
        while self.changes.try_recv().is_ok() {}
        self.worker.take().unwrap_or_else(|| {
            let directory = self.directory.take();
            let new = || LockDirectory::new(self.location.clone(), self.sender.clone());
            Worker::start("lock-files", directory.unwrap_or_else(new))
        })
    }
}

/// The files that keep a lock: the lock file and the sidecar.
type Kept = Option<[Arc<File>; 2]>;

/// Returns `act` with the events before it, and with the files that keep the lock after it.
fn observed<T>(act: impl FnOnce(&mut LockDirectory) -> T) -> impl FnOnce(&mut LockDirectory) -> (T, Kept) {
    |directory| {
        directory.take_events();
        let result = act(directory);
        (result, directory.held.as_ref().map(HeldFile::kept))
    }
}

fn thread_has_ended() -> StoreError {
    StoreError::unanswered("the file thread has ended")
}

impl LedgerStore for FileStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    /// There is no connection; only begins a new inspection.
    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        self.is_new_inspection = true;
        Box::pin(async { Ok(()) })
    }

    fn change<T: Send + 'static>(
        &mut self,
        name: &LockName,
        purpose: Purpose,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T> + Send + 'static,
    ) -> impl Future<Output = Result<Done<T>, StoreError>> {
        let name = name.clone();
        async move {
            let is_release = matches!(purpose, Purpose::Release(_));
            let change = move |directory: &mut LockDirectory| {
                if matches!(purpose, Purpose::Operate) {
                    directory.location.check_directory()?;
                }
                directory.change(&name, &purpose, decide)
            };
            if is_release { self.finish(change).await } else { self.work(change).await }
        }
    }

    fn read(
        &mut self,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> impl Future<Output = Result<(u64, Vec<LockState>), StoreError>> {
        let names = names.to_vec();
        let is_new = std::mem::take(&mut self.is_new_inspection);
        self.work(move |directory| directory.read(&names, is_new, view))
    }

    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(self.work(|directory| directory.names()))
    }

    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(self.work(|directory| directory.recorded_names()))
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        let name = name.clone();
        Box::pin(self.work(move |directory| directory.history(&name)))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            // Never closed: this store holds a sender.
            let _ = self.changes.recv().await;
            Change::OurTurn
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let (location, checked) = (self.location.clone(), diagnosis.clone());
            let missing = self.work(|directory| Ok(directory.location.missing_directories())).await?;
            let examined = match self.work(move |_| Ok(doctor::examine(&location, &checked))).await? {
                true => doctor::race(&self.location, diagnosis).await,
                false => Ok(()),
            };
            self.work(move |_| Ok(missing.iter().try_for_each(std::fs::remove_dir).is_ok())).await?;
            examined
        })
    }

    fn init(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(self.work(|directory| directory.location.prepare()))
    }

    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.kept.iter().flatten().map(|file| file.as_fd()).collect()
    }
}

fn describe(error: &io::Error, what: &str, path: &Path) -> StoreError {
    let text = match error.raw_os_error() {
        Some(libc::ELOOP) => "it is a symbolic link, which dlock does not follow".to_owned(),
        Some(libc::EACCES | libc::EPERM) => io_text(error) + &trust::owner(path),
        _ => io_text(error),
    };
    let message = format!("cannot {what} {}: {text}", path.display());
    match error.kind() {
        io::ErrorKind::InvalidData => StoreError::Config(format!("{}: {text}", path.display())),
        io::ErrorKind::PermissionDenied => StoreError::Denied(message),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::Config(message),
        _ if error.raw_os_error() == Some(libc::ELOOP) => StoreError::Denied(message),
        _ => StoreError::unreachable(message),
    }
}
