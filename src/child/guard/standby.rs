//! A third process, which exists only while dlock is stopped: if the guard is killed then, it is the only process left
//! to kill the tree.

use std::io::{self, PipeWriter, Read, Write};
use std::time::Duration;

use nix::unistd::ForkResult;

use super::cgroup::Cgroup;
use super::killer::Killer;
use super::sys;
use super::tree::Tree;

/// The guard's handle of the spare process.
pub(super) struct Spare {
    /// Its pid, until it is reaped.
    pub(super) pid: i32,
    dismissal: Option<PipeWriter>,
}

impl Spare {
    /// Forks the spare process. It waits until the calling process is dead, then kills `orphans`: what remains of the
    /// tree by then, as the descendants of the process that inherits them.
    ///
    /// # Errors
    /// No process or descriptor is available.
    pub(super) fn fork(orphans: Tree, cgroup: Option<&Cgroup>) -> io::Result<Spare> {
        let (mut dismissal, writer) = io::pipe()?;
        match sys::fork()? {
            ForkResult::Parent { child } => Ok(Spare { pid: child.as_raw(), dismissal: Some(writer) }),
            ForkResult::Child => {
                drop(writer);
                let _ = nix::unistd::setsid();
                let is_dismissed = dismissal.read(&mut [0]).is_ok_and(|count| count > 0);
                if !is_dismissed {
                    kill(orphans, cgroup);
                }
                sys::exit_now(0)
            }
        }
    }

    /// Lets the spare process exit without doing anything.
    pub(super) fn dismiss(&mut self) {
        if let Some(mut dismissal) = self.dismissal.take() {
            let _ = dismissal.write_all(b".");
        }
    }
}

/// Dead processes stay zombies, because the process that inherits them is stopped.
fn kill(orphans: Tree, cgroup: Option<&Cgroup>) {
    if let Some(cgroup) = cgroup {
        let _ = cgroup.kill();
    }
    let mut killer = Killer::of(orphans);
    while !killer.is_done() {
        let pass = killer.pass();
        // An empty pass proves something only after a while.
        std::thread::sleep(killer.pause_after(pass).max(Duration::from_millis(5)));
    }
}
