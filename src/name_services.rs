//! Look-ups of users and hosts, and of the home directory of this user.

use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use nix::unistd::{Uid, User};

/// Returns the entry of a user in the user database; `None` if it has none.
pub fn user(uid: Uid) -> Option<User> {
    User::from_uid(uid).ok().flatten()
}

/// Returns the home directory in `HOME`, if that is an absolute path, else the one of the user database, the same from
/// cron and from a terminal; `None` if the user has none.
pub fn home(home: Option<&OsStr>) -> Option<PathBuf> {
    let named = home.map(PathBuf::from).filter(|home| home.is_absolute());
    named.or_else(|| {
        let user = user(nix::unistd::geteuid())?;
        Some(user.dir).filter(|home| home.is_absolute())
    })
}

/// Returns the addresses of a host. Blocks as long as its name services do.
///
/// # Errors
/// The host is not known, or no name service answers.
pub fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs().map(Iterator::collect);
    found.map_err(|error| in_other_words(&error).unwrap_or(error))
}

/// Returns the error as glibc words it, if it is one of musl, whose words need an explanation: "Try again" (`getaddrinfo(3)`,
/// `EAI_AGAIN`).
fn in_other_words(error: &io::Error) -> Option<io::Error> {
    const WORDS: &[(&str, &str)] = &[
        ("Name does not resolve", "Name or service not known"),
        ("Try again", "Temporary failure in name resolution"),
        ("Name has no usable address", "No address associated with hostname"),
    ];
    let text = error.to_string();
    let (of_musl, of_glibc) = WORDS.iter().find(|(of_musl, _)| text.ends_with(of_musl))?;
    Some(io::Error::new(error.kind(), text.replace(of_musl, of_glibc)))
}
