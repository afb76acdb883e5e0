//! A configuration file as text: opened with care, and every part of it with its line and column.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::kind;
use super::source::FileLocation;
use crate::backend::io_text;
use crate::exit::Failure;
use crate::input;

/// No configuration is longer; a device that never ends is.
const MOST_BYTES: u64 = 1 << 20;
/// Others may read it.
const READABLE_BY_OTHERS: u32 = 0o004;
/// Others may write to it.
const WRITABLE_BY_OTHERS: u32 = 0o002;

/// A configuration file.
pub(super) struct Document {
    name: Arc<str>,
    text: String,
    line_starts: Vec<usize>,
    mode: u32,
}

/// A key of a table, with both spans.
pub(super) type Entry<'t, 'd> = (&'t Spanned<std::borrow::Cow<'d, str>>, &'t Spanned<DeValue<'d>>);

impl Document {
    /// Reads a file; `None` if there is none.
    ///
    /// # Errors
    /// It is there and cannot be read, is not a regular file, is somebody else's or open to everybody's changes, is too
    /// long, or is no UTF-8 (78).
    pub(super) fn read(path: &Path) -> Result<Option<Document>, Failure> {
        let name: Arc<str> = path.display().to_string().into();
        let wrong = |why: &dyn std::fmt::Display| Failure::config(format!("{name}: {why}"));
        let cannot = |error: std::io::Error| wrong(&format!("cannot be read: {}", io_text(&error)));
        let file = match input::open(path) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(cannot(error)),
        };
        // Of the file that is open: the path may lead to another one by now.
        let metadata = file.metadata().map_err(cannot)?;
        check_owner(&metadata).map_err(|why| wrong(&why))?;
        let mode = metadata.mode() & 0o7777;
        let bytes = input::read_opened(file, MOST_BYTES).map_err(cannot)?;
        let (text, bad) = match String::from_utf8(bytes) {
            Ok(text) => (text, false),
            Err(error) => {
                let good = error.utf8_error().valid_up_to();
                let mut bytes = error.into_bytes();
                bytes.truncate(good);
                (String::from_utf8_lossy(&bytes).into_owned(), true)
            }
        };
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let document = Document { name, text, line_starts, mode };
        match bad {
            true => Err(document.failure(document.text.len(), "not valid UTF-8")),
            false => Ok(Some(document)),
        }
    }

    /// What it was called.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The table that the whole file is.
    ///
    /// # Errors
    /// It is no TOML (78).
    pub(super) fn table(&self) -> Result<Spanned<DeTable<'_>>, Failure> {
        // The message is of fixed words; only its long form repeats the line.
        DeTable::parse(&self.text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            self.failure(at, error.message())
        })
    }

    /// Where something stands.
    pub(super) fn place(&self, span: Range<usize>, key: &str) -> FileLocation {
        let line = self.line_starts.partition_point(|start| *start <= span.start);
        let before = self.text.get(self.line_starts[line - 1]..span.start).unwrap_or_default();
        FileLocation { file: self.name.clone(), line, column: before.chars().count() + 1, key: key.into() }
    }

    /// A failure that names the line and the column.
    pub(super) fn failure(&self, at: usize, message: impl std::fmt::Display) -> Failure {
        Failure::config(format!("{}: {message}", self.place(at..at, "")))
    }

    /// What stands in a table, in the order of the file.
    ///
    /// # Errors
    /// It is no table (78).
    pub(super) fn entries<'t, 'd>(
        &self,
        key: &str,
        value: &'t Spanned<DeValue<'d>>,
    ) -> Result<Vec<Entry<'t, 'd>>, Failure> {
        match value.get_ref() {
            DeValue::Table(table) => Ok(in_order(table)),
            other => {
                Err(self
                    .failure(value.span().start, format!("{key}: expected a table, found {}", kind(other))))
            }
        }
    }

    /// Refuses a file with a secret in it that is open to others.
    ///
    /// # Errors
    /// It is (78).
    pub(super) fn check_secret(&self, secret: &FileLocation) -> Result<(), Failure> {
        if self.mode & READABLE_BY_OTHERS == 0 {
            return Ok(());
        }
        Err(Failure::config(format!(
            "{secret}: {}: a password in a file that others can read (mode {:04o}): chmod o= {}, or name a \
             password_file instead",
            secret.key, self.mode, self.name
        )))
    }
}

/// Whether a file is of somebody whom we obey: it decides which files are overwritten and whose password is sent where, and
/// `sudo -E` brings the environment and the home of somebody else. The group may write to it: `umask 002` lets it, and the
/// owner has chosen it.
fn check_owner(metadata: &Metadata) -> Result<(), String> {
    let (owner, own) = (metadata.uid(), nix::unistd::geteuid().as_raw());
    if owner != 0 && owner != own {
        let or_own = if own == 0 { String::new() } else { format!(" or to user {own}") };
        return Err(format!(
            "belongs to user {owner}, and a configuration file has to belong to root{or_own}"
        ));
    }
    match metadata.mode() & WRITABLE_BY_OTHERS {
        0 => Ok(()),
        _ => Err(format!("everybody may write to it (mode {:04o}): chmod o-w", metadata.mode() & 0o7777)),
    }
}

/// What stands in a table, in the order of the file.
pub(super) fn in_order<'t, 'd>(table: &'t DeTable<'d>) -> Vec<Entry<'t, 'd>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}
