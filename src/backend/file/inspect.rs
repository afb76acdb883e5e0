//! Lists locks, and reads their sidecars without changing them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::directory::{LockDirectory, forget_other_boots};
use super::errors::describe;
use super::history;
use super::observation::{Observation, now};
use super::sidecar::{PATIENCE, Sidecar};
use crate::backend::StoreError;
use crate::backend::admin::Listed;
use crate::backend::ledger::{Ledger, Observed};
use crate::clock::Moment;
use crate::lock::{LockName, LockState, NotedRecord};

/// How long to wait for a sidecar whose content is only needed to list the lock.
const LISTING_PATIENCE: Duration = Duration::from_millis(5);

impl LockDirectory {
    pub(super) fn names(&self, which: Listed) -> Result<Vec<LockName>, StoreError> {
        self.location.check_directory()?;
        let directory = &self.location.directory;
        let entries = match fs::read_dir(directory) {
            // The default directory, before the first lock.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| describe(&error, "read the directory", directory))?,
        };
        let name_of = |path: &Path| match which {
            Listed::InUse => self.name_of(path),
            Listed::WithHistory => self.name_of(&self.location.sidecar_of(path)?),
        };
        let mut names: Vec<LockName> = entries.flatten().filter_map(|entry| name_of(&entry.path())).collect();
        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        Ok(names)
    }

    /// Returns the lock that a sidecar file belongs to. A file that is named by a digest contains the name.
    fn name_of(&self, path: &Path) -> Option<LockName> {
        let file = path.file_name()?.to_str()?;
        if let Some(name) = self.location.name_of(file) {
            return Some(name);
        }
        let is_digest = self.location.is_digest(file);
        let (_, ledger) =
            is_digest.then(|| Sidecar::open_existing(path, LISTING_PATIENCE).ok()).flatten()??;
        let name = ledger.lock_name()?;
        (self.location.sidecar_path(&name) == path).then_some(name)
    }

    /// Returns the time in ms since 1970, and what `view` makes of the ledgers.
    pub(super) fn read(
        &mut self,
        names: &[LockName],
        is_new: bool,
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        self.location.check_directory()?;
        let now = now();
        self.patient_until = self.patient_until.filter(|_| !is_new);
        // Many sidecars that stay locked may cost no more in total than one.
        let until = match names {
            [_] => Moment::now() + PATIENCE,
            _ => *self.patient_until.get_or_insert_with(|| Moment::now() + PATIENCE),
        };
        let state_of = |name: &LockName| {
            let path = self.location.sidecar_path(name);
            let opened = match Sidecar::open_existing(&path, until - Moment::now()) {
                Ok(opened) => opened,
                Err(error) => {
                    let failure = describe(&error, "read", &path);
                    return LockState { unknown: Some(failure.into()), ..LockState::free(name.clone()) };
                }
            };
            let (sidecar, mut ledger) = opened.unzip();
            if let Some(ledger) = &mut ledger {
                forget_other_boots(ledger);
            }
            let lock_path = self.location.lock_path(name);
            let file = sidecar.as_ref().map(Sidecar::file);
            // The same time for all, so that ages can be compared.
            let observation = Observation { now, ..Observation::new(&lock_path, file) };
            view(name, &ledger.unwrap_or_default(), &observation)
        };
        Ok((now.wall / 1000, names.iter().map(state_of).collect()))
    }

    pub(super) fn history(&self, name: &LockName) -> Result<Vec<NotedRecord>, StoreError> {
        self.location.check_directory()?;
        let path = self.location.history_path(name);
        history::read(&path).map_err(|error| describe(&error, "read", &path))
    }
}
