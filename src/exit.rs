//! Every exit status of dlock.

/// Another client holds the lock (`EX_TEMPFAIL` of `sysexits(3)`); `--conflict-exit-code` replaces it.
pub const CONTENDED: u8 = 75;

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
    /// Another client holds the lock.
    pub const CONTENDED: Exit = Exit::Status(CONTENDED);
    /// `status --overdue`: beyond the first limit; the status of a Nagios plug-in for WARNING.
    pub const OVERDUE: Exit = Exit::Status(1);
    /// `status --overdue`: beyond the second limit; CRITICAL.
    pub const LONG_OVERDUE: Exit = Exit::Status(2);
    /// `status --overdue --nagios`: the locks could not be checked; UNKNOWN.
    pub const UNKNOWN: Exit = Exit::Status(3);
    /// `--max-runtime` was reached; the status of `timeout(1)`.
    pub const MAX_RUNTIME: Exit = Exit::Status(124);
}

/// Why dlock failed. Each kind has one exit status, mostly of `sysexits(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FailureKind {
    /// A wrong option, name, or contradictory durations (`EX_USAGE`).
    Usage = 64,
    /// The store could not be queried (`EX_UNAVAILABLE`).
    Unavailable = 69,
    /// dlock itself failed (`EX_SOFTWARE`).
    Internal = 70,
    /// The lock that the command was to run under, or ran under, is lost (`EX_PROTOCOL`).
    Lost = 76,
    /// The store refused access (`EX_NOPERM`).
    Denied = 77,
    /// The environment, a configuration file or a backend URL is wrong (`EX_CONFIG`).
    Config = 78,
    /// The command was found but cannot be executed; the status of the shell.
    CannotExecute = 126,
    /// The command was not found; the status of the shell.
    NotFound = 127,
}

impl From<FailureKind> for Exit {
    fn from(kind: FailureKind) -> Exit {
        Exit::Status(kind as u8)
    }
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
}
