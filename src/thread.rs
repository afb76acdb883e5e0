//! Threads for calls that block.

use std::io;

use crate::signal_mask;

/// Runs this in a thread, which lives on by itself, with a stack of so many bytes.
///
/// # Errors
/// No thread can be started (`RLIMIT_NPROC`, memory).
pub fn spawn(name: &str, stack: usize, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(stack);
    let started = signal_mask::keep(|kept| {
        thread.spawn(move || {
            kept.restore();
            work();
        })
    });
    started.map(drop)
}
