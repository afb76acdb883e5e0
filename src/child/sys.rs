//! Safe functions around the system calls that no safe wrapper offers in the form needed here. With `readiness.rs` and
//! `name_services.rs`, the only file of the library with `unsafe`.

use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::signal::SigSet;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

/// The result of `fork`.
pub enum Fork {
    /// In the new process.
    Child,
    /// In the caller, with the new process' id.
    Parent(i32),
}

/// Forks. Must be called only while the process has one thread, so that the child may allocate and lock.
///
/// # Errors
/// `EAGAIN` and `ENOMEM`, see `fork(2)`.
pub fn fork_single_threaded() -> io::Result<Fork> {
    // SAFETY: fork(2) takes no argument; that the process has one thread, so that no lock can be held by a thread that
    // does not exist in the child, is the caller's promise, kept by `launch::fork_guard`, which runs before any runtime.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Forks into a cgroup (`clone3(2)`, `CLONE_INTO_CGROUP`, Linux 5.7), under the condition of [`fork_single_threaded`].
/// The C library does not know that the child is a new process, so the child must make only plain calls and exec.
///
/// # Errors
/// `ENOSYS` before Linux 5.3, and any refusal of the cgroup.
#[cfg(target_os = "linux")]
pub fn fork_into_cgroup(cgroup: BorrowedFd<'_>) -> io::Result<Fork> {
    /// From linux/sched.h; the constant of the libc crate is a 32-bit integer, which cannot hold it.
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: `clone_args` is plain integers, for which zero is "not used".
    let mut args: libc::clone_args = unsafe { MaybeUninit::zeroed().assume_init() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: the kernel reads `size_of(args)` bytes of `args`; without CLONE_VM the child has a copy of this stack.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid as i32)),
    }
}

/// Returns whether a descriptor is closed by exec; `None` if it is not open.
pub fn closes_on_exec(fd: RawFd) -> Option<bool> {
    // SAFETY: F_GETFD takes any number and changes nothing.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    (flags != -1).then_some(flags & libc::FD_CLOEXEC != 0)
}

/// Ends the process immediately, without the C library's exit handlers.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit(2) has no precondition.
    unsafe { libc::_exit(status) }
}

/// A state change of a child. Signals are plain numbers: no crate has names for real-time signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
    /// It was stopped by this signal.
    Stopped(i32),
    /// It was continued.
    Continued,
}

/// Returns the next state change of any child, if there is one.
///
/// # Errors
/// `ECHILD` if there is no child at all.
pub fn wait_any() -> io::Result<Option<(i32, Change)>> {
    wait(libc::P_ALL, 0, libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG)
}

/// The limit per call of [`pending_changes`]: while a tree dies, or forks without end, there may always be one more.
pub const MAX_CHANGES: usize = 1024;

/// Returns the pending state changes of all children, up to a limit, so that the caller can continue. Errors as for
/// [`wait_any`].
pub fn pending_changes() -> impl Iterator<Item = io::Result<(i32, Change)>> {
    std::iter::from_fn(|| wait_any().transpose()).take(MAX_CHANGES)
}

/// The relation of a process to the calling one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnChild {
    /// A child that has not ended.
    Alive,
    /// A child that has ended and has not been reaped.
    Dead,
    /// Not a child of the calling process.
    No,
}

/// Returns whether this is a child of the calling process, without using `/proc`. Nothing is reaped.
pub fn own_child(pid: i32) -> OwnChild {
    // SAFETY: siginfo_t is plain data, and `info` outlives the call.
    let (result, ended) = unsafe {
        let mut info: libc::siginfo_t = MaybeUninit::zeroed().assume_init();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let result = libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags);
        (result, info.si_pid())
    };
    match (result, ended) {
        (0, 0) => OwnChild::Alive,
        (0, _) => OwnChild::Dead,
        _ => OwnChild::No,
    }
}

