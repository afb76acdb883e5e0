//! The store of one client: a thread that works on the lock files.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::directory::LockDirectory;
use super::doctor;
use super::hold::HeldFile;
use super::location::Location;
use crate::backend::admin::Listed;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::{AnyReply, Contender, Decide, Done, Ledger, Observed, Purpose, Shape, Store};
use crate::backend::race::{self, CLIENTS};
use crate::backend::worker::Worker;
use crate::backend::{Change, Reply, StoreError, TryReply};
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

    /// The same with an `act` that is probably the last one. If the future is dropped, so is what the thread held: the lock
    /// is free then.
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

/// The driver: the thread makes the decisions, while it has the sidecar locked.
#[derive(Default)]
pub struct OnThread;

impl Shape<FileStore> for OnThread {
    async fn change(
        &mut self,
        store: &mut FileStore,
        name: &LockName,
        purpose: Purpose,
        decide: Decide,
    ) -> Result<Done<AnyReply>, StoreError> {
        let name = name.clone();
        let is_release = matches!(purpose, Purpose::Release(_));
        let change = move |directory: &mut LockDirectory| {
            if matches!(purpose, Purpose::Operate) {
                directory.location.check_directory()?;
            }
            directory.change(&name, &purpose, &decide)
        };
        if is_release { store.finish(change).await } else { store.work(change).await }
    }

    async fn read(
        &mut self,
        store: &mut FileStore,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        let names = names.to_vec();
        let is_new = std::mem::take(&mut store.is_new_inspection);
        store.work(move |directory| directory.read(&names, is_new, view)).await
    }

    async fn history(
        &mut self,
        store: &mut FileStore,
        name: &LockName,
    ) -> Result<Vec<NotedRecord>, StoreError> {
        let name = name.clone();
        store.work(move |directory| directory.history(&name)).await
    }
}

impl Store for FileStore {
    type Shape = OnThread;

    /// There is no connection; only begins a new inspection.
    fn connect(&mut self) -> TryReply<'_, ()> {
        self.is_new_inspection = true;
        Box::pin(async { Ok(()) })
    }

    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(self.work(move |directory| directory.names(which)))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            // Never closed: this store holds a sender.
            let _ = self.changes.recv().await;
            Change::OurTurn
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(async move {
            let (location, checked) = (self.location.clone(), diagnosis.clone());
            let mut missing = self.work(|directory| Ok(directory.location.missing_directories())).await?;
            if diagnosis.creates() {
                missing.clear();
            }
            let examined = match self.work(move |_| Ok(doctor::examine(&location, &checked))).await? {
                true => race(&self.location, diagnosis).await,
                false => Ok(()),
            };
            self.work(move |_| Ok(missing.iter().try_for_each(std::fs::remove_dir).is_ok())).await?;
            examined
        })
    }

    fn unfrozen(&self) -> Option<&str> {
        Some("programs that lock the file themselves, such as flock(1)")
    }

    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.kept.iter().flatten().map(|file| file.as_fd()).collect()
    }
}

/// Lets several clients claim the same lock at once, then removes its files.
///
/// # Errors
/// The lock files cannot be used; what is left of them is a free lock.
async fn race(location: &Location, diagnosis: &Diagnosis) -> Result<(), StoreError> {
    let name = race::scratch_name();
    let mut clients: Vec<_> =
        (0..CLIENTS).map(|_| Contender::new(FileStore::new(location.clone()))).collect();
    let result = race::race(&mut clients, &name, diagnosis).await;
    for path in [location.lock_path(&name), location.sidecar_path(&name)] {
        let _ = fs::remove_file(path);
    }
    result
}
