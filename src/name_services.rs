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
    (host, port).to_socket_addrs().map(Iterator::collect)
}
