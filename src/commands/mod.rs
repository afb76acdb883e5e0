//! One file for each command; here, what they share: standard output, and the end.

pub mod run;

use std::io::Write;
use std::path::PathBuf;

use crate::child::sys;
use crate::exit::{Exit, Failure};
use crate::report::{Reporter, RunReport, Started, write_report};

/// Prints what was asked for (help, version).
pub fn print(text: &str) -> Exit {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => Exit::SUCCESS,
        Err(_) => Exit::Status(crate::exit::INTERNAL),
    }
}

/// Says why a command line cannot be understood, also in the report, if that can be seen in it.
pub fn not_understood(failure: &Failure, report: Option<PathBuf>, reporter: &Reporter) -> Exit {
    let exit = reporter.failure(failure);
    if let Some(path) = report {
        write_report(&path, &RunReport::new(Started::now(), &[], None).failed(failure), reporter);
    }
    exit
}

/// Ends the process: with the status, or by the signal, without a core dump of ours on top of the command's. The init
/// process of a PID namespace cannot die of a signal; it exits with 128 + n, as a shell would.
pub fn leave(exit: Exit) -> ! {
    match exit {
        Exit::Status(status) => sys::exit_now(i32::from(status)),
        Exit::Signal(signal) => {
            sys::forbid_core_dump();
            sys::raise_default(signal);
            sys::exit_now(128 + signal)
        }
    }
}
