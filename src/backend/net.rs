//! What every networked store shares: addresses, TCP and Unix sockets, TLS, client certificates, passwords, and the URL
//! options for them. Of the protocols of the stores it knows only how to tell them apart.
//!
//! Used by every networked store, and by nothing else. What always holds: each wait has an end, and no secret is sent before
//! the checks that its URL asks for.

mod address;
mod credentials;
mod happy_eyeballs;
mod keep_alive;
mod mismatch;
mod protocol;
pub mod reachability;
mod security;
mod stream;
mod tls;

pub use self::address::{Address, distinct, list};
pub use self::credentials::Credentials;
pub use self::happy_eyeballs::{HEAD_START, first_server};
pub use self::keep_alive::outlast;
pub use self::protocol::Protocol;
pub use self::security::Security;
pub use self::stream::{BoundedStream, Socket, connect, open, secure, upgrade};
pub use self::tls::{Session, TlsSettings};

use std::path::PathBuf;

use super::url::UrlError;

/// Returns the path in the value of a URL option.
///
/// # Errors
/// It is not absolute.
fn absolute(option: &str, value: &str) -> Result<PathBuf, UrlError> {
    match value.starts_with('/') {
        true => Ok(PathBuf::from(value)),
        false => Err(UrlError::new(format!("{option}= takes an absolute path"))),
    }
}
