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
    if !cfg!(target_env = "musl") {
        return thread.spawn(work).map(drop);
    }
    // With the first thread, musl unblocks signals that it uses itself, among them one that programs send.
    let blocked = signal_mask::current()?;
    let block_again = move || {
        let _ = signal_mask::change(SigmaskHow::SIG_SETMASK, &blocked);
    };
    let started = thread.spawn(move || {
        block_again();
        work();
    });
    block_again();
    started.map(drop)
}
