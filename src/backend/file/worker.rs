//! The thread that makes the calls to a file system, which may hang.

use std::sync::mpsc;

use tokio::sync::oneshot;

use super::directory::LockDirectory;

type Job = Box<dyn FnOnce(&mut LockDirectory) + Send>;

/// Enough for the deepest JSON that is read.
const STACK: usize = 512 * 1024;

/// Runs jobs one after the other.
pub(super) enum Worker {
    /// In a thread, which ends with this, or with the process.
    Thread(mpsc::Sender<Job>),
    /// No thread could be started (`RLIMIT_NPROC`).
    Here(Box<LockDirectory>),
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start(directory: LockDirectory) -> Worker {
        let (sender, jobs) = mpsc::channel::<Job>();
        let (give, given) = mpsc::channel::<LockDirectory>();
        let thread = std::thread::Builder::new().name("lock-files".into()).stack_size(STACK);
        let started = thread.spawn(move || {
            let Ok(mut directory) = given.recv() else { return };
            for job in jobs {
                job(&mut directory);
            }
        });
        match started {
            Ok(_) => match give.send(directory) {
                Ok(()) => Worker::Thread(sender),
                Err(mpsc::SendError(directory)) => Worker::Here(Box::new(directory)),
            },
            Err(_) => Worker::Here(Box::new(directory)),
        }
    }

    /// Runs a job after all earlier ones, unless the future has been dropped by then.
    pub(super) fn run<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut LockDirectory) -> T + Send + 'static,
    ) -> impl Future<Output = Option<T>> + 'static {
        let (sender, reply) = oneshot::channel();
        let job = move |directory: &mut LockDirectory| {
            if !sender.is_closed() {
                let _ = sender.send(act(directory));
            }
        };
        match self {
            // A thread that has ended drops the job, and with it the reply.
            Worker::Thread(jobs) => drop(jobs.send(Box::new(job))),
            Worker::Here(directory) => job(directory),
        }
        async { reply.await.ok() }
    }
}
