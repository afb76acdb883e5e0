//! Decides which files in a directory of locks dlock trusts, and for whom it creates new ones.
//!
//! In a world-writable directory (`/tmp`), any user can create a file before dlock does and keep the right to change
//! it: such a file could reveal tokens, revoke a lock, or exhaust the fencing counter. The check is stricter than
//! `fs.protected_regular` (`proc_sys_fs(5)`), and made on the open file, so nothing can be exchanged in between.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::name_services;

/// Permission bits (`chmod(1)`).
pub(super) const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const GROUP_READS_AND_WRITES: u32 = 0o060;

/// The reason why a file is not used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Untrusted(String);

fn untrusted(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, Untrusted(why.into()))
}

/// Returns whether an error means that a file must not be used, rather than that it could not be used.
pub(super) fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData || error.get_ref().is_some_and(|inner| inner.is::<Untrusted>())
}

/// Rejects what is not a regular file, has more than one name, or was created by another user in a world-writable
/// directory.
pub(super) fn check(metadata: &Metadata, path: &Path) -> io::Result<()> {
    if !metadata.is_file() {
        return Err(untrusted("not a regular file"));
    }
    if metadata.nlink() > 1 {
        return Err(untrusted(format!(
            "it has {} names (hard links), and may have only one",
            metadata.nlink()
        )));
    }
    let owner = metadata.uid();
    let is_ours = owner == 0 || owner == nix::unistd::geteuid().as_raw();
    match path.parent().filter(|_| !is_ours) {
        Some(directory) if is_world_writable(directory)? => Err(untrusted(format!(
            "it belongs to {}, and everybody may write to {}",
            user(owner),
            directory.display()
        ))),
        _ => Ok(()),
    }
}

/// Rejects a directory in which another user can remove or replace the files of this one. What the user has named is taken as it
/// is.
pub(super) fn check_default_directory(metadata: &Metadata) -> io::Result<()> {
    let owner = metadata.uid();
    if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
        return Err(untrusted(format!("it belongs to {}: name a directory in the URL", user(owner))));
    }
    match metadata.mode() & OTHERS_WRITE {
        0 => Ok(()),
        _ => Err(untrusted("everybody may write to it: chmod o-w")),
    }
}

/// The same for a path that is not to be opened now; a missing file is accepted.
pub(super) fn check_path(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        metadata => check(&metadata?, path),
    }
}

/// Translates the error of open(2) for a directory (`EISDIR`) or a socket (`ENXIO`).
pub(super) fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EISDIR | libc::ENXIO) => untrusted("not a regular file"),
        _ => error,
    }
}

/// Returns whether any user can create files in a directory.
pub(super) fn is_world_writable(directory: &Path) -> io::Result<bool> {
    Ok(fs::metadata(directory)?.mode() & OTHERS_WRITE != 0)
}

/// Returns the directory's group and its permissions for files, if users share the directory by its group.
fn shared_by(directory: &Path) -> Option<(u32, u32)> {
    let metadata = fs::metadata(directory).ok()?;
    let is_shared = metadata.mode() & (GROUP_WRITES | OTHERS_WRITE) == GROUP_WRITES;
    is_shared.then_some((metadata.gid(), metadata.mode() & GROUP_READS_AND_WRITES))
}

/// Returns whether users share the directory of this file by its group.
pub(super) fn is_shared(path: &Path) -> bool {
    path.parent().and_then(shared_by).is_some()
}

/// Assigns a new file to the group by which users share its directory. If the user is not in that group, the file stays
/// private.
pub(super) fn share(file: &File, path: &Path) {
    let Some((group, rights)) = path.parent().and_then(shared_by) else { return };
    let has_group = file.metadata().is_ok_and(|metadata| metadata.gid() == group)
        || std::os::unix::fs::fchown(file, None, Some(group)).is_ok();
    if has_group {
        let _ = file.set_permissions(Permissions::from_mode(0o600 | rights));
    }
}

/// Returns whom a file belongs to that this user has no right to, or its directory if there is no such file, and how
/// users share locks; as the end of a message.
pub(super) fn owner(path: &Path) -> String {
    let (what, found) = match (fs::metadata(path), path.parent().map(fs::metadata)) {
        (Ok(file), _) => ("it", file),
        (Err(_), Some(Ok(directory))) => ("its directory", directory),
        _ => return String::new(),
    };
    let (uid, mode) = (found.uid(), found.mode() & 0o7777);
    let remedy = match uid == nix::unistd::geteuid().as_raw() {
        true => "",
        false => "; users share a directory made with install -d -g GROUP -m 2770",
    };
    format!(": {what} belongs to {} (mode {mode:04o}){remedy}", user(uid))
}

/// Returns a user's name, or its number if it has none.
pub(super) fn user(uid: u32) -> String {
    let user = name_services::user(nix::unistd::Uid::from_raw(uid));
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}
