//! Look-ups of users and hosts, and of the home directory of this user.

use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Once;

use nix::unistd::{Uid, User};

/// Returns the entry of a user in the user database; `None` if it has none.
pub fn user(uid: Uid) -> Option<User> {
    use_built_in();
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
    use_built_in();
    (host, port).to_socket_addrs().map(Iterator::collect)
}

/// Limits look-ups to what is built into a statically linked C library: `/etc/passwd` for users, `/etc/hosts` and DNS
/// for hosts.
///
/// A static glibc, too, reads `/etc/nsswitch.conf`, and loads the modules that are named there (`systemd`, `sss`,
/// `resolve`, `mdns4_minimal`) together with the C library of the host, into a process that already has one. If their
/// versions differ, the process dies at the first such look-up: of a division by zero when built with glibc 2.36 and
/// run with 2.41. In other builds nothing is done.
fn use_built_in() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
        {
            use std::ffi::{c_char, c_int};

            unsafe extern "C" {
                /// From `nss.h`: uses these services, in this order, for one database, regardless of nsswitch.conf(5).
                fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
            }
            for (database, services) in [(c"passwd", c"files"), (c"hosts", c"files dns")] {
                // SAFETY: two terminated strings, of which glibc keeps copies. It fails only without memory.
                unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
            }
        }
    });
}
