//! The tree of a command: the processes that descend from one of dlock's halves. As subreapers the halves are ancestors of
//! every process of the tree: those that forked twice and those in sessions of their own too.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use super::procfs::{self, Children, Stat};
use super::sys::{self, OwnChild};
use crate::clock::Moment;

/// The descendants of a process.
#[derive(Clone, Debug)]
pub struct Tree {
    root: i32,
    /// Children of the root that do not belong to the tree, nor does what descends from them.
    strangers: HashSet<i32>,
}

/// How many numbers are tried in each direction without `/proc`: some milliseconds.
const SWEEP: i32 = 1 << 16;

/// A process of the tree that a walk came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub pid: i32,
    /// The process that it was found below.
    pub parent: i32,
}

impl Member {
    /// Whether it is a child of the calling process. Its number means no other process until we reap it.
    fn is_own_child(&self) -> bool {
        self.parent == std::process::id() as i32
    }
}

/// How a walk goes on after a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With the children of this member too.
    Descend,
    /// Without them.
    Skip,
    /// Not at all.
    Stop,
}

/// What a walk has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Coverage {
    /// Every process that was there when it began, or those that `visit` wanted to see.
    Complete,
    /// Perhaps not every one: there is no `/proc`, or no descriptor or memory to read it with.
    Partial,
}

/// What a tree consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Processes.
    pub processes: usize,
    /// Their threads.
    pub threads: usize,
}

impl Census {
    /// What a process takes to die on one processor, measured from the first SIGKILL to the last death of a tree of thousands.
    const PROCESS: Duration = Duration::from_micros(200);
    /// The same for each further thread.
    const THREAD: Duration = Duration::from_micros(100);

    /// How long a tree of this size takes to die, on the processors that we may use.
    pub fn time_to_die(&self) -> Duration {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let further_threads = self.threads.saturating_sub(self.processes);
        let work = Census::PROCESS * self.processes as u32 + Census::THREAD * further_threads as u32;
        work / processors
    }
}

impl Tree {
    /// Everything below this process, except its `strangers` and what is below them.
    pub fn below(root: i32, strangers: HashSet<i32>) -> Tree {
        Tree { root, strangers }
    }

    /// The root has reaped this child: its number may mean another process from now on.
    pub fn forget(&mut self, pid: i32) {
        self.strangers.remove(&pid);
    }

    /// Shows every process of the tree to `visit`, parents before their children, and of children the youngest first: in a
    /// line of processes that fork a successor and end, the youngest is the one that is alive.
    ///
    /// A process is shown before its children are looked up, so it can be signalled the moment it is found. What a dying
    /// process leaves behind becomes a child of the root's: a further walk finds it. Where `/proc` cannot be read, only the
    /// children of the calling process are shown, if that is the root.
    pub fn walk(&self, mut visit: impl FnMut(Member) -> Next) -> Coverage {
        let own = std::process::id() as i32;
        if !procfs::is_usable() {
            self.sweep(visit);
            return Coverage::Partial;
        }
        let mut coverage = Coverage::Complete;
        let mut seen: HashSet<i32> = HashSet::from([self.root, own]);
        let mut queue = vec![self.root];
        let mut unlisted = HashSet::new();
        let mut next = 0;
        loop {
            let found = match queue.get(next) {
                Some(parent) => match procfs::children(*parent) {
                    Children::Listed(children) => {
                        children.into_iter().map(|child| (child, *parent)).collect()
                    }
                    Children::Unlisted => {
                        unlisted.insert(*parent);
                        Vec::new()
                    }
                    Children::Unreadable if *parent == self.root => {
                        self.sweep(visit);
                        return Coverage::Partial;
                    }
                    Children::Unreadable => {
                        coverage = Coverage::Partial;
                        Vec::new()
                    }
                },
                None if unlisted.is_empty() => return coverage,
                // One scan for all of them.
                None => children_by_scan(&std::mem::take(&mut unlisted)),
            };
            next = (next + 1).min(queue.len());
            for (pid, parent) in found.into_iter().rev() {
                if (parent == self.root && self.strangers.contains(&pid)) || !seen.insert(pid) {
                    continue;
                }
                // What it leaves behind is a child of the root's already. There may be thousands that have not been reaped.
                if parent == own && sys::own_child(pid) == OwnChild::Dead {
                    continue;
                }
                match visit(Member { pid, parent }) {
                    Next::Descend => queue.push(pid),
                    Next::Skip => {}
                    Next::Stop => return coverage,
                }
            }
        }
    }

