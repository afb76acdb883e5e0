//! Safe functions around the system calls that no safe wrapper offers in the form needed here.

use std::ffi::CStr;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::{ForkResult, Pid};

use crate::signal_mask;

/// Forks. The child of a process with several threads may only make async-signal-safe calls (`signal-safety(7)`): a lock
/// can be held by a thread that does not exist in it.
///
/// # Errors
/// `EAGAIN` and `ENOMEM`, see `fork(2)`.
pub fn fork() -> nix::Result<ForkResult> {
    // SAFETY: that the child keeps to such calls is the caller's promise. `launch`, `parked` and `standby` fork before
    // there is a runtime, or in the guard, which has one thread.
    unsafe { nix::unistd::fork() }
}

/// Forks into a cgroup (`clone3(2)`, `CLONE_INTO_CGROUP`, Linux 5.7). The C library does not know that the child is a new
/// process, so the child must make only plain calls and exec.
///
/// # Errors
/// `ENOSYS` before Linux 5.3; any refusal of the cgroup.
pub fn fork_into_cgroup(cgroup: BorrowedFd<'_>) -> nix::Result<ForkResult> {
    /// From linux/sched.h; the constant of the libc crate is a 32-bit integer, which cannot hold it.
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: `clone_args` is plain integers, for which zero is "not used".
    let mut args: libc::clone_args = unsafe { MaybeUninit::zeroed().assume_init() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: the kernel reads `size_of(args)` bytes of `args`; without CLONE_VM the child has a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    Ok(match Errno::result(pid)? {
        0 => ForkResult::Child,
        pid => ForkResult::Parent { child: Pid::from_raw(pid as i32) },
    })
}

/// Makes all threads allocate from one heap. A further heap costs each run of a thread some calls of the kernel, and
/// dlock's few threads seldom allocate at the same time.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) takes integers; there is one thread yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
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

/// What `waitid(2)` reports about a child.
pub struct ChildInfo {
    /// Its pid.
    pub pid: i32,
    /// What has happened (`CLD_EXITED` ...).
    pub code: i32,
    /// The exit status or the signal.
    pub status: i32,
}

/// Calls `waitid(2)`; `None` if no state has changed (`WNOHANG`). nix would reject the number of a real-time signal.
///
/// # Errors
/// `ECHILD` if there is no such child.
pub fn waitid(idtype: libc::idtype_t, id: i32, flags: i32) -> nix::Result<Option<ChildInfo>> {
    loop {
        // SAFETY: siginfo_t is plain data; zeroed so that si_pid is 0 when nothing has changed.
        let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: `info` outlives the call.
        match Errno::result(unsafe { libc::waitid(idtype, id as libc::id_t, &mut info, flags) }) {
            Err(Errno::EINTR) => continue,
            result => result?,
        };
        // SAFETY: waitid fills the SIGCHLD members, or leaves the zeros above.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        return Ok((pid != 0).then_some(ChildInfo { pid, code: info.si_code, status }));
    }
}

/// Sends a signal to a process (`pid > 0`) or a process group (`pid < -1`).
///
/// # Errors
/// `ESRCH` if there is no such process, `EPERM` if it may not be signalled.
pub fn kill(pid: i32, signal: i32) -> nix::Result<()> {
    debug_assert!(!(-1..=0).contains(&pid), "never every process, never its own group");
    // SAFETY: kill(2) takes integers.
    Errno::result(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Opens a descriptor of a process, which never refers to another one, however often its pid is reused.
///
/// # Errors
/// `ESRCH` if it is gone, `ENOSYS` before Linux 5.3.
pub fn pidfd_open(pid: i32) -> nix::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes integers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel just made this descriptor, close-on-exec, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Returns the number of this process's cgroup of version 2, which is the inode number of its directory where numbers of inodes
/// have 64 bits; `None` before Linux 6.13.
pub fn own_cgroup() -> Option<u64> {
    let own = pidfd_open(std::process::id() as i32).ok()?;
    // SAFETY: `pidfd_info` is plain integers.
    let mut info: libc::pidfd_info = unsafe { MaybeUninit::zeroed().assume_init() };
    info.mask = libc::PIDFD_INFO_CGROUPID.into();
    // SAFETY: the kernel writes no more bytes than the number of the request says, which is the size of `info`.
    Errno::result(unsafe { libc::ioctl(own.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) }).ok()?;
    (info.mask & u64::from(libc::PIDFD_INFO_CGROUPID) != 0).then_some(info.cgroupid)
}

/// Sends a signal to the process behind a [`pidfd_open`] descriptor.
///
/// # Errors
/// `ESRCH` if it is gone, `EPERM` if it may not be signalled.
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> nix::Result<()> {
    let no_info: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: a null siginfo means "as kill(2) would" (pidfd_send_signal(2)).
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, no_info, 0) };
    Errno::result(sent).map(drop)
}

/// The action of the process on a signal.
#[derive(Clone, Copy)]
pub struct Disposition(libc::sigaction);

impl Disposition {
    /// Reads the disposition.
    ///
    /// # Errors
    /// `EINVAL` for a number that is not a signal.
    pub fn of(signal: i32) -> nix::Result<Disposition> {
        let mut action = MaybeUninit::zeroed();
        // SAFETY: a null new action only reads; `action` outlives the call.
        Errno::result(unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) })?;
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

/// Ignores a signal.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN runs no code of this process.
    let _ = unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Gives a signal its default action.
pub fn set_default(signal: i32) {
    // SAFETY: SIG_DFL runs no code of this process.
    let _ = unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Sends the signal to this process with its default action and unblocked; returns if the process survived it (a stop
/// signal, after it was continued; any signal to the init of a PID namespace). The mask is then restored.
pub fn raise_default(signal: i32) {
    let before = Disposition::of(signal);
    set_default(signal);
    let _ = kill(std::process::id() as i32, signal);
    if let Ok(mask) = signal_mask::change(SigmaskHow::SIG_UNBLOCK, &signal_mask::only(signal)) {
        let _ = signal_mask::change(SigmaskHow::SIG_SETMASK, &mask);
    }
    if let Ok(before) = before {
        before.restore(signal);
    }
}

/// Locks the pages that the process has touched in memory, so that they are not paged out. Changes nothing without the
/// privilege for it.
pub fn lock_memory() {
    // SAFETY: mlockall(2) takes integers. Not MCL_FUTURE: beyond RLIMIT_MEMLOCK every later allocation would fail.
    let _ = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) };
}

/// Returns those of these blocked signals that have been sent to this process and not been read yet.
pub fn pending(signals: &[i32]) -> impl Iterator<Item = i32> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `set` outlives the call.
    let is_known = unsafe { libc::sigpending(set.as_mut_ptr()) } == 0;
    // SAFETY: sigpending has filled `set`.
    signals
        .iter()
        .copied()
        .filter(move |signal| is_known && unsafe { libc::sigismember(set.as_ptr(), *signal) } == 1)
}

