//! A cgroup of the command's own, where the host lets us make one: `cgroup.kill` ends every process in it in one step,
//! however fast it forks (cgroup v2, Linux 5.14; `Documentation/admin-guide/cgroup-v2.rst`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A cgroup below the one that dlock runs in. Removed by [`Cgroup::remove`].
pub struct Cgroup {
    /// Where dlock is.
    parent: PathBuf,
    directory: PathBuf,
    handle: File,
    kill: File,
}

impl Cgroup {
    /// Makes an empty one, or says why not: no cgroup v2, no right to write there, a kernel before 5.14. All of these
    /// are ordinary; the caller does without.
    ///
    /// # Errors
    /// Any of the above.
    pub fn create() -> io::Result<Cgroup> {
        let (parent, directory) = paths(std::process::id() as i32)?;
        fs::create_dir(&directory).or_else(|error| match error.kind() {
            // Left behind by two halves that were killed at once; its number has come round.
            io::ErrorKind::AlreadyExists => {
                fs::remove_dir(&directory).and_then(|()| fs::create_dir(&directory))
            }
            _ => Err(error),
        })?;
        Cgroup::open(parent, &directory).inspect_err(|_| {
            let _ = fs::remove_dir(&directory);
        })
    }

    /// The one that the guarding process has made, if it has: to be used in its place.
    pub fn of(guard: i32) -> Option<Cgroup> {
        let (parent, directory) = paths(guard).ok()?;
        Cgroup::open(parent, &directory).ok()
    }

    fn open(parent: PathBuf, directory: &Path) -> io::Result<Cgroup> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        Ok(Cgroup {
            parent,
            directory: directory.to_owned(),
            handle: OpenOptions::new().read(true).custom_flags(flags).open(directory)?,
            kill: OpenOptions::new().write(true).open(directory.join("cgroup.kill"))?,
        })
    }

    /// For [`super::sys::fork_into_cgroup`].
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Kills every process in it and below it, those being forked too.
    ///
    /// # Errors
    /// The cgroup was taken away.
    pub fn kill(&self) -> io::Result<()> {
        (&self.kill).write_all(b"1")
    }

    /// Removes it. What still lives in it (`--orphans leave`) goes back to where dlock is.
    pub fn remove(&self) {
        // A process may fork while the list is read; what was missed is found in the next round.
        for _ in 0..MOST_ROUNDS {
            match fs::remove_dir(&self.directory) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                _ => return,
            }
            let members = fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default();
            for pid in members.lines() {
                let _ = fs::write(self.parent.join("cgroup.procs"), pid);
            }
        }
    }
}

/// How often what is left in it is looked for.
const MOST_ROUNDS: usize = 100;

/// Where the calling process is, and where a guarding process of this number makes its cgroup.
fn paths(guard: i32) -> io::Result<(PathBuf, PathBuf)> {
    let memberships = fs::read_to_string("/proc/self/cgroup")?;
    let own = version_2(&memberships).ok_or(io::ErrorKind::NotFound)?;
    let parent = mount_point()?.join(own.trim_start_matches('/'));
    let directory = parent.join(format!("dlock-{guard}"));
    Ok((parent, directory))
}

/// The cgroup v2 line of `/proc/PID/cgroup` (`cgroups(7)`).
fn version_2(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Where cgroup v2 is mounted: alone, or beside version 1 (hybrid).
fn mount_point() -> io::Result<&'static Path> {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.join("cgroup.procs").exists())
        .ok_or_else(|| io::ErrorKind::NotFound.into())
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
}
