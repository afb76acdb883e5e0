//! The signals that a thread blocks, by the calls of the kernel: those of the C library leave out the signals that it uses itself.

use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};

/// Returns the set of these signals: bit N - 1 is signal N, as in the kernel.
fn set_of(bits: u64) -> SigSet {
    let mut set: MaybeUninit<libc::sigset_t> = MaybeUninit::zeroed();
    // SAFETY: the type is plain integers, and begins with the 64 bits of the kernel.
    unsafe {
        set.as_mut_ptr().cast::<u64>().write(bits);
        SigSet::from_sigset_t_unchecked(set.assume_init())
    }
}

/// Returns every signal but 32 and 33, which every C library uses itself. `sigfillset(3)` of musl leaves out 34 as well, which
/// programs send as SIGRTMIN. musl uses it to change the user of a process with threads, which dlock does not.
pub fn all() -> SigSet {
    set_of(!(0b11 << 31))
}

/// Returns the set of one signal.
pub fn only(signal: i32) -> SigSet {
    set_of(1 << (signal - 1))
}

/// Changes the signals that this thread blocks; returns those that it blocked before.
///
/// # Errors
/// None known.
pub fn change(how: SigmaskHow, signals: &SigSet) -> nix::Result<SigSet> {
    let new: *const libc::sigset_t = signals.as_ref();
    let mut before = 0u64;
    let size = size_of::<u64>();
    // SAFETY: the kernel reads and writes `size` bytes; a `sigset_t` has as many, and more.
    let done = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how as i32, new, &raw mut before, size) };
    Errno::result(done).map(|_| set_of(before))
}

/// Returns the signals that this thread blocks.
///
/// # Errors
/// None known.
pub fn current() -> nix::Result<SigSet> {
    change(SigmaskHow::SIG_BLOCK, &SigSet::empty())
}

/// The signals that a thread blocked before [`keep`]; none where the C library leaves them alone.
#[derive(Clone, Copy)]
pub struct Kept(Option<SigSet>);

impl Kept {
    /// Blocks them, and no others, in the calling thread.
    pub fn restore(self) {
        if let Some(blocked) = self.0 {
            let _ = change(SigmaskHow::SIG_SETMASK, &blocked);
        }
    }
}

/// Does something after which the thread blocks the same signals as before. musl unblocks some when it starts its first thread
/// and when it starts a program: 34, which ends dlock if it arrives in these microseconds.
pub fn keep<T>(act: impl FnOnce(Kept) -> T) -> T {
    let kept = Kept(if cfg!(target_env = "musl") { current().ok() } else { None });
    let done = act(kept);
    kept.restore();
    done
}
