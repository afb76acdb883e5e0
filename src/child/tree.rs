//! The process tree of a command: the descendants of dlock or its guard. As subreapers they are ancestors of every
//! process of the tree, including those that forked twice and those in sessions of their own.

use std::collections::HashSet;
use std::time::Duration;

use nix::errno::Errno;

use super::procfs::{self, Children, Stat};
use super::sys;
use super::wait::{self, OwnChild};
use crate::clock::Moment;

/// The descendants of a process.
#[derive(Clone, Debug)]
pub struct Tree {
    root: i32,
    /// Children of the root that, with their descendants, do not belong to the tree.
    strangers: HashSet<i32>,
}

/// How many pids are tried in each direction without `/proc`: some milliseconds.
const SWEEP: i32 = 1 << 16;

/// A process of the tree that a walk has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its pid.
    pub pid: i32,
    /// The parent below which it was found.
    pub parent: i32,
}

impl Member {
    /// Returns whether it is a child of the calling process. Its pid cannot be reused until it is reaped.
    fn is_own_child(&self) -> bool {
        self.parent == std::process::id() as i32
    }
}

/// How a walk continues after a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Visit the children of this member too.
    Descend,
    /// Skip its children.
    Skip,
}

/// How much of the tree a walk has visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Coverage {
    /// Every process that existed when it began, except what `visit` skipped.
    Complete,
    /// Perhaps not every one: the time was over, `/proc` does not exist, or no descriptor or memory is available to read it.
    Partial,
}

/// The size of a tree, as far as it was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// The number of processes.
    pub processes: usize,
    /// The number of their threads.
    pub threads: usize,
}

impl Census {
    /// The time that a process takes to die on one CPU, measured from the first SIGKILL to the last death of a tree of
    /// thousands.
    const PROCESS: Duration = Duration::from_micros(200);
    /// The same for each further thread.
    const THREAD: Duration = Duration::from_micros(100);

    /// Returns how long a tree of this size takes to die on the available CPUs.
    pub fn time_to_die(&self) -> Duration {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let further_threads = self.threads.saturating_sub(self.processes);
        let work = Census::PROCESS * self.processes as u32 + Census::THREAD * further_threads as u32;
        work / processors
    }
}

impl Tree {
    /// Returns the tree of everything below this process, except its `strangers` and what is below them.
    pub fn below(root: i32, strangers: HashSet<i32>) -> Tree {
        Tree { root, strangers }
    }

    /// Notes that the root has reaped this child: its pid may be reused from now on.
    pub fn forget(&mut self, pid: i32) {
        self.strangers.remove(&pid);
    }

