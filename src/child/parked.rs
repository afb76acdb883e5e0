//! The parked command: forked long before the lock is ours, it waits, with every signal blocked, for the word on a
//! pipe, and becomes the command by exec.

use std::ffi::CString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::ffi::OsStringExt;

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
    let mut bytes = Vec::new();
    let launch = loop {
        let mut part = [0u8; 4096];
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
    let env = environment(&launch);
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

/// dlock's own environment with what is set and removed for the command; the order of the others is kept.
fn environment(launch: &Launch) -> Vec<CString> {
    let ours = |name: &[u8]| {
        launch.set.iter().any(|(set, _)| set.as_bytes() == name)
            || launch.unset.iter().any(|unset| unset.as_bytes() == name)
    };
    let kept = std::env::vars_os()
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .filter(|(name, _)| !ours(name));
    let set = launch.set.iter().map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()));
    kept.chain(set)
        .filter_map(|(mut entry, value)| {
            entry.push(b'=');
            entry.extend(value);
            CString::new(entry).ok()
        })
        .collect()
}
