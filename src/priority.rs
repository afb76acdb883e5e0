//! The priority of dlock's own processes on a busy host: raised while a lock is kept, as before when nothing is urgent any
//! more. That of the command is never changed.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

/// The nice value of a process that a busy host must not delay. If the command forks without a pause, a renewal or a SIGKILL is
/// sent within milliseconds; at -10 it took seconds.
const RAISED: i32 = -20;

/// The time slice of such a process, in ns, the shortest that the kernel accepts (`sched_setattr(2)`, Linux 6.12). It runs
/// soon after it wakes, because it asks for little.
const TIME_SLICE: u64 = 100_000;

/// The nice value before it was raised in this process, if it was.
static BEFORE: AtomicI32 = AtomicI32::new(RAISED);

/// Makes the calling thread run soon after it wakes, on a busy host too. Not by a real-time policy: when the kernel waits
/// in a loop for a process of lower priority, as it does where two processes remove the same entry of `/proc`, both would
/// stand still. Each step that needs a privilege or a newer kernel changes nothing without it.
pub fn raise() {
    // SAFETY: getpriority(2) and setpriority(2) take integers.
    let nice = unsafe {
        let before = libc::getpriority(libc::PRIO_PROCESS, 0);
        BEFORE.store(before, Ordering::Relaxed);
        libc::setpriority(libc::PRIO_PROCESS, 0, RAISED.min(before));
        libc::getpriority(libc::PRIO_PROCESS, 0)
    };
    // SAFETY: `sched_attr` is plain integers, for which zero is "not used".
    let mut attributes: libc::sched_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    attributes.sched_nice = nice;
    attributes.sched_runtime = TIME_SLICE;
    // SAFETY: the kernel reads `size` bytes of `attributes`.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Raises the session that the calling process leads, if it does. Where the kernel schedules sessions as groups (`sched(7)`,
/// "The autogroup feature"), a nice value counts within a session only, and a command whose processes start sessions without a
/// pause takes all CPUs but one part of as many. Nothing else may be in this session: it would be raised too.
pub fn raise_session() {
    // SAFETY: getsid(2) takes an integer.
    let session = unsafe { libc::getsid(0) };
    if session == std::process::id() as i32 {
        // Without a privilege, or where the kernel has no such groups, it fails and changes nothing.
        let _ = std::fs::write("/proc/self/autogroup", RAISED.to_string());
    }
}

/// Gives the calling thread, and what it starts, the nice value that the process had before. The end of a process takes
/// longer than a hand-off, and would otherwise delay the next holder of the lock.
pub fn restore() {
    let before = BEFORE.load(Ordering::Relaxed);
    if before != RAISED {
        // SAFETY: setpriority(2) takes integers.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, before) };
    }
}
