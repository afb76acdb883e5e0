//! A configuration file as text: opened with care, and every part of it with its line and column.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::kind;
use super::source::Place;
use crate::backend::io_text;
use crate::exit::Failure;

/// No configuration is longer; a device that never ends is.
const MOST_BYTES: u64 = 1 << 20;
/// Others may read it, or write to it.
const OPEN_TO_OTHERS: u32 = 0o006;

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
    /// It is there and cannot be read, is too long, or is no UTF-8 (78).
    pub(super) fn read(path: &Path) -> Result<Option<Document>, Failure> {
        let name: Arc<str> = path.display().to_string().into();
        let wrong = |why: &dyn std::fmt::Display| Failure::config(format!("{name}: {why}"));
        let cannot = |error: std::io::Error| wrong(&format!("cannot be read: {}", io_text(&error)));
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(cannot(error)),
        };
        let mode = file.metadata().map_err(cannot)?.permissions().mode() & 0o7777;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(wrong(&"longer than 1 MiB: this is no configuration file"));
        }
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
    pub(super) fn place(&self, span: Range<usize>, key: &str) -> Place {
        let line = self.line_starts.partition_point(|start| *start <= span.start);
        let before = self.text.get(self.line_starts[line - 1]..span.start).unwrap_or_default();
        Place { file: self.name.clone(), line, column: before.chars().count() + 1, key: key.into() }
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
    pub(super) fn check_secret(&self, secret: &Place) -> Result<(), Failure> {
        if self.mode & OPEN_TO_OTHERS == 0 {
            return Ok(());
        }
        Err(Failure::config(format!(
            "{secret}: {}: a password in a file that others can read (mode {:04o}): chmod o= {}, or name a \
             password_file instead",
            secret.key, self.mode, self.name
        )))
    }
}

/// What stands in a table, in the order of the file.
pub(super) fn in_order<'t, 'd>(table: &'t DeTable<'d>) -> Vec<Entry<'t, 'd>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}
