//! Locks on this host.

use super::rig::Rig;
use crate::support::place::{Place, flock_is_free};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

struct FileRig {
    place: Place,
    foreign: Vec<(PathBuf, File)>,
}

impl FileRig {
    fn new() -> Self {
        Self { place: Place::new(), foreign: Vec::new() }
    }

    /// One of the lists in the sidecar of a lock.
    fn noted(&self, name: &str, list: &str) -> Vec<String> {
        let noted = self.place.noted(name);
        noted[list].as_array().into_iter().flatten().map(ToString::to_string).collect()
    }
}

const FOREIGN: &str = "somebody else's\n";

impl Rig for FileRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.place.url()
    }

    fn exact_url(&self) -> String {
        format!("{}?suffix=", self.place.url())
    }

    fn url_with_secret(&self, _: &str) -> Option<String> {
        None
    }

    fn has_leases(&self) -> bool {
        false
    }

    /// Including its sidecar: a live process that is recorded there would still count as a holder.
    fn delete(&mut self, name: &str) {
        std::fs::remove_file(self.place.lock_file(name)).unwrap();
        std::fs::remove_file(self.place.locks().join(format!("{name}.dlock"))).unwrap();
    }

    fn replace(&mut self, name: &str) {
        let path = self.place.lock_file(name);
        let new = self.place.write("replacement", FOREIGN);
        std::fs::rename(new, &path).unwrap();
        let file = File::open(&path).unwrap();
        file.try_lock().unwrap();
        self.foreign.push((path, file));
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        assert_eq!(lease, None, "no program has a lease of a file");
        let path = self.place.lock_file(name);
        let file = File::options().create(true).append(true).open(&path).unwrap();
        let locked = file.try_lock().is_ok();
        if locked {
            self.foreign.push((path, file));
        }
        locked
    }

    fn foreign_unlock(&mut self, name: &str) {
        let path = self.place.lock_file(name);
        for (_, file) in self.foreign.extract_if(.., |(foreign, _)| *foreign == path) {
            // A process that was just forked by another test has a copy of the descriptor until it calls exec.
            file.unlock().unwrap();
        }
    }

    fn waiters(&self, name: &str) -> usize {
        self.noted(name, "line").len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let mut traces = self.noted(name, "members");
        traces.extend(self.noted(name, "line"));
        if let Ok(file) = File::open(self.place.lock_file(name)) {
            match file.try_lock() {
                Ok(()) => file.unlock().unwrap(),
                Err(_) => traces.push("locked".to_owned()),
            }
        }
        traces
    }

    fn is_untouched(&self, name: &str) -> bool {
        let path = self.place.lock_file(name);
        let is_ours = self.foreign.iter().any(|(foreign, _)| *foreign == path);
        // No other process can have locked it in the meantime without finding it free now.
        is_ours && std::fs::read_to_string(&path).unwrap() == FOREIGN && !flock_is_free(&path)
    }

    /// A directory is always present.
    fn restart(&mut self) {}

    fn wipe(&mut self) {
        for entry in std::fs::read_dir(self.place.locks()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        let names = std::fs::read_dir(self.place.locks()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        // The lock files themselves are locked.
        names.retain(|name| flock_is_free(&self.place.locks().join(name)));
        names
    }
}

super::list::every_check!(FileRig::new);
