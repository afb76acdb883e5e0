//! Where certificates and keys are read from.

use std::fmt;
use std::path::{Path, PathBuf};

use super::unusable;
use crate::backend::{StoreError, io_text};
use crate::input;

/// Several times the size of a system's bundle.
const LONGEST_FILE: u64 = 4 << 20;

/// Certificates or a key, in the format PEM.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// A file, which is read for each connection.
    File(PathBuf),
    /// The text itself, and where it is from, for messages.
    Text {
        /// The text.
        pem: Vec<u8>,
        /// Where it is from.
        source: String,
    },
}

impl Pem {
    /// Returns the file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Pem::File(path) => Some(path),
            Pem::Text { .. } => None,
        }
    }

    /// Returns the text, which may be a bundle of all certificate authorities.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> Result<Vec<u8>, StoreError> {
        match self {
            Pem::File(path) => {
                input::read(path, LONGEST_FILE).map_err(|error| unusable(self, &io_text(&error)))
            }
            Pem::Text { pem, .. } => Ok(pem.clone()),
        }
    }
}

/// Where it is read from.
impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => path.display().fmt(f),
            Pem::Text { source, .. } => source.fmt(f),
        }
    }
}

/// The same: the text may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
