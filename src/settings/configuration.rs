//! The configuration files, merged, and the settings and the backend that result from them, the environment and the
//! command line.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backends::{is_alias, wrong_url};
use super::document::Document;
use super::suggestion;
use super::table::{LockTable, ranked};
use super::toml_tables::Tables;
use super::value::{OnLost, of_environment, variable};
use super::{BackendSettings, CommonArguments, Settings, Source, Sourced};
use crate::backend::registry;
use crate::backend::url::Url;
use crate::exit::Failure;
use crate::glob::Pattern;
use crate::input;
use crate::lock::LockName;

/// The configuration file of the host.
const SYSTEM_FILE: &str = "/etc/dlock/config.toml";
/// The configuration file of a user, relative to the home directory. `XDG_CONFIG_HOME` is not read: cron does
/// not set it.
const USER_FILE: &str = ".config/dlock/config.toml";

/// The remedy for locks on different backends, for a command that takes them.
const RUN_APART: &str = "a run is on one store: give --backend, or nest one dlock run in the other";
/// The same for a command that shows them.
const ASK_APART: &str = "one store is queried at a time: give --backend, or query these one at a time";

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
            None => variable("DLOCK_CONFIG")?.map(|path| ("DLOCK_CONFIG", PathBuf::from(path))),
        };
        let mut configuration = Configuration { files: Vec::new(), tables: Tables::default() };
        if let Some((by, path)) = named {
            let document = Document::read(&path, 0)?;
            let shown = registry::repeatable(&path.to_string_lossy());
            let missing = || Failure::config(format!("{by}: {shown}: no such file"));
            configuration.add(document.ok_or_else(missing)?)?;
        } else {
            if let Some(document) = Document::read(Path::new(SYSTEM_FILE), 0)? {
                configuration.add(document)?;
            }
            if let Some(home) = crate::name_services::home(input::variable("HOME").as_deref()) {
                let path = home.join(USER_FILE);
                match Document::read(&path, 1) {
                    Err(_) if is_out_of_reach(&path) => {}
                    Err(failure) => return Err(failure),
                    Ok(None) => {}
                    Ok(Some(document)) => configuration.add(document)?,
                }
            }
        }
        configuration.check()?;
        Ok(configuration)
    }

    fn add(&mut self, document: Document) -> Result<(), Failure> {
        self.tables.add(Tables::of(&document)?);
        self.files.push(document.name);
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

    /// Returns the tables that match a lock, in order of rank. Each key is that of the first table that has it.
    pub(super) fn tables_of(&self, name: &LockName) -> Vec<&LockTable> {
        let matches = |table: &&LockTable| table.pattern.matches(name.as_str());
        let mut tables: Vec<&LockTable> = self.tables.locks.iter().filter(matches).collect();
        tables.sort_by_key(|table| std::cmp::Reverse(table.rank()));
        tables
    }

    /// Returns the backend that was named, or the default if none was named.
    ///
    /// # Errors
    /// An unknown alias, a bad URL, or no backend named although there is a configuration file (78).
    pub fn backend(&self, named: Option<&Sourced<String>>) -> Result<BackendSettings, Failure> {
        let mut backend = self.backend_named(named)?;
        backend.requires_verified_tls = self.requires_verified_tls().cloned();
        Ok(backend)
    }

    /// Returns what refuses servers that need not prove their identity, on all backends.
    pub(super) fn requires_verified_tls(&self) -> Option<&Source> {
        let required = self.tables.require_verified_tls.as_ref().filter(|required| required.value);
        required.map(|required| &required.source)
    }

    fn backend_named(&self, named: Option<&Sourced<String>>) -> Result<BackendSettings, Failure> {
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
        let scheme = value.split(':').next().unwrap_or_default();
        if !registry::is_scheme(scheme)
            && let Some(meant) = suggestion::backend(value)
        {
            return Err(wrong_url(source, meant));
        }
        let url = Url::parse(value).map_err(|error| wrong_url(source, error))?;
        Ok(BackendSettings::of_url(url, source.clone()))
    }

    fn alias(&self, name: &str, named_by: Source) -> Result<BackendSettings, Failure> {
        let Some(alias) = self.tables.backends.iter().find(|alias| alias.name == name) else {
            let known: Vec<&str> = self.tables.backends.iter().map(|alias| alias.name.as_str()).collect();
            let known = match known.as_slice() {
                [] => "no configuration file defines any".to_owned(),
                known => format!("known are {}", known.join(", ")),
            };
            if let Some(meant) = suggestion::backend(name) {
                return Err(wrong_url(&named_by, meant));
            }
            // The word is not repeated: it may be a misplaced password.
            let error =
                format!("no backend of this name: {known}; a URL has a colon, such as file:///srv/locks");
            return Err(wrong_url(&named_by, error));
        };
        alias.backend(named_by)
    }

    /// Returns the names of the pools.
    pub fn pools(&self) -> Vec<String> {
        self.tables.pools.iter().map(|pool| pool.name.clone()).collect()
    }

    /// Returns the settings for these locks, in which those of the command line have the highest precedence.
    ///
    /// # Errors
    /// A variable has an invalid value, or the tables of two locks contradict each other (78).
    pub fn settings(
        &self,
        flags: Settings,
        common: &CommonArguments,
        names: &[LockName],
    ) -> Result<Settings, Failure> {
        let mut settings = self.under(above(flags, common)?, names, |_| true)?;
        if settings.backend.is_none() {
            settings.backend = self.named_of(names, RUN_APART)?;
        }
        settings.require_server = settings.require_server.or_else(|| self.tables.require_server.clone());
        Ok(settings)
    }

    /// Returns the settings of command line and environment over those of the files for these locks,
    /// restricted to the `wanted` keys; without the backend, which is resolved per lock.
    pub(super) fn under(
        &self,
        above: Settings,
        names: &[LockName],
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Settings, Failure> {
        let mut below = Settings::default();
        for name in names {
            let said = Settings::ranked(&self.tables_of(name), name, |key| key != "backend" && wanted(key))?;
            below = below.together(said, &above)?;
        }
        Ok(above.over(below))
    }

    /// Rejects settings of a table that would be applied to other locks which are taken together with its own, and which their
    /// tables protect by not having them.
    ///
    /// # Errors
    /// There is one (78).
    pub(super) fn check_together(&self, settings: &Settings, names: &[LockName]) -> Result<(), Failure> {
        let all_have = |key: &str, has: fn(&Settings) -> bool| -> Result<bool, Failure> {
            let said = |name| Settings::ranked(&self.tables_of(name), name, |known| known == key);
            names.iter().try_fold(true, |all, name| Ok(all && has(&said(name)?)))
        };
        fn in_file<T>(set: &Option<Sourced<T>>, protects_less: fn(&T) -> bool) -> Option<&Source> {
            let set = set.as_ref().filter(|set| protects_less(&set.value)).map(|set| &set.source);
            set.filter(|source| matches!(source, Source::File(_)))
        }
        let reject = |source: &Source, others: &str| {
            Err(source.failure(format!("a lock that is taken together with this one has {others}")))
        };
        if let Some(source) = in_file(&settings.slots, |slots| *slots != 1)
            && !all_have("slots", |said| said.slots.is_some())?
        {
            return reject(source, "one holder: use --slots or --exclusive");
        }
        if let Some(source) = in_file(&settings.on_lost, |on_lost| *on_lost != OnLost::Kill)
            && !all_have("on_lost", |said| said.on_lost.is_some())?
        {
            return reject(source, "a command that is stopped with it: use --on-lost");
        }
        Ok(())
    }

    /// Resolves the backend of these locks, or the default backend.
    ///
    /// # Errors
    /// A variable has an invalid value, two of the locks have different backends, or none is named (78).
    pub fn resolve(
        &self,
        arguments: &CommonArguments,
        names: &[LockName],
    ) -> Result<BackendSettings, Failure> {
        let named = self.named_backend(arguments, names)?;
        self.backend(named.as_ref())
    }

    /// Returns the backend that the command line, the environment or the files name for these locks.
    ///
    /// # Errors
    /// A variable has an invalid value, or two of the locks have different backends (78).
    pub(super) fn named_backend(
        &self,
        arguments: &CommonArguments,
        names: &[LockName],
    ) -> Result<Option<Sourced<String>>, Failure> {
        if let Some(flag) = arguments.backend_flag()? {
            return Ok(Some(flag));
        }
        match of_environment("DLOCK_BACKEND")? {
            None => self.named_of(names, ASK_APART),
            named => Ok(named),
        }
    }

    /// Returns the backend that the files name for these locks: that of its tables for each, else the default.
    /// A lock of the same name on another store would be a different lock.
    ///
    /// # Errors
    /// Two of them have different backends, or two patterns match equally well (78).
    pub(super) fn named_of(
        &self,
        names: &[LockName],
        apart: &str,
    ) -> Result<Option<Sourced<String>>, Failure> {
        let Some((first, others)) = names.split_first() else { return Ok(self.tables.backend.clone()) };
        let one = self.named(first)?;
        for name in others {
            let other = self.named(name)?;
            if !self.is_same(one, other)? {
                return Err(Failure::config(format!(
                    "NAME '{first}' {} and NAME '{name}' {}: {apart}",
                    On(one),
                    On(other)
                )));
            }
        }
        Ok(one.cloned())
    }

    fn named(&self, name: &LockName) -> Result<Option<&Sourced<String>>, Failure> {
        let own = ranked(&self.tables_of(name), name, "backend", |table| table.backend.as_ref())?;
        Ok(own.or(self.tables.backend.as_ref()))
    }

    /// Whether two names of a backend mean the same store, such as an alias and its URL.
    fn is_same(
        &self,
        one: Option<&Sourced<String>>,
        other: Option<&Sourced<String>>,
    ) -> Result<bool, Failure> {
        match (one, other) {
            (Some(one), Some(other)) => {
                Ok(one.value == other.value || self.backend(Some(one))?.url == self.backend(Some(other))?.url)
            }
            (one, other) => Ok(one.is_none() && other.is_none()),
        }
    }

    /// Returns the other backends on which the files have locks that one of the patterns could match, each
    /// once and without secrets; no pattern means every lock. Empty if the backend was set for all locks.
    ///
    /// # Errors
    /// One of them is not valid (78).
    pub fn others(&self, asked: &BackendSettings, patterns: &[&str]) -> Result<Vec<String>, Failure> {
        let mut known = vec![asked.url.clone()];
        let mut others = Vec::new();
        if !matches!(asked.source, Source::File(_)) {
            return Ok(others);
        }
        let meant = self.tables.locks.iter().filter(|table| {
            patterns.is_empty() || patterns.iter().any(|pattern| could_match(table, pattern))
        });
        let own = meant.filter_map(|table| table.settings.backend.as_ref());
        for named in self.tables.backend.iter().chain(own) {
            let url = self.backend(Some(named))?.url;
            if !known.contains(&url) {
                known.push(url);
                others.push(registry::redacted(&named.value));
            }
        }
        Ok(others)
    }
}

/// Whether the directory is not accessible: a protected home (systemd's `ProtectHome=`, or that of another
/// user) contains no configuration for this process.
fn is_out_of_reach(path: &Path) -> bool {
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    std::fs::symlink_metadata(path).is_err_and(denied)
}

/// Returns the settings of the command line and the environment.
///
/// # Errors
/// A variable or the backend has an invalid value (78).
pub(super) fn above(flags: Settings, common: &CommonArguments) -> Result<Settings, Failure> {
    let quiet = common.quiet.then_some(Sourced { value: true, source: Source::Flag("--quiet") });
    Settings { backend: common.backend_flag()?, quiet, ..flags }.over_environment()
}

/// Whether there could be a name that both patterns match. Of two patterns only the beginnings are compared:
/// a false positive is better than a false negative here.
fn could_match(table: &LockTable, pattern: &str) -> bool {
    if let Some(name) = table.pattern.literal() {
        return Pattern::new(pattern).matches(&name);
    }
    let beginning = |text: &str| text.split(['*', '?', '[', '\\']).next().unwrap_or_default().to_owned();
    let (one, other) = (beginning(&table.text), beginning(pattern));
    one.starts_with(&other) || other.starts_with(&one)
}

/// The store of a lock, and its source.
struct On<'a>(Option<&'a Sourced<String>>);

impl fmt::Display for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Sourced { value, source }) => write!(f, "is on {} ({source})", registry::redacted(value)),
            None => f.write_str("has no backend"),
        }
    }
}