/// Reaps this child; blocks until it has ended.
///
/// # Errors
/// `ECHILD` if it is not a child of this process.
pub fn reap(pid: i32) -> io::Result<()> {
    wait(libc::P_PID, pid, libc::WEXITED).map(drop)
}

/// Returns whether a child ends within that time. Without pidfds, returns true.
pub fn has_ended(pid: i32, within: std::time::Duration) -> bool {
    #[cfg(target_os = "linux")]
    if let Ok(pidfd) = pidfd_open(pid) {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd;
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(within.as_millis()).unwrap_or(PollTimeout::MAX);
        return poll(&mut fds, timeout) != Ok(0);
    }
    let _ = (pid, within);
    true
}

fn wait(idtype: libc::idtype_t, id: i32, flags: i32) -> io::Result<Option<(i32, Change)>> {
    loop {
        // SAFETY: siginfo_t is plain data; zeroed so that si_pid is 0 when nothing has changed (waitid(2), WNOHANG).
        let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: `info` outlives the call.
        if unsafe { libc::waitid(idtype, id as libc::id_t, &mut info, flags) } == -1 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        // SAFETY: waitid fills the SIGCHLD members, or leaves the zeros above.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if pid == 0 {
            return Ok(None);
        }
        let change = match info.si_code {
            libc::CLD_EXITED => Change::Exited(status),
            libc::CLD_KILLED | libc::CLD_DUMPED => Change::Killed(status),
            libc::CLD_STOPPED => Change::Stopped(status),
            libc::CLD_CONTINUED => Change::Continued,
            _ => continue,
        };
        return Ok(Some((pid, change)));
    }
}

/// Sends a signal to a process (`pid > 0`) or a process group (`pid < -1`).
///
/// # Errors
/// `ESRCH` if there is no such process, `EPERM` if it may not be signalled.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    debug_assert!(!(-1..=0).contains(&pid), "never every process, never its own group");
    // SAFETY: kill(2) takes integers.
    check(unsafe { libc::kill(pid, signal) })
}

/// Opens a descriptor of a process, which never refers to another one, however often its pid is reused.
///
/// # Errors
/// `ESRCH` if it is gone, `ENOSYS` before Linux 5.3.
#[cfg(target_os = "linux")]
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    check(fd as i32)?;
    // SAFETY: the kernel just made this descriptor, close-on-exec, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sends a signal to the process behind a [`pidfd_open`] descriptor.
///
/// # Errors
/// `ESRCH` if it is gone, `EPERM` if it may not be signalled.
#[cfg(target_os = "linux")]
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let no_info: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: a null siginfo means "as kill(2) would" (pidfd_send_signal(2)).
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, no_info, 0) } as i32)
}

/// The action of the process on a signal.
#[derive(Clone, Copy)]
pub struct Disposition(libc::sigaction);

impl Disposition {
    /// Reads the disposition.
    ///
    /// # Errors
    /// `EINVAL` for a number that is not a signal.
    pub fn of(signal: i32) -> io::Result<Disposition> {
        let mut action = MaybeUninit::zeroed();
        // SAFETY: a null new action only reads; `action` outlives the call.
        check(unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) })?;
        // SAFETY: filled by the call above.
        Ok(Disposition(unsafe { action.assume_init() }))
    }

    /// Returns whether the signal is ignored.
    pub fn is_ignore(&self) -> bool {
        self.0.sa_sigaction == libc::SIG_IGN
    }

    /// Restores this disposition for the signal.
    pub fn restore(&self, signal: i32) {
        // SAFETY: the action was read from the kernel by `of`, before any handler of this process.
        let _ = unsafe { libc::sigaction(signal, &self.0, std::ptr::null_mut()) };
    }
}

/// Ignores a signal, or gives it its default action.
pub fn set_signal(signal: i32, to: SignalAction) {
    let handler = match to {
        SignalAction::Default => libc::SIG_DFL,
        SignalAction::Ignore => libc::SIG_IGN,
    };
    // SAFETY: SIG_DFL and SIG_IGN run no code of this process.
    let _ = unsafe { libc::signal(signal, handler) };
}

