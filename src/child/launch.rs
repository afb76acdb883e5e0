//! Forks dlock's guard and the parked command.
//!
//! All forks happen here, at the very beginning, while the process has one thread and no runtime: the guard gets ready
//! while dlock reads its arguments and asks for the lock. The command is forked from the guard long before the lock is
//! granted and waits, with every signal blocked, on a pipe, first for the program to run, then for its launch message. So
//! it has everything it would have had without dlock (session, terminal, mask, limits), and between the grant and its
//! first instruction there is one exec and no fork.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};

use nix::unistd::ForkResult;

use super::cgroup::{Cgroup, CgroupPath};
use super::descriptors::close_inherited;
use super::guard::Guard;
use super::inherited::Inherited;
use super::parked::park;
use super::program::Program;
use super::protocol::{Channel, Event, FromGuard};
use super::supervisor::Supervisor;
use super::sys;
use super::{signals, terminal::Terminal, tree, wait};
use crate::process_limit::why_no_process;

/// The name of the guard and the parked command in `ps` and `pkill`. It does not contain "dlock": `pkill dlock` must
/// not kill both processes.
const GUARD_NAME: &CStr = c"lock-guard";

/// Why the guard could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// There is no `/dev/null` to replace standard input and output.
    #[error("cannot open /dev/null: {}", why_no_process(.0))]
    Null(io::Error),
    /// No process or descriptor is available.
    #[error("cannot start the command: {}", why_no_process(.0))]
    Process(#[from] io::Error),
}

/// A guard that was forked and knows of no command yet. When this is dropped it exits, and is reaped.
pub struct ForkedGuard {
    channel: Channel,
    launch_pipe: PipeWriter,
    // Dropped after both of the above, whose end the guard waits for.
    process: GuardProcess,
    terminal: Terminal,
    null: File,
    inherited: Inherited,
    strangers: HashSet<i32>,
}

struct GuardProcess(i32);

impl Drop for GuardProcess {
    fn drop(&mut self) {
        wait::reap_exiting(self.0);
    }
}

/// Forks the guard. Must be called before any thread exists, while standard input and output are still the inherited
/// ones. Returns only in dlock.
///
/// In the guard and the parked command every handled signal is blocked.
///
/// # Errors
/// No process or descriptor is available.
pub fn fork_guard(inherited: &Inherited) -> Result<ForkedGuard, ForkError> {
    let terminal = Terminal::open();
    let null = File::options().read(true).write(true).open("/dev/null").map_err(ForkError::Null)?;
    let (channel, theirs) = Channel::pair()?;
    let (launch_pipe_end, launch_pipe) = io::pipe()?;
    let strangers = match wait::has_children() {
        true => tree::children_of(std::process::id() as i32),
        false => HashSet::new(),
    };
    let inherited = inherited.clone();
    let before = signals::block()?;
    match sys::fork() {
        Ok(ForkResult::Parent { child }) => {
            signals::restore(&before);
            let process = GuardProcess(child.as_raw());
            Ok(ForkedGuard { channel, launch_pipe, process, terminal, null, inherited, strangers })
        }
        Ok(ForkResult::Child) => {
            drop((channel, launch_pipe));
            run_guard(inherited, terminal, null, theirs, launch_pipe_end);
            sys::exit_now(0)
        }
        Err(errno) => {
            signals::restore(&before);
            Err(io::Error::from(errno).into())
        }
    }
}

fn run_guard(
    inherited: Inherited,
    terminal: Terminal,
    null: File,
    control: Channel,
    launch_pipe_end: PipeReader,
) {
    inherited.argv.rename_process(GUARD_NAME);
    become_subreaper();
    // Here, while dlock reads its arguments and asks for the lock on another processor.
    let cgroup_path = CgroupPath::choose();
    let cgroup = cgroup_path.as_ref().and_then(|path| Cgroup::create(path).ok());
    let descriptors = inherited.descriptors.clone();
    match park(inherited, &terminal, cgroup.as_ref(), &control, launch_pipe_end) {
        Ok(command) => {
            // Moves the guard out of reach of signals for dlock's process group from the beginning. With a terminal
            // that has to wait until the command's process group is known.
            if !terminal.exists() {
                let _ = nix::unistd::setsid();
            }
            let _ = detach_standard_descriptors(&null, true);
            drop(null);
            close_inherited(&descriptors, &[]);
            Guard::new(control, command, terminal, cgroup_path, cgroup).run();
        }
        Err(error) => {
            let why = ForkError::Process(error).to_string();
            let _ = control.send(&FromGuard::Event(Event::GuardLost(why)), None);
            cgroup.inspect(Cgroup::remove);
        }
    }
}

impl ForkedGuard {
    /// Tells the parked command which program it becomes, and prepares this process for its supervision: from here on
    /// every handled signal is blocked, and standard input and output are `/dev/null`, so that a reader of the command's
    /// output sees its end when the command closes it.
    ///
    /// # Errors
    /// A call that normally always succeeds has failed.
    pub fn supervise(self, program: &Program) -> Result<Supervisor, ForkError> {
        let ForkedGuard { channel, mut launch_pipe, process, terminal, null, inherited, strangers } = self;
        // Without a reader there is no parked command, and the guard has said why.
        let _ = launch_pipe.write_all(&program.to_bytes());
        let _ = signals::block()?;
        become_subreaper();
        detach_standard_descriptors(&null, false)?;
        close_inherited(&inherited.descriptors, &inherited.named);
        let pid = process.0;
        std::mem::forget(process);
        Ok(Supervisor::new(channel, pid, terminal, launch_pipe, inherited.argv, strangers))
    }
}

fn become_subreaper() {
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

/// Redirects standard input and output (in the guard, standard error too) to `/dev/null`.
fn detach_standard_descriptors(null: &File, stderr_too: bool) -> io::Result<()> {
    use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};
    dup2_stdin(null)?;
    dup2_stdout(null)?;
    if stderr_too {
        dup2_stderr(null)?;
    }
    Ok(())
}
