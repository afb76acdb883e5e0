//! Runs blocking work on one state (a file system may hang) in a separate thread.

use std::sync::mpsc;

use tokio::sync::oneshot;

use crate::thread;

/// Enough for the deepest JSON that is read, and small where memory is limited.
const STACK: usize = 512 * 1024;

/// Returns the state if there may be further jobs.
type Job<S> = Box<dyn FnOnce(S) -> Option<S> + Send>;

/// Runs jobs on one state, one after the other.
pub enum Worker<S> {
    /// In a thread, which ends with this, or with the process.
    Thread(mpsc::Sender<Job<S>>),
    /// No thread could be started (`RLIMIT_NPROC`).
    Here(Option<Box<S>>),
}

impl<S: Send + 'static> Worker<S> {
    /// Starts the thread.
    pub fn start(name: &str, state: S) -> Worker<S> {
        let (sender, jobs) = mpsc::channel::<Job<S>>();
        // In a box: a channel makes room for several messages at once.
        let (give, given) = mpsc::channel::<Box<S>>();
        let started = thread::spawn(name, STACK, move || {
            if let Ok(state) = given.recv() {
                jobs.into_iter().try_fold(*state, |state, job| job(state));
            }
        });
        let given = match started {
            Ok(_) => give.send(Box::new(state)).map_err(|mpsc::SendError(state)| state),
            Err(_) => Err(Box::new(state)),
        };
        match given {
            Ok(()) => Worker::Thread(sender),
            Err(state) => Worker::Here(Some(state)),
        }
    }

    /// Runs a job after all earlier ones, unless the future has been dropped by then.
    pub fn run<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> impl Future<Output = Option<T>> + 'static {
        let (sender, reply) = oneshot::channel();
        self.give(move |mut state| {
            if !sender.is_closed() {
                let _ = sender.send(act(&mut state));
            }
            Some(state)
        });
        async { reply.await.ok() }
    }

    /// Runs the last job, like [`Worker::run`], and returns the state as well. The thread ends by itself after it, while
    /// the caller goes on: a process that exits is not waited for by its parent until all of its threads have ended.
    pub fn finish<T: Send + 'static>(
        mut self,
        act: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> impl Future<Output = Option<(T, S)>> + 'static {
        let (sender, reply) = oneshot::channel();
        self.give(move |mut state| {
            if !sender.is_closed() {
                let _ = sender.send((act(&mut state), state));
            }
            None
        });
        async { reply.await.ok() }
    }

    fn give(&mut self, job: impl FnOnce(S) -> Option<S> + Send + 'static) {
        match self {
            // A thread that has ended drops the job, and with it the reply.
            Worker::Thread(jobs) => drop(jobs.send(Box::new(job))),
            Worker::Here(state) => *state = state.take().and_then(|state| job(*state)).map(Box::new),
        }
    }
}
