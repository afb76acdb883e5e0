//! What dlock was started with and the command must be started with too, read before anything changes it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd};

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

use super::descriptors::{self, named_in};
use super::sys::{ArgvMemory, Disposition, SignalAction, set_signal};

/// Smaller than any core file, so that none is written. Of all limits this one alone also prevents a dump to a program
/// (`core_pattern` with a pipe): Linux takes it for a dump of that program itself (fs/coredump.c). `PR_SET_DUMPABLE` would
/// give our files in /proc to root, and the other half could not read them.
const NO_CORE_DUMP: rlim_t = 1;

/// The inherited state of the process. Rust's start-up code, which sets SIGPIPE and opens missing descriptors, does not
/// run in dlock; this does the same with a memory.
#[derive(Clone)]
pub struct Inherited {
    pipe: Disposition,
    child: Disposition,
    mask: SigSet,
    /// Soft and hard limit of the size of a core file.
    core: Option<(rlim_t, rlim_t)>,
    /// The memory of the command line.
    pub argv: ArgvMemory,
    /// Inherited descriptors above 2: the command's.
    pub(super) descriptors: Vec<RawFd>,
    /// Those among them that dlock itself is told to use.
    pub(super) named: Vec<RawFd>,
}

impl Inherited {
    /// Reads the state, then makes the process fit to work: SIGPIPE ignored (a broken stderr must not end dlock),
    /// SIGCHLD at its default (an inherited "ignore" would lose exit statuses, `wait(2)`), closed standard descriptors
    /// replaced by close-on-exec ones, so that no descriptor of ours becomes 0, 1 or 2, and the command still finds
    /// them closed; no core dumps, because a dump of dlock contains tokens and passwords.
    ///
    /// # Errors
    /// A standard descriptor is closed, and `/dev/null` cannot be opened.
    pub fn capture(argv: ArgvMemory) -> io::Result<Inherited> {
        let descriptors = descriptors::inherited();
        let pipe = Disposition::of(libc::SIGPIPE)?;
        let child = Disposition::of(libc::SIGCHLD)?;
        let mut mask = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, None, Some(&mut mask))?;
        set_signal(libc::SIGPIPE, SignalAction::Ignore);
        set_signal(libc::SIGCHLD, SignalAction::Default);
        fill_standard_descriptors()?;
        let core = getrlimit(Resource::RLIMIT_CORE).ok();
        if let Some((soft, hard)) = core {
            let _ = setrlimit(Resource::RLIMIT_CORE, soft.min(NO_CORE_DUMP), hard);
        }
        Ok(Inherited { pipe, child, mask, core, argv, descriptors, named: Vec::new() })
    }

    /// Keeps the descriptors that these arguments name for dlock itself; the others are the command's alone.
    pub fn naming_descriptors(mut self, arguments: &[OsString]) -> Inherited {
        self.named = named_in(arguments);
        self
    }

    /// Gives the process its inherited state back, just before exec. The close-on-exec flag does the rest.
    pub fn restore(&self) {
        self.pipe.restore(libc::SIGPIPE);
        self.child.restore(libc::SIGCHLD);
        if let Some((soft, hard)) = self.core {
            let _ = setrlimit(Resource::RLIMIT_CORE, soft, hard);
        }
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.mask), None);
    }
}

fn fill_standard_descriptors() -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
    use nix::sys::stat::Mode;
    for (number, fd) in
        [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()].into_iter().enumerate()
    {
        if fcntl(fd, FcntlArg::F_GETFD).is_err() {
            // open(2) returns the lowest free number, which is this one: the lower ones are open by now.
            let fd = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOCTTY, Mode::empty())?;
            debug_assert_eq!(fd.as_raw_fd(), number as i32);
            let _ = fd.into_raw_fd();
        }
    }
    Ok(())
}
