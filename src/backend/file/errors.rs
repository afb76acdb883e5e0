//! What an error of the file system means for a lock.

use std::io;
use std::path::Path;

use super::trust;
use crate::backend::{StoreError, io_text};

/// Returns the error of an operation on a file: `what` is the operation, as in `cannot open PATH`.
pub(super) fn describe(error: &io::Error, what: &str, path: &Path) -> StoreError {
    let text = match error.raw_os_error() {
        Some(libc::ELOOP) => "it is a symbolic link, which dlock does not follow".to_owned(),
        Some(libc::EACCES | libc::EPERM) => io_text(error) + &trust::owner(path),
        _ => io_text(error),
    };
    let message = format!("cannot {what} {}: {text}", path.display());
    match error.kind() {
        io::ErrorKind::InvalidData => StoreError::Config(format!("{}: {text}", path.display())),
        io::ErrorKind::PermissionDenied => StoreError::Denied(message),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::Config(message),
        _ if error.raw_os_error() == Some(libc::ELOOP) => StoreError::Denied(message),
        _ => StoreError::unreachable(message),
    }
}
