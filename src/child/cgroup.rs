//! A cgroup for the command, if the host allows one: `cgroup.kill` kills every process in it in one step, however fast
//! it forks (cgroup v2, Linux 5.14; `Documentation/admin-guide/cgroup-v2.rst`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{procfs, sys};
use crate::random;

/// A cgroup below the one that dlock runs in. Removed by [`Cgroup::remove`].
pub struct Cgroup {
    path: CgroupPath,
    handle: File,
    kill: File,
}

/// The path of a command's cgroup, which may not exist. The guard chooses it and reports it, so that dlock can kill the
/// processes in it as well; the name is random, because pids repeat in every PID namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPath {
    /// The cgroup of dlock.
    parent: PathBuf,
    directory: PathBuf,
}

impl CgroupPath {
    /// Chooses a path below the cgroup of the calling process; `None` without cgroup v2, or if the file system shows
    /// another cgroup under that path: it may belong to another cgroup namespace (`cgroup_namespaces(7)`).
    pub fn choose() -> Option<CgroupPath> {
        let memberships = procfs::read("/proc/self/cgroup").ok()?;
        let parent = mount_point()?.join(inside(version_2(&memberships)?)?);
        if !is_own(&parent) {
            return None;
        }
        let directory = parent.join(format!("{PREFIX}{}-{}", random::id(), std::process::id()));
        Some(CgroupPath { parent, directory })
    }

    /// Removes empty sibling cgroups, left behind when a dlock and its guard were killed at once. The kernel makes the
    /// removals on a host wait for each other, so nothing urgent may be due.
    pub fn sweep(&self) {
        let Ok(siblings) = fs::read_dir(&self.parent) else { return };
        for sibling in siblings.flatten() {
            let is_ours = sibling.file_name().to_str().is_some_and(is_chosen);
            let age = sibling.metadata().ok().and_then(|metadata| metadata.modified().ok()?.elapsed().ok());
            // A recent one may be about to receive its command.
            if is_ours && age.is_some_and(|age| age > STALE) && is_empty(&sibling.path()) {
                let _ = remove_with_nested(&sibling.path());
            }
        }
    }
}

/// Returns whether a name is one that [`CgroupPath::choose`] may have chosen.
fn is_chosen(name: &str) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(id, pid)| {
        id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && pid.parse::<u32>().is_ok()
    })
}

const PREFIX: &str = "dlock-";
/// A guard takes less than a millisecond between creating a cgroup and forking into it.
const STALE: Duration = Duration::from_secs(2);

impl Cgroup {
    /// Creates an empty cgroup.
    ///
    /// # Errors
    /// No permission to write there, or a kernel before 5.14. Both are common; the caller continues without a cgroup.
    pub fn create(path: &CgroupPath) -> io::Result<Cgroup> {
        fs::create_dir(&path.directory)?;
        Cgroup::open(path).inspect_err(|_| {
            let _ = fs::remove_dir(&path.directory);
        })
    }

    /// Opens the cgroup that the guard has created.
    ///
    /// # Errors
    /// It has not created one.
    pub fn open(path: &CgroupPath) -> io::Result<Cgroup> {
        Ok(Cgroup {
            path: path.clone(),
            handle: File::open(&path.directory)?,
            kill: OpenOptions::new().write(true).open(path.directory.join("cgroup.kill"))?,
        })
    }

    /// Returns the descriptor for [`super::sys::fork_into_cgroup`].
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Kills every process in the cgroup and below it, including those being forked.
    ///
    /// # Errors
    /// The cgroup was removed.
    pub fn kill(&self) -> io::Result<()> {
        (&self.kill).write_all(b"1")
    }

    /// Removes the cgroup. Processes that still live in it (`--orphans leave`) move back to the cgroup of dlock.
    pub fn remove(&self) {
        // A process may fork while the list is read; a missed one is found in the next round.
        for _ in 0..MAX_ROUNDS {
            match remove_with_nested(&self.path.directory) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                _ => return,
            }
            let members = procfs::read(self.path.directory.join("cgroup.procs")).unwrap_or_default();
            for pid in members.lines() {
                let _ = fs::write(self.path.parent.join("cgroup.procs"), pid);
            }
        }
    }
}

/// Removes a cgroup, and before it those left inside by nested dlocks that were killed with it. A cgroup that is in use
/// cannot be removed.
fn remove_with_nested(directory: &Path) -> io::Result<()> {
    let removed = fs::remove_dir(directory);
    if !removed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
        return removed;
    }
    for inner in fs::read_dir(directory)?.flatten() {
        if inner.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            let _ = remove_with_nested(&inner.path());
        }
    }
    fs::remove_dir(directory)
}

/// Returns whether no process is in the cgroup or below it.
fn is_empty(directory: &Path) -> bool {
    let events = procfs::read(directory.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 0")
}

/// The limit of the rounds that move the remaining processes.
const MAX_ROUNDS: usize = 100;

/// Returns whether this is the cgroup of the calling process. The list of its members, which says so on every kernel, may be a
/// long one.
fn is_own(directory: &Path) -> bool {
    let number = fs::metadata(directory).map(|metadata| metadata.ino());
    if sys::own_cgroup().is_some_and(|own| number.is_ok_and(|number| number == own)) {
        return true;
    }
    let members = procfs::read(directory.join("cgroup.procs")).unwrap_or_default();
    let own = std::process::id().to_string();
    members.lines().any(|member| member == own)
}

/// Returns the cgroup v2 path of `/proc/PID/cgroup` (`cgroups(7)`).
fn version_2(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Returns the path relative to the mount point. A path that leads out of it (`/../..`) belongs to a cgroup outside the
/// namespace.
fn inside(path: &str) -> Option<&str> {
    let path = path.trim_start_matches('/');
    (!path.split('/').any(|part| part == "..")).then_some(path)
}

/// Returns where cgroup v2 is mounted: alone, or beside version 1 (hybrid).
fn mount_point() -> Option<&'static Path> {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.join("cgroup.procs").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_2_line_is_found() {
        assert_eq!(
            version_2("9:name=systemd:/\n1:cpu:/\n0::/system.slice/cron.service\n"),
            Some("/system.slice/cron.service")
        );
        assert_eq!(version_2("1:cpu:/\n"), None);
    }

    #[test]
    fn a_path_that_leads_out_of_the_namespace_is_not_used() {
        assert_eq!(inside("/system.slice/a..b"), Some("system.slice/a..b"));
        assert_eq!(inside("/"), Some(""));
        assert_eq!(inside("/../system.slice"), None);
        assert_eq!(inside("/a/../../b"), None);
    }
}
