//! Locks on this host: `flock(2)` on `DIRECTORY/NAME.lock`, so that `flock(1)` on the same file excludes dlock and is
//! excluded by it. The content of the lock file is never touched. What dlock processes have to agree on (fencing
//! counter, holders, queue, slots) is in a sidecar file beside it, under a short lock.
//!
//! Named only by the registry. What always holds: whoever holds the lock holds the `flock`, so that a foreign `flock(1)` and
//! dlock never run at the same time, and a file that may be locked is never removed.

mod change;
mod directory;
mod doctor;
mod errors;
mod foreign;
mod history;
mod hold;
mod inspect;
mod location;
mod lock_file;
mod observation;
mod presence;
mod sidecar;
mod store;
mod trust;

pub use self::location::Location;
use self::location::{SIDECAR_SUFFIX, network_file_system};
use self::store::FileStore;
use super::admin::LockAdmin;
use super::ledger::Contender;
use super::location::Policy;
use super::url::UrlError;
use crate::backend;
use crate::lock::LockName;

impl backend::Location for Location {
    fn unverified(&self) -> Option<String> {
        None
    }

    fn display(&self) -> &str {
        &self.display
    }

    fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        let file = self.file_name(name, &self.suffix);
        if file.ends_with(SIDECAR_SUFFIX) {
            return Err(UrlError::new(format!(
                "its file {file} would be one of dlock's own ({SIDECAR_SUFFIX})"
            )));
        }
        if file == "." || file == ".." {
            return Err(UrlError::new("'.' and '..' are not file names"));
        }
        Ok(())
    }

    fn keeps_leases(&self) -> bool {
        false
    }

    fn is_on_this_host(&self) -> bool {
        true
    }

    /// A file system may have locks that are not managed by this host's kernel alone.
    fn warning(&self) -> Option<String> {
        let existing = self.directory.ancestors().find(|directory| directory.exists())?;
        let kind = network_file_system(existing)?;
        Some(format!(
            "{} is on {kind}: the lock is only as good as the locks of that file system, and hosts may not see each other's",
            self.directory.display()
        ))
    }

    /// Users who share locks share the directory by its group; new files in it take its group.
    fn policy(&self) -> Policy {
        let directory = self.directory.display().to_string().replace('\'', "'\\''");
        let (options, note) = match self.is_default {
            true => (
                "-m 0700",
                "the first run makes this directory itself; users who share locks have to name another",
            ),
            false => (
                "-m 2770 -g GROUP",
                "run this as root, with the group of the users who share locks filled in",
            ),
        };
        Policy { commands: vec![format!("install -d {options} '{directory}'")], note: note.to_owned() }
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(Contender::new(FileStore::new(self.clone())))
    }
}
