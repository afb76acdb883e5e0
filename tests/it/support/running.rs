//! A running dlock, and its output when it has ended.

use super::SOON;
use super::place::{Place, read};
use super::process::{self, Marker, Stat};
use super::wait::{Pauses, eventually, until};
use dlock::child::sys;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
}

impl Exit {
    /// It was killed by this signal.
    pub fn by(signal: Signal) -> Self {
        Self::Signal(signal as i32)
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        status.code().map_or_else(|| Self::Signal(status.signal().unwrap_or(0)), Self::Code)
    }
}

/// The outcome of a run.
#[derive(Debug, Clone)]
pub struct Output {
    /// How dlock ended.
    pub exit: Exit,
    /// Everything on standard output, unless it was redirected.
    pub stdout: String,
    /// Everything on standard error, unless it was redirected.
    pub stderr: String,
    /// From the start of dlock to the moment its end was noticed.
    pub elapsed: Duration,
    /// Whether the kernel reports a core dump.
    pub core_dumped: bool,
}

impl Output {
    /// Exit and both outputs, to be compared at once.
    pub fn outcome(&self) -> (Exit, &str, &str) {
        (self.exit, &self.stdout, &self.stderr)
    }

    /// The lines on standard error after the warnings of a run that its lock cannot be renewed, or is renewed again, one of
    /// each for each lock.
    #[track_caller]
    pub fn after_renewal_warnings(&self) -> Vec<&str> {
        let is_warning = |line: &str| {
            let warned = line.split_once(": cannot renew on ").is_some_and(|(lock, _)| lock == "dlock: x");
            let (_, left) = line.split_once("; the command will be stopped in ").unwrap_or_default();
            let again = line.starts_with("dlock: x: renewed on ") && line.ends_with(" again");
            (warned && left.ends_with("s unless that changes")) || again
        };
        self.stderr.lines().skip_while(|line| is_warning(line)).collect()
    }
}

impl Marker {
    /// Waits until nothing carries it: the guard may outlive dlock by a moment.
    #[track_caller]
    pub fn await_end(&self) {
        until(SOON, "the end of both halves of dlock and of the tree", || self.bearers().is_empty());
    }
}

/// A started dlock; it and everything it started is killed when this value is dropped before its end.
pub struct Running {
    child: Child,
    marker: Marker,
    place: Place,
    stdout: PathBuf,
    stderr: PathBuf,
    started: Instant,
    ended: Option<Output>,
}

impl Running {
    pub(super) fn start(
        mut command: Command,
        marker: Marker,
        place: Place,
        streams: [Option<Stdio>; 3],
    ) -> Self {
        let stdout = place.path(&format!("stdout.{}", marker.value()));
        let stderr = place.path(&format!("stderr.{}", marker.value()));
        let file = |path: &PathBuf| {
            Stdio::from(File::options().create(true).append(true).open(path).expect("a file"))
        };
        let [input, output, errors] = streams;
        command.stdin(input.unwrap_or_else(Stdio::null));
        command.stdout(output.unwrap_or_else(|| file(&stdout)));
        command.stderr(errors.unwrap_or_else(|| file(&stderr)));
        let started = Instant::now();
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { child, marker, place, stdout, stderr, started, ended: None }
    }

    /// dlock's own process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// The place it runs in.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The marker that everything it started carries.
    pub fn marker(&self) -> &Marker {
        &self.marker
    }

    /// The writing end of its standard input, if that is a pipe.
    pub fn take_stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("standard input is a pipe")
    }

    /// Its standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Waits until standard output contains `text`, and returns all of it.
    #[track_caller]
    pub fn await_stdout(&mut self, text: &str) -> String {
        self.await_text(SOON, text, Self::stdout)
    }

    /// Waits until standard output contains `text`, for at most `deadline`.
    #[track_caller]
    pub fn await_stdout_within(&mut self, deadline: Duration, text: &str) -> String {
        self.await_text(deadline, text, Self::stdout)
    }

    /// Waits until standard error contains `text`, and returns all of it.
    #[track_caller]
    pub fn await_stderr(&mut self, text: &str) -> String {
        self.await_text(SOON, text, Self::stderr)
    }

    #[track_caller]
    fn await_text(&mut self, deadline: Duration, text: &str, stream: impl Fn(&Self) -> String) -> String {
        eventually(deadline, &format!("{text:?}"), || {
            // The order matters: output written before its end is read after the end was noticed.
            let ended = self.poll().cloned();
            let written = stream(self);
            if written.contains(text) {
                return Some(written);
            }
            if let Some(output) = ended {
                panic!("dlock ended before {text:?}: {output:?}");
            }
            None
        })
    }

    /// Waits until the command, a probe, reports that it is ready.
    #[track_caller]
    pub fn await_ready(&mut self) {
        self.await_stdout("ready\n");
    }

    /// Sends a signal to dlock alone.
    pub fn signal(&self, signal: Signal) {
        process::send(self.pid(), signal);
    }

    /// The guard: the child of dlock.
    #[track_caller]
    pub fn guard(&self) -> i32 {
        eventually(SOON, "the guard", || first_child(self.pid()))
    }

    /// The command: the child of the guard.
    #[track_caller]
    pub fn command(&self) -> i32 {
        let guard = self.guard();
        eventually(SOON, "the command", || first_child(guard))
    }

    /// Checks whether it has ended.
    pub fn poll(&mut self) -> Option<&Output> {
        if self.ended.is_none()
            && let Some(status) = self.child.try_wait().expect("our own child")
        {
            self.ended = Some(Output {
                exit: status.into(),
                stdout: self.stdout(),
                stderr: self.stderr(),
                elapsed: self.started.elapsed(),
                core_dumped: status.core_dumped(),
            });
        }
        self.ended.as_ref()
    }

    /// Waits for its end, for at most `deadline`.
    #[track_caller]
    pub fn wait_within(&mut self, deadline: Duration) -> Output {
        let until = Instant::now() + deadline;
        let pauses = Pauses::begin();
        loop {
            if let Some(output) = self.poll() {
                return output.clone();
            }
            if Instant::now() >= until {
                let tree = process::descendants(self.pid());
                let (stdout, stderr) = (self.stdout(), self.stderr());
                let own = Stat::of(self.pid());
                panic!(
                    "dlock has not ended within {deadline:?}: {own:?}\nits tree: {tree:#?}\nstdout: {stdout}\nstderr: {stderr}"
                );
            }
            self.await_end(until, &pauses);
        }
    }

    /// Waits until it has ended, at most until this moment, or for a pause where the kernel does not tell.
    fn await_end(&self, until: Instant, pauses: &Pauses) {
        let Ok(pidfd) = sys::pidfd_open(self.pid()) else { return pauses.pause() };
        let rest = until.saturating_duration_since(Instant::now());
        let rest = PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], rest);
    }

    /// Waits for its end, for at most the default deadline.
    #[track_caller]
    pub fn wait(&mut self) -> Output {
        self.wait_within(SOON)
    }

    /// Asserts that it has not ended.
    #[track_caller]
    pub fn assert_running(&mut self) {
        if let Some(output) = self.poll() {
            panic!("dlock has ended: {output:?}");
        }
    }
}

/// The living child that was started first: not always the one with the lowest process id, which are given out again.
fn first_child(pid: i32) -> Option<i32> {
    let living = process::children(pid).into_iter().filter(Stat::is_alive);
    living.min_by_key(|stat| stat.start).map(|stat| stat.pid)
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.poll().is_none() {
            let _ = self.child.kill();
            self.marker.kill_all();
            let _ = self.child.wait();
        }
    }
}
