//! One file for each command; this one has what they share: standard output and the end of the process.
//!
//! Called by `lib`, and calls everything below. What always holds: every path ends in one [`Exit`], and what is said on the
//! way is said by `report`.

pub mod acquire;
pub mod break_lock;
pub mod check;
pub mod complete;
pub mod completions;
pub mod config;
pub mod doctor;
mod fleet;
pub mod freeze;
pub mod history;
mod hold;
mod lock_wait;
pub mod man;
mod older_holder;
pub mod overdue;
pub mod release;
pub mod renew;
pub mod run;
mod selected;
pub mod status;
pub mod thaw;
mod watch;

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::backend::{StoreError, io_text};
use crate::child::signals::{self, Source, WhileWaiting};
use crate::child::sys;
use crate::exit::{Exit, Failure};
use crate::lease::acquire_all::HeldLock;
use crate::lock::LockName;
use crate::report::{self, Files, Reporter, RunReport, Started, hazard_of};
use crate::settings::{LogFormat, OutputFiles, StoreTarget};

pub fn print(text: &str) -> Exit {
    match print_to_reader(text) {
        Ok(_) => Exit::SUCCESS,
        Err(failure) => Reporter::new(false, 0, LogFormat::Text).failure(&failure),
    }
}

/// Writes to standard output, however long its reader takes. Returns whether there is a reader: one that has closed the
/// pipe, as `head` does, is not a failure.
fn print_to_reader(text: &str) -> Result<bool, Failure> {
    match report::to_stdout(text, None) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::internal(format!("cannot write to standard output: {}", io_text(&error)))),
    }
}

/// Carries out a command other than `run`: prints the notices of its plan, executes the plan on an event loop, and
/// reports why it failed.
fn execute<P>(
    reporter: &Reporter,
    plan: Result<P, Failure>,
    notices: impl FnOnce(&P) -> &[String],
    work: impl AsyncFnOnce(&P) -> Result<Exit, Failure>,
) -> Exit {
    try_execute(reporter, plan, notices, work).unwrap_or_else(|failure| reporter.failure(&failure))
}

/// Does the same, but leaves it to the caller to report why the command failed.
fn try_execute<P>(
    reporter: &Reporter,
    plan: Result<P, Failure>,
    notices: impl FnOnce(&P) -> &[String],
    work: impl AsyncFnOnce(&P) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let plan = plan?;
    reporter.notices(notices(&plan));
    let runtime = event_loop().map_err(no_event_loop)?;
    let exit = runtime.block_on(work(&plan));
    end(runtime);
    exit
}

/// Ends the event loop with the process. Nothing is waited for, such as a lock that a thread waits for. A task may be a program
/// that prints credentials, which is killed.
fn end(event_loop: Runtime) {
    match event_loop.metrics().num_alive_tasks() {
        // The kernel closes everything at once.
        0 => std::mem::forget(event_loop),
        _ => event_loop.shutdown_background(),
    }
}

/// Waits for a signal that ends this process, and returns it; stops for others as any process does.
async fn ended_by(signals: &Source) -> i32 {
    loop {
        let signal = signals.next().await.signal;
        match signals::while_waiting(signal) {
            _ if signals::is_ignored(signal) => {}
            WhileWaiting::End => return signal,
            WhileWaiting::Stop => sys::raise_default(signal),
            WhileWaiting::Nothing => {}
        }
    }
}

/// Returns the notices about a store, after telling the reporter what its messages are about.
fn notices_about<'a>(reporter: &Reporter, names: &[LockName], target: &'a StoreTarget) -> &'a [String] {
    reporter.set_subject(names, target.store.display());
    &target.notices
}

/// Creates the event loop. Few events come at once, and room for the default of 1,024 would be zeroed in every run.
fn event_loop() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().max_io_events_per_tick(32).build()
}

fn no_event_loop(error: io::Error) -> Failure {
    Failure::internal(format!("cannot start the event loop: {}", io_text(&error)))
}

fn no_signals(error: io::Error) -> Failure {
    Failure::internal(format!("cannot receive signals: {}", io_text(&error)))
}

/// Returns the reply of a store, or [`StoreError::Unavailable`] after `limit`.
async fn within<T>(
    limit: Duration,
    reply: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = |_| Err(StoreError::unanswered(format!("no answer within {} ms", limit.as_millis())));
    timeout(limit, reply).await.unwrap_or_else(late)
}

/// Warns of the first hazard to these locks that the configuration does not accept.
fn warn_of_hazard(held: &[HeldLock<'_>], target: &StoreTarget, reporter: &Reporter) {
    let mut hazards = held.iter().filter_map(|held| held.hazard.as_ref());
    if let Some(hazard) = hazards.find(|hazard| !target.accepts(hazard)) {
        reporter.warning(&hazard_of(target.store.display(), hazard));
    }
}

/// Warns, once, that a password was sent to a server that may be anyone, unless the configuration accepts that.
fn warn_of_exposure(target: &StoreTarget, reporter: &Reporter) {
    if let Some(exposure) = target.exposure() {
        reporter.warning(&exposure);
    }
}

/// The number of locks that are inspected within one time limit.
const LOCKS_AT_A_TIME: usize = 1000;

async fn or_never<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Reports why a command line is not valid, also in the report and metrics files that it names.
pub fn report_invalid_command_line(failure: &Failure, wanted: &OutputFiles, reporter: &Reporter) -> Exit {
    let exit = reporter.failure(failure);
    let mut files = Files::default();
    if let Err(failure) = files.check(wanted) {
        reporter.warning(&failure.message);
    }
    files.write(&RunReport::new(Started::now(), &[], None).failed(failure), reporter);
    exit
}

/// Prevents core dumps of this process from here on: neither to a file nor to a pipe of `core_pattern`.
fn forbid_core_dump() {
    use nix::sys::resource::{Resource, setrlimit};
    let _ = nix::sys::prctl::set_dumpable(false);
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
}

/// Ends the process with the status, or by the signal, without a core dump of dlock in addition to the
/// command's. The init process of a PID namespace cannot die of a signal; it exits with 128 + n, as a shell
/// would.
pub fn leave(exit: Exit) -> ! {
    match exit {
        Exit::Status(status) => sys::exit_now(i32::from(status)),
        Exit::Signal(signal) => {
            forbid_core_dump();
            sys::raise_default(signal);
            sys::exit_now(128 + signal)
        }
    }
}
