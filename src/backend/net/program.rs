//! Programs that print credentials.

use std::io::{self, ErrorKind};
use std::mem;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::closed;
use crate::backend::worker::Worker;
use crate::backend::{StoreError, io_text};
use crate::clock::Moment;
use crate::{input, priority, signal_mask};

/// Longer than any credentials.
const LONGEST: u64 = 64 << 10;
/// How often a program that has printed all is looked at, until it has ended.
const TICK: Duration = Duration::from_millis(5);
/// How long the kernel may take to end a program that was killed.
const KILLED_WITHIN: Duration = Duration::from_secs(1);

enum State {
    Starting,
    Running(Child),
    /// It is to be killed as soon as it runs.
    Unwanted,
}

struct Program(Mutex<State>);

/// Kills the program when it is dropped.
struct Awaited(Arc<Program>);

/// Runs a program without input, and returns what it prints. It says by that whether it has succeeded: its status may
/// be collected elsewhere. After `limit`, or if the future is dropped, it is killed, but not what it has started.
///
/// # Errors
/// It cannot be run, prints more than any credentials have, or is killed; or no thread can be started for it.
pub async fn output_of(mut command: Command, limit: Duration) -> Result<Vec<u8>, StoreError> {
    let worker = Worker::start("credentials", ());
    if let Worker::Here(_) = worker {
        // Nothing else would be done while it runs: no renewal, and no end by a time limit.
        let why =
            "the program cannot be run: no thread can be started (see ulimit -u, and pids.max of the cgroup)";
        return Err(StoreError::unreachable(why));
    }
    let awaited = Awaited(Arc::new(Program(Mutex::new(State::Starting))));
    let program = awaited.0.clone();
    let ran = worker.finish(move |()| program.run(&mut command, limit)).await;
    let (output, ()) = ran.ok_or_else(closed)?;
    output
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl Program {
    fn run(&self, command: &mut Command, limit: Duration) -> Result<Vec<u8>, StoreError> {
        // That of dlock is raised while the command runs.
        priority::restore();
        let until = Moment::now() + limit;
        let failed =
            |what: &str, error: &io::Error| StoreError::Config(format!("{what}: {}", io_text(error)));
        let child = signal_mask::keep(|_| command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn());
        let mut child = child.map_err(|error| failed("the program cannot be run", &error))?;
        let pipe = child.stdout.take().expect("it is a pipe");
        let before = mem::replace(&mut *self.state(), State::Running(child));
        if let State::Unwanted = before {
            self.kill();
        }
        let output = input::read_pipe(pipe, LONGEST, limit);
        if output.is_err() || !self.has_ended_by(until) {
            self.kill();
            self.has_ended_by(Moment::now() + KILLED_WITHIN);
        }
        output.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => {
                StoreError::unreachable(format!("no credentials after {}s", limit.as_secs()))
            }
            _ => failed("its output cannot be used", &error),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self) {
        match &mut *self.state() {
            State::Running(child) => {
                // The pid of one that was collected elsewhere may be that of another process.
                if let Ok(None) = child.try_wait() {
                    let _ = child.kill();
                }
            }
            state => *state = State::Unwanted,
        }
    }

    /// Waits until it has ended, or until then. Returns whether it has.
    fn has_ended_by(&self, until: Moment) -> bool {
        loop {
            let has_ended = match &mut *self.state() {
                State::Running(child) => !matches!(child.try_wait(), Ok(None)),
                _ => true,
            };
            if has_ended {
                return true;
            }
            if Moment::now() >= until {
                return false;
            }
            thread::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, pipe};

    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// Returns a shell with this script, and a pipe that is closed when nobody has its standard error any more.
    fn shell(script: &str) -> (Command, PipeReader) {
        let (reader, writer) = pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command.args(["-c", script]).stderr(writer);
        (command, reader)
    }

    #[tokio::test]
    async fn what_a_program_prints_is_returned() {
        let (command, _) = shell("echo a; read line || echo b; exit 1");
        assert_eq!(output_of(command, LONG).await.expect("its output"), b"a\nb\n");
        let (command, ended) = shell("yes");
        let error = output_of(command, LONG).await.expect_err("too much");
        assert_eq!(error.to_string(), "its output cannot be used: longer than 65536 bytes");
        assert!(input::read_pipe(ended, LONGEST, LONG).is_ok());
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed() {
        for script in ["exec sleep 600", "echo a; exec sleep 600", "trap '' TERM; exec sleep 600"] {
            let (command, ended) = shell(script);
            let error = output_of(command, Duration::from_secs(1)).await.expect_err("a limit");
            assert_eq!(error.to_string(), "no credentials after 1s");
            assert!(input::read_pipe(ended, LONGEST, LONG).is_ok(), "{script}");
        }
        // It has printed all.
        let (command, ended) = shell("echo a; exec sleep 600 >&-");
        assert_eq!(output_of(command, Duration::from_secs(5)).await.expect("its output"), b"a\n");
        assert!(input::read_pipe(ended, LONGEST, LONG).is_ok());
    }

    #[tokio::test]
    async fn a_program_that_nobody_waits_for_is_killed() {
        for within in [0, 10, 1_000] {
            let (command, ended) = shell("exec sleep 600");
            let waited = timeout(Duration::from_millis(within), output_of(command, 10 * LONG)).await;
            assert!(waited.is_err());
            assert!(input::read_pipe(ended, LONGEST, LONG).is_ok(), "after {within} ms");
        }
    }
}