    /// Passes every process of the tree to `visit`, parents before their children, and the youngest child first: in a
    /// chain of processes that fork a successor and end, the youngest is the one that is alive.
    ///
    /// A process is visited before its children are read, so that it can be signalled the moment it is found. The
    /// children of a dying process become children of the root: a further walk finds them. If `/proc` cannot be read,
    /// only the children of the calling process are visited, if that is the root.
    ///
    /// It ends at `until`: also while it passes by thousands of dead children, which nobody visits.
    pub fn walk(&self, until: Option<Moment>, mut visit: impl FnMut(Member) -> Next) -> Coverage {
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
                if is_over(until) {
                    return Coverage::Partial;
                }
                if (parent == self.root && self.strangers.contains(&pid)) || !seen.insert(pid) {
                    continue;
                }
                // Its children have already been reparented to the root. There may be thousands of unreaped children.
                if parent == own && wait::own_child(pid) == OwnChild::Dead {
                    continue;
                }
                match visit(Member { pid, parent }) {
                    Next::Descend => queue.push(pid),
                    Next::Skip => {}
                }
            }
        }
    }

    /// Returns the living children of this process among the `count` pids assigned last, the youngest first. If chains of
    /// processes fork and end faster than the dead are reaped, a list of all children is out of date before it is read.
    pub fn youngest(&self, count: i32) -> impl Iterator<Item = Member> {
        let pids =
            procfs::newest().into_iter().flat_map(move |newest| ((newest - count).max(2)..=newest).rev());
        self.living_children(pids)
    }

    /// Without `/proc` or a descriptor: visits the children of this process, found by trying the pids around its own.
    /// Their descendants are found after their parents have died.
    fn sweep(&self, mut visit: impl FnMut(Member) -> Next) {
        let own = std::process::id() as i32;
        // Pids are assigned in ascending order, and start over at the end.
        let pids = (own + 1..own.saturating_add(SWEEP)).chain((own - SWEEP).max(2)..own);
        for member in self.living_children(pids) {
            visit(member);
        }
    }

    /// Returns the members of the tree among these pids that are living children of this process; none if another
    /// process is the root.
    fn living_children(&self, pids: impl Iterator<Item = i32>) -> impl Iterator<Item = Member> {
        let own = std::process::id() as i32;
        pids.take_while(move |_| own == self.root)
            .filter(|pid| !self.strangers.contains(pid) && wait::own_child(*pid) == OwnChild::Alive)
            .map(move |pid| Member { pid, parent: own })
    }

    /// Returns every process of the tree, parents before children. Without `/proc` only the children of this process
    /// can be found.
    pub fn members(&self) -> Vec<i32> {
        let mut members = Vec::new();
        let _ = self.walk(None, |member| {
            members.push(member.pid);
            Next::Descend
        });
        members
    }

    /// Returns how much longer than a small tree this one takes to die, and how long the measurement has taken. It ends at `until`:
    /// then the result is no less than the one `before`.
    pub fn reserve(&self, before: Duration, until: Moment) -> (Duration, Duration) {
        let (begin, scheduled) = (Moment::now(), procfs::scheduled_time());
        let (census, coverage) = self.census(until);
        // The walk that kills takes as long again, including the time spent waiting for a processor. The time during which
        // this process was frozen or its host suspended does not predict the next walk.
        let spent = scheduled.and_then(|before| Some(procfs::scheduled_time()?.saturating_sub(before)));
        let elapsed = Moment::now() - begin;
        let cost = spent.map_or(elapsed, |spent| spent.min(elapsed));
        let counted = census.time_to_die() + cost * 2;
        match coverage {
            Coverage::Complete => (counted, cost),
            // As much again for what there was no time to count.
            Coverage::Partial => (before.max(counted * 2), cost),
        }
    }

    /// Counts processes and threads; stops at `until`, and returns what it has counted by then.
    pub fn census(&self, until: Moment) -> (Census, Coverage) {
        let mut census = Census::default();
        let coverage = self.walk(Some(until), |member| {
            census.processes += 1;
            census.threads += procfs::threads_of(member.pid);
            Next::Descend
        });
        (census, coverage)
    }

    /// Sends signals to a member that a walk has just visited.
    ///
    /// # Errors
    /// `ESRCH` if it is gone, `EPERM` if it may not be signalled.
    pub fn signal(&self, member: Member, signals: &[i32]) -> nix::Result<()> {
        if member.is_own_child() {
            // Reaches also a child that /proc hides (hidepid).
            return signals.iter().try_for_each(|signal| sys::kill(member.pid, *signal));
        }
        self.signal_pinned(member, signals)
    }

    /// Signals a process whose pid may have been reused: a pidfd pins the process, which is signalled only if its
    /// parent is still the one under which it was found, or a subreaper of dlock has inherited it.
    fn signal_pinned(&self, member: Member, signals: &[i32]) -> nix::Result<()> {
        use std::os::fd::{AsFd, OwnedFd};
        let pinned = sys::pidfd_open(member.pid);
        if let Err(Errno::ESRCH) = pinned {
            return Err(Errno::ESRCH);
        }
        let expected = [member.parent, self.root, std::process::id() as i32];
        if !procfs::parent_of(member.pid).is_some_and(|parent| expected.contains(&parent)) {
            return Err(Errno::ESRCH);
        }
        let send = |pidfd: &OwnedFd| {
            signals.iter().try_for_each(|signal| sys::pidfd_send_signal(pidfd.as_fd(), *signal))
        };
        match pinned.and_then(|pidfd| send(&pidfd)) {
            Ok(()) => Ok(()),
            Err(Errno::ESRCH) => Err(Errno::ESRCH),
            // An old kernel, or a sandbox that does not know the call: kill(2) gives the true result there.
            Err(_) => signals.iter().try_for_each(|signal| sys::kill(member.pid, *signal)),
        }
    }
}

/// Returns whether the time for a walk, or for signalling what it has found, is over.
pub fn is_over(until: Option<Moment>) -> bool {
    until.is_some_and(|until| Moment::now() >= until)
}

/// Returns the children of these processes, found by reading the parent of every process.
fn children_by_scan(parents: &HashSet<i32>) -> Vec<(i32, i32)> {
    let parent = |pid| procfs::parent_of(pid).filter(|parent| parents.contains(parent));
    procfs::all().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// Returns the children of a process, however many threads it has.
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

/// Returns whether the process group contains a process other than this one, those in `except`, and their children;
/// `None` if that cannot be determined.
pub fn group_is_shared(except: &[i32]) -> Option<bool> {
    if !procfs::is_usable() {
        return None;
    }
    let group = nix::unistd::getpgrp().as_raw();
    let own = std::process::id() as i32;
    let other =
        procfs::all().into_iter().filter(|pid| *pid != own && !except.contains(pid)).find_map(|pid| {
            let stat = Stat::of(pid)?;
            // The parked command may not be among them yet.
            (stat.group == group && !except.contains(&stat.parent)).then_some(())
        });
    Some(other.is_some())
}
