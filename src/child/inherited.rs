//! The state that dlock was started with and the command must be started with, captured before anything changes it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow};

use super::descriptors::{self, named_in};
use super::sys::{self, ArgvMemory, Disposition};
use crate::signal_mask;

/// Smaller than any core file, so that none is written. This is the only limit that also prevents a dump to a program
/// (`core_pattern` with a pipe): Linux treats it as a dump of that program itself (fs/coredump.c). `PR_SET_DUMPABLE`
/// would give dlock's files in /proc to root, and dlock and its guard could not read each other's.
const NO_CORE_DUMP: rlim_t = 1;

/// The stack that dlock needs, with room to spare; the size below which it requests more; and the size that it
/// requests.
const MIN_STACK: rlim_t = 640 << 10;
const SMALL_STACK: rlim_t = 1 << 20;
const REQUESTED_STACK: rlim_t = 8 << 20;

/// Why dlock cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// A call that normally always succeeds has failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// A standard descriptor is closed, and cannot be replaced.
    #[error("cannot open /dev/null: {}", errno.desc().to_lowercase())]
    NoNull {
        /// The reason.
        errno: Errno,
    },
    /// The memory limit is too low.
    #[error("the limit on memory is too low: see ulimit -v")]
    NoMemory,
    /// The hard limit of the stack is too low.
    #[error("the stack is limited to {} KiB, and 640 are needed: see ulimit -s", limit >> 10)]
    NoStack {
        /// The limit, in bytes.
        limit: rlim_t,
    },
}

/// The inherited state of the process. Rust's start-up code, which sets SIGPIPE and opens missing descriptors, does not
/// run in dlock; this does the same but can undo it.
#[derive(Clone)]
pub struct Inherited {
    pipe: Disposition,
    child: Disposition,
    mask: SigSet,
    /// Soft and hard limit of the core file size.
    core: Option<(rlim_t, rlim_t)>,
    /// Soft and hard limit of the stack size, if dlock has raised it.
    stack: Option<(rlim_t, rlim_t)>,
    /// The memory of the command line.
    pub argv: ArgvMemory,
    /// Inherited descriptors above 2, which belong to the command.
    pub(super) descriptors: Vec<RawFd>,
    /// Those of them that dlock itself needs.
    pub(super) named: Vec<RawFd>,
}

impl Inherited {
    /// Captures the state, then prepares the process: SIGPIPE ignored (a broken stderr must not end dlock), SIGCHLD at
    /// its default (an inherited "ignore" would lose exit statuses, `wait(2)`), closed standard descriptors replaced by
    /// close-on-exec ones, so that no descriptor of dlock becomes 0, 1 or 2, and the command still finds them closed;
    /// no core dumps, because a dump of dlock contains tokens and passwords.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn capture(argv: ArgvMemory) -> Result<Inherited, BeginError> {
        let stack = raise_stack()?;
        check_memory_limit()?;
        let descriptors = descriptors::inherited();
        let pipe = Disposition::of(libc::SIGPIPE).map_err(io::Error::from)?;
        let child = Disposition::of(libc::SIGCHLD).map_err(io::Error::from)?;
        let mask = signal_mask::current().map_err(io::Error::from)?;
        sys::ignore(libc::SIGPIPE);
        sys::set_default(libc::SIGCHLD);
        fill_standard_descriptors().map_err(|errno| BeginError::NoNull { errno })?;
        let core = getrlimit(Resource::RLIMIT_CORE).ok();
        if let Some((soft, hard)) = core {
            let _ = setrlimit(Resource::RLIMIT_CORE, soft.min(NO_CORE_DUMP), hard);
        }
        Ok(Inherited { pipe, child, mask, core, stack, argv, descriptors, named: Vec::new() })
    }

    /// Keeps the descriptors named in these arguments open for dlock itself; the others belong to the command alone.
    pub fn naming_descriptors(mut self, arguments: &[OsString]) -> Inherited {
        self.named = named_in(arguments);
        self
    }

    /// Restores the inherited state of the process, just before exec. The close-on-exec flag does the rest.
    pub fn restore(&self) {
        self.pipe.restore(libc::SIGPIPE);
        self.child.restore(libc::SIGCHLD);
        for (resource, limits) in [(Resource::RLIMIT_CORE, self.core), (Resource::RLIMIT_STACK, self.stack)] {
            if let Some((soft, hard)) = limits {
                let _ = setrlimit(resource, soft, hard);
            }
        }
        let _ = signal_mask::change(SigmaskHow::SIG_SETMASK, &self.mask);
    }
}

/// Raises a stack limit that is too low for dlock; returns the previous limits. A stack that cannot grow kills the
/// process without a message. The limit is checked whenever the stack grows, so raising it now helps (`setrlimit(2)`).
fn raise_stack() -> Result<Option<(rlim_t, rlim_t)>, BeginError> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_STACK) else { return Ok(None) };
    if soft >= SMALL_STACK {
        return Ok(None);
    }
    let _ = setrlimit(Resource::RLIMIT_STACK, REQUESTED_STACK, hard.max(REQUESTED_STACK))
        .or_else(|_| setrlimit(Resource::RLIMIT_STACK, hard.min(REQUESTED_STACK), hard));
    match getrlimit(Resource::RLIMIT_STACK) {
        Ok((limit, _)) if limit < MIN_STACK => Err(BeginError::NoStack { limit }),
        _ => Ok(Some((soft, hard))),
    }
}

/// Tries now, before any lock is held, whether the memory limit leaves enough room. Otherwise the stack might fail to
/// grow in the middle of a run, or the C library might find no room for a thread, and both end a process without an
/// error that can be handled.
fn check_memory_limit() -> Result<(), BeginError> {
    let is_limited = |(soft, _)| soft != libc::RLIM_INFINITY;
    if !getrlimit(Resource::RLIMIT_AS).is_ok_and(is_limited) {
        return Ok(());
    }
    use_stack(MIN_STACK as usize / 2 / PAGE);
    let mut room = Vec::<u8>::new();
    room.try_reserve_exact(ROOM).map_err(|_| BeginError::NoMemory)?;
    std::hint::black_box(&room);
    Ok(())
}

/// Two threads with their stacks, and the other needs of a run.
const ROOM: usize = 8 << 20;

const PAGE: usize = 4096;

#[inline(never)]
fn use_stack(pages: usize) {
    let page = [0u8; PAGE];
    std::hint::black_box(&page);
    if pages > 0 {
        use_stack(pages - 1);
    }
    std::hint::black_box(&page);
}

const STDOUT: usize = 1;

fn fill_standard_descriptors() -> Result<(), Errno> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
    use nix::sys::stat::Mode;
    for (number, fd) in
        [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()].into_iter().enumerate()
    {
        if fcntl(fd, FcntlArg::F_GETFD).is_err() {
            // Output that was asked for must not seem to be written: as on a closed descriptor, a write is an error.
            let access = if number == STDOUT { OFlag::O_RDONLY } else { OFlag::O_RDWR };
            // open(2) returns the lowest free number, which is this one: the lower ones are open by now.
            let fd = open("/dev/null", access | OFlag::O_CLOEXEC | OFlag::O_NOCTTY, Mode::empty())?;
            debug_assert_eq!(fd.as_raw_fd(), number as i32);
            let _ = fd.into_raw_fd();
        }
    }
    Ok(())
}
