//! Where a token goes: standard output, or a file for its owner alone.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::entry::{Entry, directory};
use super::file::{Temporary, write_in_time};
use crate::backend::io_text;
use crate::lock::Token;

/// How long whoever reads a token is waited for.
const READER_WITHIN: Duration = Duration::from_secs(2);
/// For its owner alone, from the beginning.
const MODE: u32 = 0o600;

/// A file that a token can be written to.
#[derive(Debug)]
pub struct TokenFile(PathBuf);

impl TokenFile {
    /// Makes sure that a token can be written there, by writing one's length to another file beside it. What is there
    /// already stays as it is.
    ///
    /// # Errors
    /// It cannot be; or what is there is no file of ours that can be replaced. A symbolic link is not followed.
    pub fn find(path: &Path) -> Result<TokenFile, String> {
        let cannot = |why: String| format!("cannot write '{}': {why}", path.display());
        if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(cannot("this is no name of a file".into()));
        }
        match fs::symlink_metadata(path) {
            Ok(there) if there.is_symlink() => {
                return Err(cannot("it is a symbolic link, which dlock does not follow".into()));
            }
            Ok(there) if !there.is_file() => return Err(cannot("it is there, and no regular file".into())),
            Ok(there) if ![0, there.uid()].contains(&nix::unistd::geteuid().as_raw()) => {
                return Err(cannot("it is there, and another user's".into()));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(io_text(&error))),
            _ => {}
        }
        let probe = || write_beside(&Entry::at(path)?, &[0; 33]).map(drop);
        probe().map_err(|error| {
            cannot(format!("cannot write a file in {}: {}", directory(path).display(), io_text(&error)))
        })?;
        Ok(TokenFile(path.to_owned()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the token, on one line. The file is another one afterwards, for its owner alone whatever the umask and the
    /// old one's mode are, and is never seen half-written.
    ///
    /// # Errors
    /// It could not be; then the file is what it was.
    pub fn write(&self, token: &Token) -> io::Result<()> {
        let entry = Entry::at(&self.0)?;
        write_beside(&entry, format!("{}\n", token.reveal()).as_bytes())?.rename(&entry)
    }
}

fn write_beside(entry: &Entry, content: &[u8]) -> io::Result<Temporary> {
    let (temporary, mut file) = Temporary::beside(entry, MODE)?;
    // The umask may have taken from it.
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(content)?;
    // Some file systems find only now that there is no room.
    file.sync_all()?;
    Ok(temporary)
}

/// Writes what was asked for to standard output, without ever waiting long for a reader that has stopped.
///
/// # Errors
/// Not all of it was taken: it is closed, full, or nobody reads.
pub fn to_stdout(text: &str) -> io::Result<()> {
    write_in_time(io::stdout().as_fd(), text.as_bytes(), READER_WITHIN)
}
