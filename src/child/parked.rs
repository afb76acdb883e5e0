//! The parked command: forked long before the lock is ours, it waits, with every signal blocked, for the word on a
//! pipe, and becomes the command by exec.

use std::ffi::CString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::unistd::{Pid, getppid, setpgid};

use super::cgroup::Cgroup;
use super::inherited::Inherited;
use super::program::Program;
use super::protocol::{Channel, Group, Launch, take_frame};
use super::sys::{self, Fork};
use super::terminal::Terminal;
use crate::clock::Moment;

/// The command's process before exec, as the guarding process sees it.
pub(super) struct Parked {
    pub(super) pid: i32,
    verdict: PipeReader,
}

impl Parked {
    /// After the process has ended: the errno of its exec, if that failed.
    pub(super) fn exec_error(&mut self) -> Option<i32> {
        let mut errno = [0u8; 4];
        self.verdict.read_exact(&mut errno).ok().map(|()| i32::from_le_bytes(errno))
    }
}

/// Forks the parked command, into its cgroup where there is one.
///
/// # Errors
/// No process or descriptor can be had.
pub(super) fn park(
    program: Program,
    inherited: Inherited,
    terminal: &Terminal,
    cgroup: Option<&Cgroup>,
    control: &Channel,
    word_end: PipeReader,
) -> io::Result<Parked> {
    let (verdict, verdict_end) = io::pipe()?;
    let guard = std::process::id() as i32;
    match fork(cgroup)? {
        Fork::Parent(pid) => Ok(Parked { pid, verdict }),
        Fork::Child => {
            // Each end that stays open here would hide the death of its other owner.
            close(control);
            drop(verdict);
            run_parked(program, inherited, terminal, word_end, verdict_end, guard)
        }
    }
}

/// Into the command's cgroup, where there is one: what the command forks is born there too.
#[cfg(target_os = "linux")]
fn fork(cgroup: Option<&Cgroup>) -> io::Result<Fork> {
    match cgroup.map(|cgroup| sys::fork_into_cgroup(cgroup.handle())) {
        Some(Ok(fork)) => Ok(fork),
        // ENOSYS, or a cgroup that takes no process: without it, then.
        Some(Err(_)) | None => sys::fork_single_threaded(),
    }
}

#[cfg(not(target_os = "linux"))]
fn fork(_cgroup: Option<&Cgroup>) -> io::Result<Fork> {
    sys::fork_single_threaded()
}

fn close(control: &Channel) {
    let _ = nix::unistd::close(std::os::fd::AsRawFd::as_raw_fd(control));
}

/// The parked process: waits for the word, then becomes the command.
fn run_parked(
    program: Program,
    inherited: Inherited,
    terminal: &Terminal,
    mut word: PipeReader,
    mut verdict: PipeWriter,
    guard: i32,
) -> ! {
    // When the guarding process dies the command dies with it, even if dlock dies in the same instant. Lost over a
    // setuid exec (prctl(2), PR_SET_PDEATHSIG).
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    if getppid().as_raw() != guard {
        sys::exit_now(0);
    }
    // What can be done before the word is: the pages that this process shares with the guarding one are copied at their
    // first change, and nobody should wait for that once the lock is ours.
    let own = own_environment();
    let mut bytes = Vec::new();
    let mut part = [0u8; 4096];
    let launch = loop {
        match word.read(&mut part) {
            // Nobody will ever say the word: the lock was not to be had, or dlock is gone.
            Ok(0) => sys::exit_now(0),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => sys::exit_now(0),
        }
        if let Some(launch) = take_frame::<Launch>(&mut bytes) {
            break launch.unwrap_or_else(|| sys::exit_now(0));
        }
    };
    // Sent to dlock's process group before the command was to run: dlock has stopped and gone on instead.
    sys::discard_pending(&[libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT]);
    let env = environment(own, &launch);
    // dlock was stopped after it had looked at the clock: the lease may be somebody else's by now.
    if launch.not_after.is_some_and(|not_after| Moment::now().since_boot() >= not_after) {
        let _ = verdict.write_all(&libc::ETIME.to_le_bytes());
        sys::exit_now(0)
    }
    if let Group::Own { foreground } = launch.group {
        let own = Pid::from_raw(0);
        let _ = setpgid(own, own);
        if foreground {
            terminal.give_to(std::process::id() as i32);
        }
    }
    inherited.restore();
    let errno: Errno = program.exec(&env);
    let _ = verdict.write_all(&(errno as i32).to_le_bytes());
    sys::exit_now(0)
}

/// dlock's own environment, with room for what the command gets on top of it.
fn own_environment() -> Vec<CString> {
    let mut own = Vec::with_capacity(std::env::vars_os().count() + MOST_SET);
    own.extend(std::env::vars_os().filter_map(|(name, value)| variable(name.as_bytes(), value.as_bytes())));
    own
}

/// How many variables are set for a command.
const MOST_SET: usize = 5;

/// `own` with what is set and removed for the command; the order of the others is kept.
fn environment(mut own: Vec<CString>, launch: &Launch) -> Vec<CString> {
    let changed: Vec<&str> =
        launch.set.iter().map(|(name, _)| name).chain(&launch.unset).map(String::as_str).collect();
    own.retain(|entry| {
        let is = |name: &&str| {
            entry.as_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
        };
        !changed.iter().any(is)
    });
    own.extend(launch.set.iter().filter_map(|(name, value)| variable(name.as_bytes(), value.as_bytes())));
    own
}

fn variable(name: &[u8], value: &[u8]) -> Option<CString> {
    CString::new([name, b"=", value].concat()).ok()
}
