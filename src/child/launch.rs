//! Forks dlock's guard and the parked command.
//!
//! All forks happen here, at the very beginning, while the process has one thread and no runtime. The command is forked
//! from the guard long before the lock is granted and waits, with every signal blocked, for its launch message on a
//! pipe. So it has everything it would have had without dlock (session, terminal, mask, limits), and between the grant
//! and its first instruction there is one exec and no fork.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::File;
use std::io;

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

/// What to run, and in which environment.
pub struct Spec {
    /// The command.
    pub program: Program,
    /// The state that dlock was started with.
    pub inherited: Inherited,
    /// The controlling terminal.
    pub terminal: Terminal,
}

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

/// Forks the guard. Must be called before any thread exists. Returns only in the supervisor.
///
/// From here on every handled signal is blocked in both processes, and standard input and output of both are
/// `/dev/null`: a reader of the command's output sees its end when the command closes it.
///
/// # Errors
/// No process or descriptor is available.
pub fn fork_guard(spec: Spec) -> Result<Supervisor, ForkError> {
    let Spec { program, inherited, terminal } = spec;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(ForkError::Null)?;
    let _ = signals::block()?;
    let (ours, theirs) = Channel::pair()?;
    let (launch_pipe_end, launch_pipe) = io::pipe()?;
    let strangers = match wait::has_children() {
        true => tree::children_of(std::process::id() as i32),
        false => HashSet::new(),
    };
    match sys::fork().map_err(io::Error::from)? {
        ForkResult::Parent { child: guard } => {
            drop((theirs, launch_pipe_end));
            become_subreaper();
            detach_standard_descriptors(&null, false)?;
            close_inherited(&inherited.descriptors, &inherited.named);
            Ok(Supervisor::new(ours, guard.as_raw(), terminal, launch_pipe, inherited.argv, strangers))
        }
        ForkResult::Child => {
            drop((ours, launch_pipe));
            inherited.argv.rename_process(GUARD_NAME);
            become_subreaper();
            // Here, while dlock asks for the lock on another processor.
            let cgroup_path = CgroupPath::choose();
            let cgroup = cgroup_path.as_ref().and_then(|path| Cgroup::create(path).ok());
            let inherited_descriptors = inherited.descriptors.clone();
            match park(program, inherited, &terminal, cgroup.as_ref(), &theirs, launch_pipe_end) {
                Ok(command) => {
                    // Moves the guard out of reach of signals for dlock's process group from the beginning. With a
                    // terminal that has to wait until the command's process group is known.
                    if !terminal.exists() {
                        let _ = nix::unistd::setsid();
                    }
                    let _ = detach_standard_descriptors(&null, true);
                    drop(null);
                    close_inherited(&inherited_descriptors, &[]);
                    Guard::new(theirs, command, terminal, cgroup_path, cgroup).run();
                }
                Err(error) => {
                    let why = ForkError::Process(error).to_string();
                    let _ = theirs.send(&FromGuard::Event(Event::GuardLost(why)), None);
                    cgroup.inspect(Cgroup::remove);
                }
            }
            sys::exit_now(0)
        }
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