/// Discards the pending instances of these signals, which are blocked.
pub fn discard_pending(signals: &SigSet) {
    let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a null siginfo is not written; the set and `no_time` outlive the calls.
    while unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &no_time) } > 0 {}
}

/// The memory that `ps` shows as the command line, so that a process can change it.
#[derive(Clone, Copy)]
pub struct ArgvMemory {
    start: *mut u8,
    len: usize,
}

impl ArgvMemory {
    /// Finds the memory: the kernel stores the arguments contiguously.
    ///
    /// # Safety
    /// `argc` and `argv` are those that the C start-up code passed to `main`, and nothing reads `argv` after
    /// [`ArgvMemory::rename_process`].
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

    /// Replaces the command line, as far as it fits, and the name of the process. Async-signal-safe.
    pub fn rename_process(self, name: &CStr) {
        let _ = nix::sys::prctl::set_name(name);
        if self.start.is_null() {
            return;
        }
        let shown = &name.to_bytes()[..name.count_bytes().min(self.len)];
        // SAFETY: `start` and `len` span the argument strings, which are writable and, by the promise given to `new`,
        // not read any more.
        unsafe {
            std::ptr::write_bytes(self.start, 0, self.len);
            std::ptr::copy_nonoverlapping(shown.as_ptr(), self.start, shown.len());
        }
    }
}

/// Closes every descriptor, and sleeps until a signal kills the process.
pub fn sleep_without_descriptors() -> ! {
    /// The last descriptor that is closed, one by one, before Linux 5.9.
    const LAST: i32 = 4096;
    // SAFETY: close_range(2) takes integers; `u32::MAX` means every descriptor from 0 on. Their owners are never dropped,
    // as this does not return.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, 0u32) } == 0;
    for fd in 0..if closed { 0 } else { LAST } {
        // SAFETY: see above.
        let _ = unsafe { libc::close(fd) };
    }
    loop {
        nix::unistd::pause();
    }
}

/// Reads from a socket, together with a descriptor that may be attached (`unix(7)`, `SCM_RIGHTS`), close-on-exec.
///
/// # Errors
/// See `recvmsg(2)`.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)> {
    let mut control = nix::cmsg_space!([RawFd; 1]);
    let mut slices = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags)?;
    let mut passed = None;
    // One that could not be received is reported only after the bytes have been read.
    for message in received.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmRights(fds) = message {
            for fd in fds {
                // SAFETY: the kernel has just made this descriptor for us; nothing else knows its number.
                passed = Some(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    Ok((received.bytes, passed))
}
