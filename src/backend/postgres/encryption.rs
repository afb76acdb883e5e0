//! `sslmode`, and the other variables of libpq that determine how a connection is secured (PostgreSQL manual, "Environment
//! Variables"): a user who has set one of them relies on it.

use crate::backend::net::TlsSettings;
use crate::backend::options::Options;
use crate::backend::url::{Environment, UrlError};

/// Asks the server for TLS, its agreement, and its refusal (PostgreSQL manual, "Message Formats", SSLRequest).
const SSL_REQUEST: (&[u8], u8) = (&[0, 0, 0, 8, 4, 210, 22, 47], b'S');
const DECLINED: u8 = b'N';

/// When a connection over a network is encrypted: `sslmode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SslMode {
    /// Never.
    Disable,
    /// If the server can do it; its identity is not verified.
    #[default]
    Prefer,
    /// Always; its identity is not verified.
    Require,
    /// Always, and only with a server whose certificate is of the given authority.
    VerifyCa,
    /// Always, and only with a server that proves its identity.
    VerifyFull,
}

impl SslMode {
    /// By the names that the option has for them.
    pub(super) const ALL: [(&str, SslMode); 5] = [
        ("disable", SslMode::Disable),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ];

    /// Returns the mode that the options name or imply, as in libpq.
    ///
    /// # Errors
    /// An option for a server that is verified has no effect, or demands another mode.
    pub(super) fn of(options: &Options) -> Result<SslMode, UrlError> {
        let (mode, has) = (options.word("sslmode", &SslMode::ALL), |name| options.given(name).is_some());
        let mode = match mode {
            SslMode::VerifyFull => mode,
            _ if options.given("sslrootcert") == Some("system") => match has("sslmode") {
                true => {
                    let text = "sslrootcert=system needs sslmode=verify-full";
                    return Err(UrlError::new(text).about("sslrootcert"));
                }
                false => SslMode::VerifyFull,
            },
            SslMode::Require if has("ca_file") && !has("insecure") => SslMode::VerifyCa,
            SslMode::Prefer if has("insecure") && !has("sslmode") => SslMode::Require,
            _ => mode,
        };
        if mode == SslMode::Prefer {
            options.reject(&["ca_file", "server_name"], |name| {
                format!("'{name}' needs a server that is verified: add sslmode=verify-full")
            })?;
        }
        Ok(mode)
    }

    /// Returns whether the server has to prove its identity.
    pub(super) fn is_verified(self) -> bool {
        matches!(self, SslMode::VerifyCa | SslMode::VerifyFull)
    }

    /// Returns the settings for TLS; `None` without.
    pub(super) fn settings(self) -> Option<TlsSettings> {
        (self != SslMode::Disable).then(|| TlsSettings {
            insecure: !self.is_verified(),
            any_name: self == SslMode::VerifyCa,
            request: Some(SSL_REQUEST),
            declined: (self == SslMode::Prefer).then_some(DECLINED),
            ..TlsSettings::default()
        })
    }
}

/// The variables for options of a URL, which come first. Each option has a name of libpq and one of dlock.
const VARIABLES: [(&str, &str, &str); 6] = [
    ("PGSSLMODE", "sslmode", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert", "ca_file"),
    ("PGSSLCERT", "sslcert", "cert_file"),
    ("PGSSLKEY", "sslkey", "key_file"),
    ("PGREQUIREAUTH", "require_auth", "require_auth"),
    ("PGCHANNELBINDING", "channel_binding", "channel_binding"),
];

/// The variables that dlock does not support, each with the values that are accepted because they change nothing.
const REFUSED: [(&str, &[&str]); 8] = [
    ("PGSSLCRL", &[]),
    ("PGSSLCRLDIR", &[]),
    ("PGSSLCERTMODE", &["allow"]),
    ("PGSSLNEGOTIATION", &["postgres"]),
    ("PGSSLMINPROTOCOLVERSION", &["TLSv1", "TLSv1.1", "TLSv1.2"]),
    ("PGSSLMAXPROTOCOLVERSION", &["TLSv1.3"]),
    ("PGGSSENCMODE", &["disable", "prefer"]),
    ("PGREQUIREPEER", &[]),
];

/// Returns the options that the environment sets, each with its variable, where the URL has none of their own.
///
/// # Errors
/// A variable is set that dlock cannot follow.
pub(super) fn of_environment(
    query: &[(String, String)],
    environment: Environment<'_>,
) -> Result<Vec<(&'static str, &'static str, String)>, UrlError> {
    let value = |variable: &str| environment(variable).filter(|value| !value.is_empty());
    for (variable, harmless) in REFUSED {
        if let Some(value) = value(variable).filter(|value| !harmless.contains(&&**value)) {
            return Err(UrlError::new(format!("{variable}={value} is not supported: unset it for dlock")));
        }
    }
    let has = |name: &str| query.iter().any(|(option, _)| option == name);
    let unset = VARIABLES.iter().filter(|(_, theirs, ours)| !has(theirs) && !has(ours));
    let mut set: Vec<_> =
        unset.filter_map(|(variable, option, _)| Some((*variable, *option, value(variable)?))).collect();
    // The predecessor of PGSSLMODE.
    let is_required = value("PGREQUIRESSL").is_some_and(|value| value.starts_with('1'));
    if is_required && !has("sslmode") && !has("insecure") && value("PGSSLMODE").is_none() {
        set.push(("PGREQUIRESSL", "sslmode", "require".to_owned()));
    }
    Ok(set)
}
