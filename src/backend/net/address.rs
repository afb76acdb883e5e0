//! The addresses of servers.

use std::fmt;
use std::path::PathBuf;

use crate::backend::url::{Host, UrlError};

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP port.
    Tcp(Host),
    /// A Unix socket on this host.
    Socket(PathBuf),
}

impl Address {
    /// Returns the address of a host in a URL; `port` is used if the URL has none.
    pub fn of(host: &Host, port: u16) -> Address {
        Address::Tcp(Host { port: Some(host.port.unwrap_or(port)), ..host.clone() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host) => host.fmt(f),
            Address::Socket(path) => path.display().fmt(f),
        }
    }
}

/// Collects the hosts of a URL.
///
/// # Errors
/// One of them is named twice.
pub fn distinct<T: PartialEq + fmt::Display>(all: impl Iterator<Item = T>) -> Result<Vec<T>, UrlError> {
    let mut seen = Vec::new();
    for one in all {
        if seen.contains(&one) {
            return Err(UrlError::new(format!("{one} is named twice")));
        }
        seen.push(one);
    }
    Ok(seen)
}

/// Formats hosts in the form in which a URL lists them.
pub fn list<T: fmt::Display>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}