    /// Shows the living children of this process among the `count` process numbers that were given out last, the youngest
    /// first. Where lines of processes fork and end faster than the dead are reaped, a list of all children is out of date
    /// before it is read.
    pub fn walk_youngest(&self, count: i32, mut visit: impl FnMut(Member)) {
        let own = std::process::id() as i32;
        let Some(newest) = procfs::newest().filter(|_| own == self.root) else { return };
        for pid in ((newest - count).max(2)..=newest).rev() {
            if !self.strangers.contains(&pid) && sys::own_child(pid) == OwnChild::Alive {
                visit(Member { pid, parent: own });
            }
        }
    }

    /// Without `/proc` or a descriptor: shows the children of this process, found by trying the numbers around its own. What is below them is
    /// found after its parent has died.
    fn sweep(&self, mut visit: impl FnMut(Member) -> Next) {
        let own = std::process::id() as i32;
        if own != self.root {
            return;
        }
        // Numbers are given out upwards, and from the beginning again at the end.
        for pid in (own + 1..own.saturating_add(SWEEP)).chain((own - SWEEP).max(2)..own) {
            if !self.strangers.contains(&pid)
                && sys::is_own_child(pid)
                && visit(Member { pid, parent: own }) == Next::Stop
            {
                return;
            }
        }
    }

    /// Every process of the tree, parents before children. Without `/proc` only our own children can be found.
    pub fn members(&self) -> Vec<i32> {
        let mut members = Vec::new();
        let _ = self.walk(|member| {
            members.push(member.pid);
            Next::Descend
        });
        members
    }

    /// Counts processes and threads; breaks off at `until` and answers what it has counted by then.
    pub fn census(&self, until: Moment) -> Census {
        let mut census = Census::default();
        let _ = self.walk(|member| {
            census.processes += 1;
            census.threads += procfs::threads_of(member.pid);
            if Moment::now() < until { Next::Descend } else { Next::Stop }
        });
        census
    }

    /// Signals a member that a walk has just shown.
    ///
    /// # Errors
    /// `ESRCH` when it is gone, `EPERM` when we may not.
    pub fn signal(&self, member: Member, signal: i32) -> io::Result<()> {
        if member.is_own_child() {
            // Also one that /proc hides from us (hidepid).
            return sys::kill(member.pid, signal);
        }
        self.signal_pinned(member, signal)
    }

    /// Signals a process whose number may mean another one by now: a pidfd pins whatever it means, and only if that is still
    /// where it was found, or has lost its parent to a subreaper of ours, is it signalled.
    #[cfg(target_os = "linux")]
    fn signal_pinned(&self, member: Member, signal: i32) -> io::Result<()> {
        use std::os::fd::AsFd;
        let gone = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
        let pinned = match sys::pidfd_open(member.pid) {
            Err(error) if gone(&error) => return Err(error),
            pinned => pinned,
        };
        let expected = [member.parent, self.root, std::process::id() as i32];
        if !procfs::parent_of(member.pid).is_some_and(|parent| expected.contains(&parent)) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        match pinned.and_then(|pidfd| sys::pidfd_send_signal(pidfd.as_fd(), signal)) {
            // An old kernel, or a sandbox that does not know the call: kill(2) tells the truth there.
            Err(error) if !gone(&error) => sys::kill(member.pid, signal),
            result => result,
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn signal_pinned(&self, member: Member, signal: i32) -> io::Result<()> {
        sys::kill(member.pid, signal)
    }
}

/// The children of these processes, found by asking every process for its parent.
fn children_by_scan(parents: &HashSet<i32>) -> Vec<(i32, i32)> {
    let parent = |pid| procfs::parent_of(pid).filter(|parent| parents.contains(parent));
    procfs::all().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// The children of a process, however many threads it has.
pub fn children_of(pid: i32) -> HashSet<i32> {
    match procfs::children(pid) {
        Children::Listed(children) => children.into_iter().collect(),
        Children::Unlisted => {
            children_by_scan(&HashSet::from([pid])).into_iter().map(|(child, _)| child).collect()
        }
        Children::Unreadable => {
            let mut children = HashSet::new();
            Tree::below(pid, HashSet::new()).sweep(|member| {
                children.insert(member.pid);
                Next::Skip
            });
            children
        }
    }
}

/// Whether another process than this one and those in `but_for`, or children of those, is in our process group; `None` where
/// that cannot be known.
pub fn group_is_shared(but_for: &[i32]) -> Option<bool> {
    if !procfs::is_usable() {
        return None;
    }
    let group = nix::unistd::getpgrp().as_raw();
    let own = std::process::id() as i32;
    let other =
        procfs::all().into_iter().filter(|pid| *pid != own && !but_for.contains(pid)).find_map(|pid| {
            let stat = Stat::of(pid)?;
            // The parked command may not be among them yet.
            (stat.group == group && !but_for.contains(&stat.parent)).then_some(())
        });
    Some(other.is_some())
}
