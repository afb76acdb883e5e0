//! Every exit status of dlock, once, and the one way out of the process.

use std::fmt;

/// Wrong option, name, or contradictory durations (`EX_USAGE` of `sysexits(3)`).
pub const USAGE: u8 = 64;
/// The store could not be asked (`EX_UNAVAILABLE`).
pub const UNAVAILABLE: u8 = 69;
/// dlock itself failed (`EX_SOFTWARE`).
pub const INTERNAL: u8 = 70;
/// Somebody else holds the lock (`EX_TEMPFAIL`).
pub const CONTENDED: u8 = 75;
/// The lock was lost while the command ran (`EX_PROTOCOL`).
pub const LOST: u8 = 76;
/// The store refused us (`EX_NOPERM`).
pub const DENIED: u8 = 77;
/// Configuration, alias or backend URL wrong (`EX_CONFIG`).
pub const CONFIG: u8 = 78;
/// `--max-runtime` was reached, as for `timeout(1)`.
pub const MAX_RUNTIME: u8 = 124;
/// The command was found but cannot be executed, as for the shell.
pub const CANNOT_EXECUTE: u8 = 126;
/// The command was not found, as for the shell.
pub const NOT_FOUND: u8 = 127;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Status(u8),
    /// By this signal, so that a parent sees what it would have seen of the command.
    Signal(i32),
}

impl Exit {
    /// The command ran to its end.
    pub const SUCCESS: Exit = Exit::Status(0);
}

/// Why dlock could not do what it was asked to. Each kind is one exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The command line is wrong.
    Usage,
    /// The environment, a configuration file or a backend URL is wrong.
    Config,
    /// The store could not be asked.
    Unavailable,
    /// The lock that the command was to run under is lost.
    Lost,
    /// The store refused us.
    Denied,
    /// dlock itself failed.
    Internal,
    /// The command cannot be executed.
    CannotExecute,
    /// The command was not found.
    NotFound,
}

/// A failure with the one line that people read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which exit status it is.
    pub kind: FailureKind,
    /// What failed, on which lock and store (without secrets), what was found, what to do. Lower case, one line.
    pub message: String,
}

impl Failure {
    /// Builds a failure of the given kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    /// The command line is wrong (64).
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Usage, message)
    }

    /// Environment, configuration or URL is wrong (78).
    pub fn config(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Config, message)
    }

    /// dlock itself failed (70).
    pub fn internal(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Internal, message)
    }

    /// The exit status that tells this failure.
    pub fn status(&self) -> u8 {
        match self.kind {
            FailureKind::Usage => USAGE,
            FailureKind::Config => CONFIG,
            FailureKind::Unavailable => UNAVAILABLE,
            FailureKind::Lost => LOST,
            FailureKind::Denied => DENIED,
            FailureKind::Internal => INTERNAL,
            FailureKind::CannotExecute => CANNOT_EXECUTE,
            FailureKind::NotFound => NOT_FOUND,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