/// See [`set_signal`].
#[derive(Clone, Copy)]
pub enum SignalAction {
    /// `SIG_DFL`
    Default,
    /// `SIG_IGN`
    Ignore,
}

/// Sends the signal to this process with its default action and unblocked; returns if the process survived it (a stop
/// signal, after it was continued; any signal to the init of a PID namespace). The mask is then restored.
pub fn raise_default(signal: i32) {
    let before = Disposition::of(signal);
    set_signal(signal, SignalAction::Default);
    // SAFETY: the sets are initialised by sigemptyset and by the call itself before they are read.
    unsafe {
        let mut only = MaybeUninit::uninit();
        let mut mask = MaybeUninit::uninit();
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), signal);
        libc::kill(libc::getpid(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), mask.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut());
    }
    if let Ok(before) = before {
        before.restore(signal);
    }
}

/// Raises the scheduling priority of the process and locks the pages that it has touched in memory. A real-time policy,
/// because a nice value counts only within an autogroup, and every session is one (`sched(7)`); but not under a limit
/// of real-time CPU time, which kills the process (`RLIMIT_RTTIME`, `getrlimit(2)`). Without the privilege nothing
/// changes.
#[cfg(target_os = "linux")]
pub fn raise_priority() {
    use nix::sys::resource::{Resource, getrlimit};
    let unlimited = matches!(getrlimit(Resource::RLIMIT_RTTIME), Ok((libc::RLIM_INFINITY, _)));
    if !unlimited || set_policy(libc::SCHED_RR, 1).is_err() {
        // SAFETY: setpriority(2) takes integers.
        let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
    // SAFETY: mlockall(2) takes integers. Not MCL_FUTURE: beyond RLIMIT_MEMLOCK every later allocation would fail.
    let _ = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) };
}

/// Reverts the priority of [`raise_priority`].
#[cfg(target_os = "linux")]
pub fn lower_priority() {
    let _ = set_policy(libc::SCHED_OTHER, 0);
}

#[cfg(target_os = "linux")]
fn set_policy(policy: i32, priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: `param` outlives the call.
    check(unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &param) })
}

/// Returns the blocked signals that have been sent to this process.
///
/// # Errors
/// None known.
pub fn pending() -> io::Result<SigSet> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `set` outlives the call.
    check(unsafe { libc::sigpending(set.as_mut_ptr()) })?;
    // SAFETY: sigpending has filled it with a valid set.
    Ok(unsafe { SigSet::from_sigset_t_unchecked(set.assume_init()) })
}

