//! The children of dlock: the guard, and what dlock has to kill itself when the guard fails.
//!
//! What always holds: a stranger, which was a child of dlock before there was a guard, is never killed.

use std::collections::HashSet;
use std::time::Duration;

use super::Supervisor;
use crate::child::cgroup::Cgroup;
use crate::child::heartbeat::GuardState;
use crate::child::killer::Killer;
use crate::child::protocol::Event;
use crate::child::tree::{self, Tree};
use crate::child::wait::{self, Change};
use crate::child::{procfs, sys};

impl Supervisor {
    /// Later, other strangers can only come from those, or, if dlock is the first process of a PID namespace, from
    /// anywhere in it.
    pub(super) fn update_strangers(&mut self) {
        if !self.strangers.is_empty() || std::process::id() == 1 {
            self.find_strangers();
        }
    }

    pub(super) fn guard_state(&self) -> GuardState {
        if procfs::is_stopped(self.guard) { GuardState::Stopped } else { GuardState::Running }
    }

    /// While the guard lives, every other child of dlock is a stranger: the guard inherits the orphans of the tree.
    fn find_strangers(&mut self) {
        let mut children = tree::children_of(std::process::id() as i32);
        children.remove(&self.guard);
        if !self.guard_reaped && !procfs::is_zombie(self.guard) {
            self.strangers = children;
        }
    }

    /// After SIGCHLD: returns an event if the guard was stopped. [`Supervisor::next`] reports its death.
    pub fn guard_stopped(&mut self) -> Option<Event> {
        let stopped = self.reap();
        self.update_strangers();
        stopped.then(|| Event::GuardLost("the guard process was stopped".into()))
    }

    /// Reaps the children that have died. Returns whether the guard was stopped.
    pub fn reap(&mut self) -> bool {
        let mut stopped = false;
        while let Ok(Some((pid, change))) = wait::wait_any() {
            match change {
                Change::Exited(_) | Change::Killed(_) => self.reaped(pid),
                Change::Stopped(_) if pid == self.guard => stopped = true,
                Change::Stopped(_) | Change::Continued => {}
            }
        }
        stopped
    }

    /// Continues a guard that was stopped.
    pub fn continue_guard(&self) {
        let _ = sys::kill(self.guard, libc::SIGCONT);
    }

    fn reaped(&mut self, pid: i32) {
        self.guard_reaped |= pid == self.guard;
        self.strangers.remove(&pid);
        self.forwarder.reaped(pid);
    }

    /// Takes over when the guard has failed: kills it (dlock then inherits its orphans) and the whole tree, and returns
    /// when the last process is dead. Each one that this user may not signal is reported once. Dropping the future leaves the
    /// remaining processes alive.
    pub async fn kill_tree(&mut self, mut on_not_permitted: impl FnMut(i32)) {
        if !self.guard_reaped {
            let _ = sys::kill(self.guard, libc::SIGKILL);
        }
        let own = std::process::id() as i32;
        let mut killer = Killer::begin(Tree::below(own, self.strangers.clone()), self.cgroup().as_ref());
        let mut reported = HashSet::new();
        loop {
            let pass = killer.pass();
            let not_permitted = killer.not_permitted().iter().copied();
            not_permitted.filter(|pid| reported.insert(*pid)).for_each(&mut on_not_permitted);
            let has_children = self.reap_into(&mut killer);
            if !has_children || killer.is_done() {
                self.finished = true;
                self.guard_reaped = true;
                self.cgroup().inspect(Cgroup::remove);
                return;
            }
            match killer.pause_after(pass) {
                Duration::ZERO => tokio::task::yield_now().await,
                pause => tokio::time::sleep(pause).await,
            }
        }
    }

    /// Reaps the children that have died, and returns whether any child is left.
    fn reap_into(&mut self, killer: &mut Killer) -> bool {
        for change in wait::pending_changes() {
            match change {
                Ok((pid, Change::Exited(_) | Change::Killed(_))) => {
                    self.reaped(pid);
                    killer.forget(pid);
                }
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Returns the command's cgroup, if the guard has created one.
    fn cgroup(&self) -> Option<Cgroup> {
        self.cgroup_path.as_ref().and_then(|path| Cgroup::open(path).ok())
    }
}
