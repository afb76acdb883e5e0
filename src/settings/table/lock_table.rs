//! The settings of the locks whose names match a pattern, and which of several such tables applies.

use super::Settings;
use crate::exit::Failure;
use crate::glob::Pattern;
use crate::lock::LockName;
use crate::settings::source::{FileLocation, Sourced};

/// `[locks."PATTERN"]`
pub(in crate::settings) struct LockTable {
    /// The pattern as written.
    pub(in crate::settings) text: String,
    pub(in crate::settings) pattern: Pattern,
    /// Its first occurrence.
    pub(in crate::settings) place: FileLocation,
    pub(in crate::settings) settings: Settings,
}

impl LockTable {
    /// Returns its rank among the tables that match a name: an exact name beats a pattern, and a longer pattern a shorter one.
    pub(in crate::settings) fn rank(&self) -> usize {
        match self.pattern.literal().is_some() {
            true => usize::MAX,
            false => self.text.chars().count(),
        }
    }
}

/// Returns the value of a key for a lock: that of the first of these tables, in order of rank, that sets it.
///
/// # Errors
/// Another table of the same rank sets it too (78).
pub(in crate::settings) fn ranked<'t, T>(
    tables: &[&'t LockTable],
    name: &LockName,
    key: &str,
    value: impl Fn(&'t Settings) -> Option<&'t Sourced<T>>,
) -> Result<Option<&'t Sourced<T>>, Failure> {
    let mut setting = tables.iter().filter_map(|table| Some((*table, value(&table.settings)?)));
    let Some((best, known)) = setting.next() else { return Ok(None) };
    match setting.next() {
        Some((other, _)) if other.rank() == best.rank() => Err(known.source.failure(format!(
            "NAME '{name}' matches [locks.\"{}\"] and [locks.\"{}\"] ({}) equally well, and both set this key: make one of the \
             patterns longer, or set {key} in a table for this name",
            best.text, other.text, other.place
        ))),
        _ => Ok(Some(known)),
    }
}
