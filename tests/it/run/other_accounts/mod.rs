//! Directories, files and stores that root shares with other accounts: what those plant neither controls root's job nor
//! reveals its secrets.

mod busy_sidecars;
mod core_dumps;
mod forged_identities;
mod group_directories;
mod squatted_files;

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The command prefix that runs a program as an account other than root.
const STRANGER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A place whose directory of locks has the mode of `/tmp`.
fn sticky_place() -> Place {
    let place = Place::new();
    set_mode(&place.path("."), 0o755);
    set_mode(&place.locks(), 0o1777);
    place
}

/// Runs a shell script as the other account, in the directory of locks.
#[track_caller]
fn stranger(place: &Place, text: &str) {
    let mut command = Command::new(STRANGER[0]);
    command.args(&STRANGER[1..]).args(["sh", "-c", text]).current_dir(place.locks());
    assert!(command.status().unwrap().success(), "setpriv: install the Debian package util-linux");
}

/// A run by the other account.
fn by_stranger(run: Dlock) -> Dlock {
    run.wrapped_by(STRANGER)
}
