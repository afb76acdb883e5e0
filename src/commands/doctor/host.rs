//! The requirements on this host, without which a command could outlive its lock.

use crate::backend::diagnosis::Finding;

/// Checks how the processes of a command are found when it has to be stopped.
pub fn processes() -> Finding {
    if let Some(what) = crate::child::why_proc_is_unusable() {
        return Finding::warning(
            "processes",
            what,
            "when a command has to be stopped, its grandchildren get SIGKILL without a preceding SIGTERM, one generation after the other",
            "mount /proc",
        );
    }
    match crate::child::try_cgroup() {
        Ok(()) => Finding::ok("processes", "a cgroup can be made: a whole tree is killed in one step"),
        Err(why) => {
            Finding::ok("processes", format!("found one by one in /proc; no cgroup of their own: {why}"))
        }
    }
}
