//! The configuration files, merged: their tables for locks, and their backends.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backends::{is_alias, wrong_url};
use super::document::Document;
use super::tables::{LockTable, Tables};
use super::{BackendSettings, CommonArguments, Source, Sourced};
use crate::backend::url::Url;
use crate::exit::Failure;
use crate::input;
use crate::lock::LockName;

/// The configuration file of the host.
const SYSTEM_FILE: &str = "/etc/dlock/config.toml";
/// The configuration file of a user, relative to the home directory. `XDG_CONFIG_HOME` is not read: cron does
/// not set it.
const USER_FILE: &str = ".config/dlock/config.toml";

/// The configuration files, each parsed completely.
pub struct Configuration {
    /// The files that were read; each overrides the ones before it.
    pub(super) files: Vec<Arc<str>>,
    pub(super) tables: Tables,
}

impl Configuration {
    /// Reads the file that was named, or else the files of the host and of the user.
    ///
    /// # Errors
    /// A file that was named is missing; a file cannot be read, or has an invalid key or value (78).
    pub fn read(arguments: &CommonArguments) -> Result<Configuration, Failure> {
        let named = match &arguments.config {
            Some(path) => Some(("--config", path.clone())),
            None => input::variable("DLOCK_CONFIG").map(|path| ("DLOCK_CONFIG", PathBuf::from(path))),
        };
        let mut configuration = Configuration { files: Vec::new(), tables: Tables::default() };
        if let Some((by, path)) = named {
            match Document::read(&path)? {
                Some(document) => configuration.add(&document)?,
                None => {
                    return Err(Failure::config(format!("{by}: {}: no such file", path.display())));
                }
            }
        } else {
            if let Some(document) = Document::read(Path::new(SYSTEM_FILE))? {
                configuration.add(&document)?;
            }
            if let Some(home) = crate::home::directory(input::variable("HOME").as_deref()) {
                let path = home.join(USER_FILE);
                match Document::read(&path) {
                    Err(_) if is_out_of_reach(&path) => {}
                    document => {
                        if let Some(document) = document? {
                            configuration.add(&document)?;
                        }
                    }
                }
            }
        }
        configuration.check()?;
        Ok(configuration)
    }

    fn add(&mut self, document: &Document) -> Result<(), Failure> {
        self.tables.add(Tables::of(document)?);
        self.files.push(document.name().clone());
        Ok(())
    }

    /// Whether every backend that the files name is valid.
    fn check(&self) -> Result<(), Failure> {
        for alias in &self.tables.backends {
            self.alias(&alias.name, Source::Default)?;
        }
        let of_locks = self.tables.locks.iter().map(|table| &table.settings.backend);
        for named in std::iter::once(&self.tables.backend).chain(of_locks).flatten() {
            self.backend(Some(named))?;
        }
        Ok(())
    }

    /// Returns the table that applies to a lock: the one with its exact name, else the one with the longest
    /// matching pattern.
    ///
    /// # Errors
    /// Two longest patterns match (78).
    pub(super) fn table(&self, name: &LockName) -> Result<Option<&LockTable>, Failure> {
        let rank = |table: &LockTable| match table.pattern.literal().is_some() {
            true => usize::MAX,
            false => table.text.chars().count(),
        };
        let matching = || self.tables.locks.iter().filter(|table| table.pattern.matches(name.as_str()));
        let Some(best) = matching().map(rank).max() else { return Ok(None) };
        let mut longest = matching().filter(|table| rank(table) == best);
        match (longest.next(), longest.next()) {
            (Some(one), Some(other)) => Err(Failure::config(format!(
                "NAME '{name}': [locks.\"{}\"] ({}) and [locks.\"{}\"] ({}) match equally well: make one of them longer, or \
                 add a table for this name",
                one.text, one.place, other.text, other.place
            ))),
            (table, _) => Ok(table),
        }
    }

    /// Returns the backend that was named, or the default if none was named.
    ///
    /// # Errors
    /// An unknown alias, a bad URL, or no backend named although there is a configuration file (78).
    pub fn backend(&self, named: Option<&Sourced<String>>) -> Result<BackendSettings, Failure> {
        let Some(Sourced { value, source }) = named else {
            if let Some(last) = self.files.last() {
                return Err(Failure::config(format!(
                    "no backend configured: add backend = \"...\" to {last}, or give --backend or DLOCK_BACKEND (file: for \
                     locks on this host only)"
                )));
            }
            let url = Url::parse("file:").map_err(|error| Failure::internal(error.to_string()))?;
            return Ok(BackendSettings::of_url(url, Source::Default));
        };
        if is_alias(value) {
            return self.alias(value, source.clone());
        }
        let url = Url::parse(value).map_err(|error| wrong_url(source, error))?;
        Ok(BackendSettings::of_url(url, source.clone()))
    }

    fn alias(&self, name: &str, named_by: Source) -> Result<BackendSettings, Failure> {
        let Some(alias) = self.tables.backends.iter().find(|alias| alias.name == name) else {
            let known: Vec<&str> = self.tables.backends.iter().map(|alias| alias.name.as_str()).collect();
            let known = match known.as_slice() {
                [] => "no configuration file names any".to_owned(),
                known => format!("known are {}", known.join(", ")),
            };
            // The word is not repeated: it may be a misplaced password.
            let error = format!("no backend of this name: {known}; a URL has a colon, as file:///srv/locks");
            return Err(wrong_url(&named_by, error));
        };
        alias.backend(named_by, |one, other| self.is_later(one, other))
    }

    /// Whether the first source is in a file that overrides the file of the second.
    pub(super) fn is_later(&self, one: &Source, other: &Source) -> bool {
        let order = |source: &Source| match source {
            Source::File(place) => self.files.iter().position(|file| *file == place.file),
            _ => None,
        };
        order(one) > order(other)
    }
}

/// Whether the directory is not accessible: a protected home (systemd's `ProtectHome=`, or that of another
/// user) contains no configuration for this process.
fn is_out_of_reach(path: &Path) -> bool {
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    std::fs::symlink_metadata(path).is_err_and(denied)
}
