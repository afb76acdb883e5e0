//! Threads for calls that block.

use std::io;

use nix::sys::signal::SigmaskHow;

use crate::signal_mask;

/// Runs this in a thread, which lives on by itself, with a stack of so many bytes.
///
/// # Errors
/// No thread can be started (`RLIMIT_NPROC`, memory).
pub fn spawn(name: &str, stack: usize, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(stack);
    let blocked = signal_mask::current()?;
    let started = signal_mask::keep(|| {
        thread.spawn(move || {
            let _ = signal_mask::change(SigmaskHow::SIG_SETMASK, &blocked);
            work();
        })
    });
    started.map(drop)
}
