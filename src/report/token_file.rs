//! A file for a token, that only its owner can read.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::entry::{Entry, directory};
use super::output_file::{Temporary, repeatable};
use crate::lock::Token;

/// Readable only by its owner, from its creation.
const MODE: u32 = 0o600;

/// A file to which a token can be written.
#[derive(Debug)]
pub struct TokenFile(PathBuf);

impl TokenFile {
    /// Checks that a token can be written there, by writing the length of one to another file in the same directory. An
    /// existing file stays unchanged.
    ///
    /// # Errors
    /// It cannot be written; or the existing file is not one of this user that can be replaced. A symbolic
    /// link is not followed.
    pub fn find(path: &Path) -> Result<TokenFile> {
        check(path).with_context(|| format!("cannot write '{}'", repeatable(path)))?;
        Ok(TokenFile(path.to_owned()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the token, on one line. The file is replaced, readable only by its owner whatever the umask and
    /// the mode of the old file, and is never seen half-written.
    ///
    /// # Errors
    /// The write failed; then the file is unchanged.
    pub fn write(&self, token: &Token) -> io::Result<()> {
        let entry = Entry::at(&self.0)?;
        write_temporary(&entry, format!("{}\n", token.reveal()).as_bytes())?.rename(&entry)
    }
}

fn check(path: &Path) -> Result<()> {
    let is_name = path.file_name().is_some() && !path.as_os_str().as_encoded_bytes().ends_with(b"/");
    ensure!(is_name, "this is not a file name");
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => {
            let found = found?;
            ensure!(!found.is_symlink(), "it is a symbolic link, which dlock does not follow");
            ensure!(found.is_file(), "it exists and is not a regular file");
            let is_own = [0, found.uid()].contains(&nix::unistd::geteuid().as_raw());
            ensure!(is_own, "it exists and belongs to another user");
        }
    }
    let probe = Entry::at(path).and_then(|entry| write_temporary(&entry, &[0; 33]));
    probe.with_context(|| format!("cannot write a file in {}", repeatable(directory(path))))?;
    Ok(())
}

fn write_temporary(entry: &Entry, content: &[u8]) -> io::Result<Temporary> {
    let (temporary, mut file) = Temporary::next_to(entry, MODE)?;
    // The umask may have cleared bits.
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(content)?;
    // Some file systems report only now that there is no space.
    file.sync_all()?;
    Ok(temporary)
}
