//! The inherited state, before Rust's start-up code changes it: that code ignores SIGPIPE and
//! opens /dev/null in place of a closed standard stream.

use nix::sys::signal::Signal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static OPEN: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
static IGNORED: AtomicU64 = AtomicU64::new(0);

// SAFETY: the C library calls the functions in this section before `main`, with arguments that may be ignored.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for (fd, open) in (0..).zip(&OPEN) {
        // SAFETY: F_GETFD only reads.
        open.store(unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1, Ordering::Relaxed);
    }
    for signal in 1..=64 {
        // SAFETY: an all-zero sigaction is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call only reads; the C library refuses it for the signals it reserves.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
        if known && action.sa_sigaction == libc::SIG_IGN {
            IGNORED.fetch_or(bit(signal), Ordering::Relaxed);
        }
    }
}

/// Whether standard input, output and error were open.
pub fn open_streams() -> [bool; 3] {
    [0, 1, 2].map(|fd: usize| OPEN[fd].load(Ordering::Relaxed))
}

/// Whether a signal was ignored.
pub fn was_ignored(signal: Signal) -> bool {
    IGNORED.load(Ordering::Relaxed) & bit(signal as i32) != 0
}

/// Where /proc/PID/status has a signal.
pub fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
