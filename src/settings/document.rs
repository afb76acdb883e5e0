//! A configuration file as text: opened safely, with the line and column of every value.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::source::FileLocation;
use super::value::kind;
use crate::backend::io_text;
use crate::exit::Failure;
use crate::input;

/// The maximum length of a configuration; an endless device is longer.
const MOST_BYTES: u64 = 1 << 20;
const READABLE_BY_OTHERS: u32 = 0o004;
const WRITABLE_BY_OTHERS: u32 = 0o002;

pub(super) struct Document {
    pub(super) name: Arc<str>,
    rank: usize,
    text: String,
    line_starts: Vec<usize>,
    mode: u32,
}

/// A key of a table, with both spans.
pub(super) type Entry<'t, 'd> = (&'t Spanned<std::borrow::Cow<'d, str>>, &'t Spanned<DeValue<'d>>);

impl Document {
    /// Reads a file, whose values override those of lower rank; `None` if there is none.
    ///
    /// # Errors
    /// It exists and cannot be read, is not a regular file, belongs to another user or is world-writable, is
    /// too long, or is not UTF-8 (78).
    pub(super) fn read(path: &Path, rank: usize) -> Result<Option<Document>, Failure> {
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
        // Checks the opened file: the path may lead to another one by now.
        let metadata = file.metadata().map_err(cannot)?;
        check_owner(&metadata).map_err(|why| wrong(&why))?;
        let mode = metadata.mode() & 0o7777;
        let bytes = input::read_opened(file, MOST_BYTES).map_err(cannot)?;
        let invalid = std::str::from_utf8(&bytes).err().map(|error| error.valid_up_to());
        // What precedes the first invalid byte stays in its place.
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let document = Document { name, rank, text, line_starts, mode };
        match invalid {
            Some(at) => Err(document.failure(at, "not valid UTF-8")),
            None => Ok(Some(document)),
        }
    }

    /// Parses the whole file as a table.
    ///
    /// # Errors
    /// It is not TOML (78).
    pub(super) fn table(&self) -> Result<Spanned<DeTable<'_>>, Failure> {
        // The short message has only fixed words; the long form would repeat the line.
        DeTable::parse(&self.text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            self.failure(at, error.message())
        })
    }

    /// Returns the place of a span.
    pub(super) fn place(&self, span: Range<usize>, key: &str) -> FileLocation {
        let line = self.line_starts.partition_point(|start| *start <= span.start);
        let before = self.text.get(self.line_starts[line - 1]..span.start).unwrap_or_default();
        let column = before.chars().count() + 1;
        FileLocation { file: self.name.clone(), rank: self.rank, line, column, key: key.into() }
    }

    /// Returns a failure that names the line and the column.
    pub(super) fn failure(&self, at: usize, message: impl std::fmt::Display) -> Failure {
        Failure::config(format!("{}: {message}", self.place(at..at, "")))
    }

    /// Returns the entries of a table, in the order of the file.
    ///
    /// # Errors
    /// It is not a table (78).
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

    /// Rejects a file that contains a secret and is readable by others.
    ///
    /// # Errors
    /// The file is readable by others (78).
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

/// Checks the owner and the mode of a configuration file. It determines which files are overwritten and where
/// passwords are sent, and `sudo -E` brings the environment and the home of another user. The group may write
/// to it: `umask 002` allows that, and the owner has chosen it.
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
        _ => Err(format!("it is world-writable (mode {:04o}): chmod o-w", metadata.mode() & 0o7777)),
    }
}

/// Returns the entries of a table, in the order of the file.
pub(super) fn in_order<'t, 'd>(table: &'t DeTable<'d>) -> Vec<Entry<'t, 'd>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}
