//! Calls the library and exits with its result.
//!
//! Rust's own start-up code is left out: it sets SIGPIPE to "ignore" and opens missing standard descriptors before
//! their state can be read, and the command must be started with what dlock was started with.

#![no_main]

use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;

use dlock::child::Inherited;
use dlock::child::sys::ArgvMemory;
use dlock::exit::FailureKind;

/// Of the released binary.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The C entry point.
// SAFETY: the C start-up code calls `main` once, with this signature; no other symbol of that name exists.
#[unsafe(no_mangle)]
unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: the C start-up code passes `argc` terminated strings.
    let arguments: Vec<OsString> = (0..argc.max(0) as usize)
        .map(|index| unsafe { CStr::from_ptr(*argv.add(index)) })
        .map(|argument| OsString::from_vec(argument.to_bytes().to_vec()))
        .collect();
    // SAFETY: `argc` and `argv` come from the C start-up code, and the arguments have just been copied.
    let memory = unsafe { ArgvMemory::new(argc, argv) };
    dlock::child::sys::share_heap();
    exit_on_panic();
    let exit = match Inherited::capture(memory) {
        Ok(inherited) => dlock::program(arguments, inherited),
        Err(error) => dlock::cannot_begin(&error),
    };
    dlock::leave(exit)
}

/// Makes a panic of any thread end the process at once, after its message, with the status of an internal error. The guard
/// then kills the command. Nothing unwinds, so that the released program needs no code for it (`panic = "abort"`).
fn exit_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        dlock::leave(FailureKind::Internal.into())
    }));
}
