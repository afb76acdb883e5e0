//! Locks in files, and another program that locks a sidecar for short times.

use super::fault_plan::{NAMES, Rng};
use super::store_faults::FaultyStore;
use crate::support::place::Place;
use std::fs::File;
use std::os::fd::AsRawFd;

pub struct Files {
    place: Place,
    locked: Option<File>,
}

impl Files {
    /// The locks of this place.
    pub fn of(place: &Place) -> Self {
        Self { place: place.clone(), locked: None }
    }
}

impl FaultyStore for Files {
    fn disturb(&mut self, draw: &mut Rng) -> String {
        let name = NAMES[draw.between(0, NAMES.len() - 1)];
        self.locked = File::open(self.place.path(&format!("locks/{name}.dlock"))).ok();
        if let Some(file) = &self.locked {
            // SAFETY: the descriptor is open; the lock ends when the file is closed.
            unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
        }
        format!("sidecar of {name} locked")
    }

    fn heal(&mut self) {
        self.locked = None;
    }

    fn has_leases(&self) -> bool {
        false
    }

    fn traces(&self) -> Vec<String> {
        let is_idle = |name: &str| {
            let noted = self.place.noted(name);
            (noted["members"].to_string(), noted["line"].to_string()) == ("[]".into(), "[]".into())
                && self.place.lock_is_free(name)
        };
        let used = NAMES.iter().filter(|name| !is_idle(name)).map(ToString::to_string);
        let is_expected = |file: &str| {
            NAMES.iter().any(|name| {
                file.strip_prefix(name)
                    .is_some_and(|rest| [".lock", ".dlock", "%history.dlock"].contains(&rest))
            })
        };
        let files = std::fs::read_dir(self.place.locks()).unwrap().flatten();
        let files = files.map(|entry| entry.file_name().into_string().unwrap());
        let mut traces: Vec<String> = used.collect();
        traces.extend(files.filter(|file| !is_expected(file)));
        traces
    }
}
