//! Splitting dlock into its two halves, and the parked command.
//!
//! All forks happen here, at the very beginning, while the process has one thread and no runtime. The command is forked
//! from the guarding process long before the lock is ours and waits, with every signal blocked, for the word on a pipe.
//! So it has everything it would have had without dlock (session, terminal, mask, limits), and between the grant and its
//! first instruction there is one exec and no fork.

use std::fs::File;
use std::io::{self, PipeWriter};
use std::time::Duration;

use super::cgroup::{Cgroup, CgroupPath};
use super::descriptors::close_inherited;
use super::guard::Guard;
use super::inherited::Inherited;
use super::parked::park;
use super::program::Program;
use super::protocol::{Channel, FromGuard};
use super::sys::{self, Fork};
use super::{signals, terminal::Terminal};
use crate::process_limit::why_no_process;

/// What `ps` and `pkill` know the guarding process and the parked command by. Without "dlock" in it: `pkill dlock` must
/// not take both halves.
const GUARD_NAME: &str = "lock-guard";

/// What is to be run, and with what.
pub struct Spec {
    /// The command.
    pub program: Program,
    /// What dlock was started with.
    pub inherited: Inherited,
    /// The controlling terminal.
    pub terminal: Terminal,
}

/// Why there are no two halves.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// There is no `/dev/null` to take the place of the command's standard input and output.
    #[error("cannot open /dev/null: {}", why_no_process(.0))]
    Null(io::Error),
    /// No process, or no descriptor, can be had.
    #[error("cannot start the command: {}", why_no_process(.0))]
    Process(#[from] io::Error),
}

/// dlock's half after the split; to be turned into a [`super::Supervisor`] on the runtime.
pub struct Half {
    pub(super) channel: Channel,
    pub(super) guard: i32,
    pub(super) terminal: Terminal,
    pub(super) word: PipeWriter,
    pub(super) place: Option<CgroupPath>,
    pub(super) argv: sys::ArgvMemory,
}

impl Half {
    /// Waits for the guarding process to leave, when there is nothing to be done.
    pub fn dismiss(self) {
        let guard = self.guard;
        // Closing our end is what tells it.
        drop(self);
        if sys::has_ended(guard, LEAVING) {
            let _ = sys::reap(guard);
        }
    }
}

/// How long the guarding process may take to leave.
const LEAVING: Duration = Duration::from_millis(500);

/// Forks the guarding process. Must be called before any thread exists. Returns in dlock's half only.
///
/// From here on every handled signal is blocked in both halves, and standard input and output of both are `/dev/null`:
/// a reader of the command's output sees its end when the command closes it.
///
/// # Errors
/// No process or descriptor can be had.
pub fn split(spec: Spec) -> Result<Half, SplitError> {
    let Spec { program, inherited, terminal } = spec;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(SplitError::Null)?;
    let _ = signals::block()?;
    let place = CgroupPath::choose();
    let (ours, theirs) = Channel::pair()?;
    let (word_end, word) = io::pipe()?;
    match sys::fork_single_threaded()? {
        Fork::Parent(guard) => {
            drop((theirs, word_end));
            become_subreaper();
            detach_standard_descriptors(&null, false)?;
            close_inherited(&inherited.descriptors, &inherited.named);
            let argv = inherited.argv;
            Ok(Half { channel: ours, guard, terminal, word, place, argv })
        }
        Fork::Child => {
            drop((ours, word));
            rename(&inherited);
            become_subreaper();
            let cgroup = place.as_ref().and_then(|place| Cgroup::create(place).ok());
            let inherited_descriptors = inherited.descriptors.clone();
            match park(program, inherited, &terminal, cgroup.as_ref(), &theirs, word_end) {
                Ok(parked) => {
                    // Out of reach of signals for dlock's process group from the beginning. With a terminal that has to
                    // wait until the command's place is known.
                    if !terminal.exists() {
                        let _ = nix::unistd::setsid();
                    }
                    let _ = detach_standard_descriptors(&null, true);
                    drop(null);
                    close_inherited(&inherited_descriptors, &[]);
                    Guard::new(theirs, parked, terminal, place, cgroup).watch();
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::ENOMEM);
                    let _ = theirs.send(&FromGuard::NotForked(errno), None);
                    cgroup.inspect(Cgroup::remove);
                }
            }
            sys::exit_now(0)
        }
    }
}

fn become_subreaper() {
    // Linux 3.4. Elsewhere orphans go to init, and only the command's process group can be stopped.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

/// In the guarding process, and so in the parked command until its exec.
fn rename(inherited: &Inherited) {
    inherited.argv.overwrite(GUARD_NAME);
    #[cfg(target_os = "linux")]
    if let Ok(name) = std::ffi::CString::new(GUARD_NAME) {
        let _ = nix::sys::prctl::set_name(&name);
    }
}

/// Standard input and output (in the guarding process, standard error too) become `/dev/null`.
fn detach_standard_descriptors(null: &File, stderr_too: bool) -> io::Result<()> {
    use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};
    dup2_stdin(null)?;
    dup2_stdout(null)?;
    if stderr_too {
        dup2_stderr(null)?;
    }
    Ok(())
}