/// Discards the pending instances of these signals, which are blocked.
pub fn discard_pending(signals: &[i32]) {
    #[cfg(target_os = "linux")]
    {
        let mut set = MaybeUninit::uninit();
        let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `set` is initialised by sigemptyset before it is read; a null siginfo is not written; `no_time`
        // outlives the calls.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            while libc::sigtimedwait(set.as_ptr(), std::ptr::null_mut(), &no_time) > 0 {}
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = signals;
}

/// Prevents core dumps of this process from here on: neither to a file nor to a pipe of `core_pattern`.
pub fn forbid_core_dump() {
    #[cfg(target_os = "linux")]
    // SAFETY: prctl(PR_SET_DUMPABLE) takes integers.
    let _ = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` outlives the call.
    let _ = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}

/// The memory that `ps` shows as the command line, so that a process can change it.
#[derive(Clone, Copy)]
pub struct ArgvMemory {
    start: *mut u8,
    len: usize,
}

impl ArgvMemory {
    /// Finds the memory. On Linux the kernel stores the arguments contiguously.
    ///
    /// # Safety
    /// `argc` and `argv` are those that the C start-up code passed to `main`, and nothing reads `argv` after
    /// [`ArgvMemory::overwrite`].
    pub unsafe fn new(argc: i32, argv: *const *const libc::c_char) -> ArgvMemory {
        if argc < 1 {
            return ArgvMemory::none();
        }
        // SAFETY: by the caller's promise argv[0] and argv[argc - 1] are terminated strings.
        unsafe {
            let start = *argv as *mut u8;
            let last = *argv.add(argc as usize - 1);
            let end = (last as *mut u8).add(libc::strlen(last));
            let len = if end > start { end.offset_from(start) as usize } else { 0 };
            ArgvMemory { start, len }
        }
    }

    /// Returns a value without memory.
    pub fn none() -> ArgvMemory {
        ArgvMemory { start: std::ptr::null_mut(), len: 0 }
    }

    /// Replaces the command line by `title`, as far as it fits.
    pub fn overwrite(self, title: &str) {
        if self.start.is_null() || cfg!(not(target_os = "linux")) {
            return;
        }
        let shown = &title.as_bytes()[..title.len().min(self.len)];
        // SAFETY: `start` and `len` span the argument strings, which are writable and, by the promise given to `new`,
        // not read any more.
        unsafe {
            std::ptr::write_bytes(self.start, 0, self.len);
            std::ptr::copy_nonoverlapping(shown.as_ptr(), self.start, shown.len());
        }
    }
}

/// Forks a process that blocks every signal and does nothing else, so that others can see which signals it receives. It
/// dies with the calling thread, and shows `name` instead of the command line at `argv`.
///
/// # Errors
/// `EAGAIN` and `ENOMEM`, see `fork(2)`.
#[cfg(target_os = "linux")]
pub fn fork_witness(name: &std::ffi::CStr, argv: ArgvMemory) -> io::Result<i32> {
    let parent = std::process::id() as i32;
    // SAFETY: fork(2) takes no argument. Other threads may exist, so the child only makes async-signal-safe calls
    // (signal-safety(7)) and system calls that take integers and a string that outlives it; it allocates nothing.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: see above; `u32::MAX` means every descriptor from 0 on (close_range(2)).
            unsafe {
                let mut all = MaybeUninit::uninit();
                libc::sigfillset(all.as_mut_ptr());
                libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                argv.overwrite(name.to_str().unwrap_or_default());
                if libc::getppid() != parent {
                    libc::_exit(0);
                }
                // An open descriptor may be a lock, or may reveal the death of this process to another one.
                if libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, 0u32) == -1 {
                    for fd in 0..LAST_DESCRIPTOR {
                        libc::close(fd);
                    }
                }
                loop {
                    libc::pause();
                }
            }
        }
        pid => Ok(pid),
    }
}

/// Not available on this system.
#[cfg(not(target_os = "linux"))]
pub fn fork_witness(_name: &std::ffi::CStr, _argv: ArgvMemory) -> io::Result<i32> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The last descriptor that is closed, one by one, before Linux 5.9.
#[cfg(target_os = "linux")]
const LAST_DESCRIPTOR: i32 = 4096;

/// Reads from a socket, together with a descriptor that may be attached (`unix(7)`, `SCM_RIGHTS`), close-on-exec.
///
/// # Errors
/// See `recvmsg(2)`.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)> {
    let mut control = nix::cmsg_space!([RawFd; 1]);
    let mut slices = [IoSliceMut::new(bytes)];
    #[cfg(target_os = "linux")]
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = MsgFlags::empty();
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags)?;
    let mut passed = None;
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = message {
            for fd in fds {
                // SAFETY: the kernel has just made this descriptor for us; nothing else knows its number.
                passed = Some(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    Ok((received.bytes, passed))
}

/// Replaces the process by a program; returns only on failure.
pub fn exec(path: &CString, argv: &[CString], envp: &[CString]) -> io::Error {
    match nix::unistd::execve(path, argv, envp) {
        Err(errno) => io::Error::from_raw_os_error(errno as i32),
        Ok(never) => match never {},
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
