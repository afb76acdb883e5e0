//! The parked command: forked long before the lock is granted, it waits, with every signal blocked, for its launch
//! message on a pipe, and becomes the command by exec.

use std::ffi::CString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{ForkResult, Pid, getppid, setpgid};

use super::cgroup::Cgroup;
use super::command::CommandProcess;
use super::inherited::Inherited;
use super::program::Program;
use super::protocol::{Channel, Group, Launch, take_frame};
use super::sys;
use super::terminal::Terminal;
use crate::clock::Moment;

/// Forks the parked command, into its cgroup if there is one.
///
/// # Errors
/// No process or descriptor is available.
pub(super) fn park(
    inherited: Inherited,
    terminal: &Terminal,
    cgroup: Option<&Cgroup>,
    control: &Channel,
    launch_pipe_end: PipeReader,
) -> io::Result<CommandProcess> {
    let (exec_result, exec_result_end) = io::pipe()?;
    let guard = std::process::id() as i32;
    match fork(cgroup)? {
        ForkResult::Parent { child } => Ok(CommandProcess::parked(child.as_raw(), exec_result)),
        ForkResult::Child => {
            // An end that stays open here would hide the death of its other owner.
            close(control);
            drop(exec_result);
            run_parked(inherited, terminal, launch_pipe_end, exec_result_end, guard)
        }
    }
}

/// Forks into the command's cgroup, if there is one: the children of the command then belong to it as well.
fn fork(cgroup: Option<&Cgroup>) -> nix::Result<ForkResult> {
    match cgroup.map(|cgroup| sys::fork_into_cgroup(cgroup.handle())) {
        Some(Ok(fork)) => Ok(fork),
        // ENOSYS, or a cgroup that accepts no process: continue without it.
        Some(Err(_)) | None => sys::fork(),
    }
}

fn close(control: &Channel) {
    let _ = nix::unistd::close(std::os::fd::AsRawFd::as_raw_fd(control));
}

/// Runs the parked process: waits for the program and for the launch message, then becomes the command.
fn run_parked(
    inherited: Inherited,
    terminal: &Terminal,
    mut launch_pipe: PipeReader,
    mut exec_result: PipeWriter,
    guard: i32,
) -> ! {
    // When the guard dies the command dies with it, even if dlock dies in the same instant. A setuid exec clears this
    // (prctl(2), PR_SET_PDEATHSIG).
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    if getppid().as_raw() != guard {
        sys::exit_now(0);
    }
    // Prepare as much as possible before the launch message comes: the pages shared with the guard are copied on the
    // first write, which should not delay the command once the lock is held.
    let own = own_environment();
    let Some((program, launch)) = await_launch(&mut launch_pipe, &mut exec_result) else { sys::exit_now(0) };
    // These were sent to dlock's process group before the command was to run: dlock itself has stopped and been
    // continued.
    let stops = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGCONT];
    sys::discard_pending(&SigSet::from_iter(stops));
    let env = environment(own, &launch);
    // dlock was stopped after it had read the clock: another client may hold the lock by now.
    if launch.not_after.is_some_and(|not_after| Moment::now() >= not_after) {
        report_failure(&mut exec_result, Errno::ETIME);
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
    report_failure(&mut exec_result, errno);
    sys::exit_now(0)
}

/// Waits for the program and the launch message. Returns `None` if they will never come, because the lock was not acquired
/// or dlock is gone, and reports that: to the guard, an exit without a report is that of a command that ran.
fn await_launch(launch_pipe: &mut PipeReader, exec_result: &mut PipeWriter) -> Option<(Program, Launch)> {
    let launch = read_launch(launch_pipe);
    launch.inspect_err(|errno| report_failure(exec_result, *errno)).ok()
}

fn read_launch(launch_pipe: &mut PipeReader) -> Result<(Program, Launch), Errno> {
    let mut bytes = Vec::new();
    let program = read_message(launch_pipe, &mut bytes, Program::take_from)?;
    let launch = read_message(launch_pipe, &mut bytes, take_frame::<Launch>)?;
    Ok((program, launch))
}

/// Reads until `take` finds a whole message at the beginning of what was read.
fn read_message<M>(
    launch_pipe: &mut PipeReader,
    bytes: &mut Vec<u8>,
    take: impl Fn(&mut Vec<u8>) -> Option<Option<M>>,
) -> Result<M, Errno> {
    let mut part = [0u8; 4096];
    loop {
        if let Some(message) = take(bytes) {
            return message.ok_or(Errno::EBADMSG);
        }
        match launch_pipe.read(&mut part) {
            Ok(0) => return Err(Errno::ECANCELED),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }
}

/// Reports to the guard why the command does not run.
fn report_failure(exec_result: &mut PipeWriter, errno: Errno) {
    let _ = exec_result.write_all(&(errno as i32).to_le_bytes());
}

/// Returns dlock's own environment, with room for the variables added for the command.
fn own_environment() -> Vec<CString> {
    let mut own = Vec::with_capacity(std::env::vars_os().count() + MAX_SET);
    own.extend(std::env::vars_os().filter_map(|(name, value)| variable(name.as_bytes(), value.as_bytes())));
    own
}

/// The number of variables that are set for a command.
const MAX_SET: usize = 5;

/// Returns `own` with the variables for the command set and removed; the order of the others is kept.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::protocol::frame;

    /// Returns the launch message that comes from these bytes, and what is reported after them.
    fn launched_by(bytes: &[u8]) -> (Option<(Program, Launch)>, Vec<u8>) {
        let (mut launch_pipe, mut launch) = io::pipe().expect("a pipe");
        let (mut exec_result, mut exec_result_end) = io::pipe().expect("a pipe");
        launch.write_all(bytes).expect("room in the pipe");
        drop(launch);
        let launched = await_launch(&mut launch_pipe, &mut exec_result_end);
        drop(exec_result_end);
        let mut reported = Vec::new();
        exec_result.read_to_end(&mut reported).expect("a readable pipe");
        (launched, reported)
    }

    #[test]
    fn a_command_that_is_not_launched_reports_that_it_did_not_run() {
        let launch = Launch { set: vec![], unset: vec![], group: Group::Shared, not_after: None };
        let program = Program::find(&["/bin/sh".into()], None).expect("a shell");
        let program_alone = program.to_bytes();
        let message = [&program_alone[..], &frame(&launch).expect("a short message")].concat();
        let (launched, reported) = launched_by(&message);
        assert!(launched.is_some() && reported.is_empty(), "{reported:?}");
        let cancelled = libc::ECANCELED.to_le_bytes().to_vec();
        for incomplete in [&[][..], &message[..2], &program_alone, &message[..message.len() - 1]] {
            let (launched, reported) = launched_by(incomplete);
            assert!(launched.is_none(), "{incomplete:?}");
            assert_eq!(reported, cancelled, "{incomplete:?}");
        }
    }
}
