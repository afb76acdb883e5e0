//! A cgroup whose members can be frozen, as all processes of a suspended host are.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::wait::{boot_ns, until};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A cgroup (version 2) for one test only.
pub struct Freezer(PathBuf);

impl Freezer {
    /// Creates one below the cgroup of the tests.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = std::fs::read_to_string("/proc/mounts").expect("/proc/mounts");
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = mounts.find(|fields| fields[2] == "cgroup2").expect("a mounted cgroup version 2");
        let own = std::fs::read_to_string("/proc/self/cgroup").expect("/proc/self/cgroup");
        let own =
            own.lines().find_map(|line| line.strip_prefix("0::/")).expect("a cgroup version 2").to_owned();
        let name = format!("it-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = PathBuf::from(mount[1]).join(own).join(name);
        std::fs::create_dir(&directory)
            .expect("a cgroup can be made (by root, where /sys/fs/cgroup is writable)");
        Self(directory)
    }

    /// Puts a dlock and everything it starts into it.
    pub fn of(&self, run: Dlock) -> Dlock {
        run.after_shell(&format!("echo $$ >'{}' || exit 99", self.0.join("cgroup.procs").display()))
    }

    /// Freezes all of its processes; none runs when this returns.
    #[track_caller]
    pub fn freeze(&self) {
        std::fs::write(self.0.join("cgroup.freeze"), "1").expect("a cgroup that can be frozen");
        until(SOON, "a frozen cgroup", || {
            std::fs::read_to_string(self.0.join("cgroup.events"))
                .is_ok_and(|events| events.contains("frozen 1"))
        });
    }

    /// Thaws all of its processes, and returns a moment before that, on the clock that counts through suspend.
    pub fn thaw(&self) -> u64 {
        let before = boot_ns();
        std::fs::write(self.0.join("cgroup.freeze"), "0").expect("a cgroup that can be thawed");
        before
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        let _ = std::fs::write(self.0.join("cgroup.freeze"), "0");
        for _ in 0..1000 {
            // Also those of a dlock that was killed.
            for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(entry.path());
            }
            if std::fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}
