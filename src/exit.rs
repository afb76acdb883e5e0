//! Every exit status of dlock, and the only exit from the process.

use std::fmt;

/// A wrong option, name, or contradictory durations (`EX_USAGE` of `sysexits(3)`).
pub const USAGE: u8 = 64;
/// The store could not be queried (`EX_UNAVAILABLE`).
pub const UNAVAILABLE: u8 = 69;
/// dlock itself failed (`EX_SOFTWARE`).
pub const INTERNAL: u8 = 70;
/// Another client holds the lock (`EX_TEMPFAIL`).
pub const CONTENDED: u8 = 75;
/// The lock was lost while the command ran (`EX_PROTOCOL`).
pub const LOST: u8 = 76;
/// The store refused access (`EX_NOPERM`).
pub const DENIED: u8 = 77;
/// The configuration, an alias or the backend URL is wrong (`EX_CONFIG`).
pub const CONFIG: u8 = 78;
/// `--max-runtime` was reached; the status of `timeout(1)`.
pub const MAX_RUNTIME: u8 = 124;
/// The command was found but cannot be executed; the status of the shell.
pub const CANNOT_EXECUTE: u8 = 126;
/// The command was not found; the status of the shell.
pub const NOT_FOUND: u8 = 127;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Status(u8),
    /// By this signal, so that the parent sees the same as from the command.
    Signal(i32),
}

impl Exit {
    /// The command ran to its end.
    pub const SUCCESS: Exit = Exit::Status(0);
}

/// Why dlock failed. Each kind has one exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The command line is wrong.
    Usage,
    /// The environment, a configuration file or a backend URL is wrong.
    Config,
    /// The store could not be queried.
    Unavailable,
    /// The lock that the command was to run under is lost.
    Lost,
    /// The store refused access.
    Denied,
    /// dlock itself failed.
    Internal,
    /// The command cannot be executed.
    CannotExecute,
    /// The command was not found.
    NotFound,
}

/// A failure with the one line that is shown to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind, which determines the exit status.
    pub kind: FailureKind,
    /// What failed, on which lock and store (without secrets), what was found, what to do. Lower case, one line.
    pub message: String,
}

impl Failure {
    /// Creates a failure of the given kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    /// Creates a failure of the command line (64).
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Usage, message)
    }

    /// Creates a failure of the environment, configuration or URL (78).
    pub fn config(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Config, message)
    }

    /// Creates a failure of dlock itself (70).
    pub fn internal(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Internal, message)
    }

    /// Returns the exit status of this failure.
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
