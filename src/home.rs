//! Finds the user's home directory, the same from cron and from a terminal.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::name_services;

/// Returns the home directory in `HOME`, if that is an absolute path, else the one of the user database; `None` if the
/// user has none.
pub fn directory(home: Option<&OsStr>) -> Option<PathBuf> {
    let named = home.map(PathBuf::from).filter(|home| home.is_absolute());
    named.or_else(|| {
        let user = name_services::user(nix::unistd::geteuid())?;
        Some(user.dir).filter(|home| home.is_absolute())
    })
}
