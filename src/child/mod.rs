//! The command: it is started under a guard process, signalled, stopped together with its whole process tree, and its
//! end is reported. This module knows nothing about locks or stores, only the moments until which the command may live.
//!
//! dlock runs as two processes. The one that the user started (here: dlock, or the supervisor) talks to the store. The
//! guard runs between it and the command: it is the parent of the command and enforces the deadline. When dlock is
//! killed, the guard stops the tree at once; when dlock is stopped, it does so before the lease ends. When the guard is
//! killed or stopped, dlock does the same. Both are subreapers (`PR_SET_CHILD_SUBREAPER`), so the one that survives
//! inherits every orphan of the tree and can detect when the last one is dead.
//!
//! Called by `commands`, which joins it with the lease. What always holds: while the command or anything of its tree is
//! alive, one of the two processes is alive that will stop it at the deadline.

mod cgroup;
mod command;
mod deadlines;
mod descriptors;
mod forwarder;
mod guard;
mod heartbeat;
mod inherited;
mod killer;
mod launch;
mod mark;
mod parked;
mod procfs;
mod program;
pub mod protocol;
pub mod signals;
pub mod stop;
mod supervisor;
pub mod sys;
mod terminal;
mod terminator;
mod tree;
mod wait;

pub use deadlines::Deadlines;
pub use inherited::{BeginError, Inherited};
pub use launch::{ForkError, ForkedGuard, fork_guard};
pub use procfs::{parent_of, start_of, why_unusable as why_proc_is_unusable};
pub use program::{Program, ProgramError};
pub use protocol::Event;
pub use supervisor::Supervisor;

/// Creates a cgroup as for a command, and removes it.
///
/// # Errors
/// The reason why it failed, in a few words.
pub fn try_cgroup() -> Result<(), String> {
    let path = cgroup::CgroupPath::choose().ok_or("cgroup v2 is not mounted")?;
    match cgroup::Cgroup::create(&path) {
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
