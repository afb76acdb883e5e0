//! The command: started under a guarding process, signalled, stopped with its whole tree, and reported on. Knows
//! nothing of locks or stores, only of moments until when the command may live.
//!
//! dlock is two halves. The process that the user started (here: dlock) talks to the store. Between it and the command
//! sits the guarding process, which is the command's parent and keeps the deadline: when dlock is killed it stops the
//! tree at once, when dlock is stopped it does so before the lease ends. When the guarding process is killed or stopped,
//! dlock does the same. Both are subreapers (`PR_SET_CHILD_SUBREAPER`), so whichever survives inherits every orphan of
//! the tree and can tell when the last one is dead.

#[cfg(target_os = "linux")]
mod cgroup;
mod descriptors;
mod forwarding;
mod guard;
mod heartbeat;
mod inherited;
mod killer;
mod launch;
mod outbox;
mod parked;
mod procfs;
mod program;
pub mod protocol;
pub mod signals;
mod sleeper;
mod spare;
pub mod stop;
mod supervise;
pub mod sys;
mod terminal;
mod tree;

pub use inherited::{BeginError, Inherited};
pub use launch::{Half, Spec, SplitError, split};
pub use procfs::{parent_of, start_of, why_unusable as why_proc_is_unusable};
pub use program::{Program, ProgramError};
pub use supervise::{Event, Supervisor};
pub use terminal::Terminal;

/// Whether a cgroup could be made for a command; makes one and removes it.
///
/// # Errors
/// Why not, in a few words.
pub fn try_cgroup() -> Result<(), String> {
    let place = cgroup::CgroupPath::choose().ok_or("cgroup v2 is not mounted")?;
    match cgroup::Cgroup::create(&place) {
        Ok(cgroup) => {
            cgroup.remove();
            Ok(())
        }
        Err(error) => Err(match error.raw_os_error() {
            Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_lowercase(),
            None => error.to_string(),
        }),
    }
}

/// Stands in where there are no cgroups.
#[cfg(not(target_os = "linux"))]
mod cgroup {
    use std::convert::Infallible;
    use std::io;

    /// Never chosen.
    #[derive(Clone, Debug)]
    pub struct CgroupPath(Infallible);

    impl CgroupPath {
        /// There is none here.
        pub fn choose() -> Option<CgroupPath> {
            None
        }

        /// Never called.
        pub fn sweep(&self) {
            match self.0 {}
        }
    }

    /// Never made.
    pub struct Cgroup(Infallible);

    impl Cgroup {
        /// Never called.
        pub fn create(place: &CgroupPath) -> io::Result<Cgroup> {
            match place.0 {}
        }

        /// Never called.
        pub fn open(place: &CgroupPath) -> io::Result<Cgroup> {
            match place.0 {}
        }

        /// Never called.
        pub fn kill(&self) -> io::Result<()> {
            match self.0 {}
        }

        /// Never called.
        pub fn remove(&self) {
            match self.0 {}
        }
    }
}
