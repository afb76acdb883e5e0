//! A third process, which exists only while dlock is stopped: if the guard is killed then, or stopped as well, it is the
//! only process left to kill the tree.

use std::collections::HashSet;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{ForkResult, getpid, getppid, setsid};

use crate::child::cgroup::Cgroup;
use crate::child::killer::Killer;
use crate::child::tree::{self, Tree};
use crate::child::{Deadlines, procfs, sys};
use crate::clock::Moment;
use crate::priority;

/// dlock pings each second. If no ping has come for this long, dlock may be stopped.
const PEER_IS_LATE: Duration = Duration::from_millis(1500);
/// How long the standby process waits before it looks at the clock again.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// What the guard writes to the standby process: it may exit, ...
const DISMISSED: [u8; 1] = *b".";
/// ... or the guard has begun to kill the tree.
const KILLING: [u8; 1] = *b"k";
/// The pause between two walks.
const BETWEEN_WALKS: Duration = Duration::from_millis(5);

/// The guard's watch over dlock, and the standby process.
#[derive(Default)]
pub(super) struct Standby {
    /// When to check whether dlock is stopped: it has not sent a ping for some time.
    check_at: Option<Moment>,
    /// Its pid, until it is reaped.
    pid: Option<i32>,
    /// To it.
    words: Option<PipeWriter>,
    /// The number of walks in a row that have found nothing else: one proves nothing, because a process may be between two
    /// parents.
    empty_walks: u32,
}

impl Standby {
    /// Notes that dlock runs.
    pub(super) fn note_ping(&mut self) {
        self.check_at = Some(Moment::now() + PEER_IS_LATE);
        self.dismiss();
    }

    /// Returns when [`Standby::keep`] is due.
    pub(super) fn check_at(&self) -> Option<Moment> {
        self.check_at
    }

    /// Returns the pid of the standby process, which does not belong to the tree.
    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Forks the standby process if dlock is stopped. As long as it is, the deadlines stay the same.
    pub(super) fn keep(&mut self, cgroup: Option<&Cgroup>, deadlines: Option<Deadlines>) {
        if self.check_at.is_none_or(|at| Moment::now() < at) {
            return;
        }
        self.check_at = Some(Moment::now() + PEER_IS_LATE);
        let dlock = getppid().as_raw();
        if self.pid.is_none() && procfs::is_stopped(dlock) {
            // While the guard lives, the other children of dlock do not belong to the tree.
            let mut strangers = tree::children_of(dlock);
            strangers.remove(&getpid().as_raw());
            let (started, guard) = (procfs::start_of(dlock), getpid().as_raw());
            let remains = Remains { dlock, started, strangers, guard };
            let _ = self.fork(&remains, cgroup, deadlines);
        }
    }

    /// Notes whether a walk over the tree has found nothing.
    pub(super) fn note_walk(&mut self, is_empty: bool) {
        self.empty_walks = if is_empty { self.empty_walks + 1 } else { 0 };
    }

    /// Returns when to walk again, after a walk that has found nothing.
    pub(super) fn next_walk(&self) -> Option<Moment> {
        (self.empty_walks == 1).then(|| Moment::now() + BETWEEN_WALKS)
    }

    /// Returns whether nothing is left of the tree but this process.
    pub(super) fn is_left_alone(&self) -> bool {
        self.empty_walks > 1
    }

    /// Ends the watch: the tree is gone, or dlock is dead.
    pub(super) fn end(&mut self) {
        (self.check_at, self.empty_walks) = (None, 0);
        self.dismiss();
    }

    /// Notes that a child of the guard has ended.
    pub(super) fn note_reaped(&mut self, pid: i32) {
        if self.pid == Some(pid) {
            self.pid = None;
        }
    }

    /// Notes that the guard kills the tree: the standby process leaves it that until the tree must be dead.
    pub(super) fn note_killing(&mut self) {
        if let Some(words) = &mut self.words {
            let _ = words.write_all(&KILLING);
        }
    }

    /// Lets the standby process exit without doing anything.
    fn dismiss(&mut self) {
        if let Some(mut words) = self.words.take() {
            let _ = words.write_all(&DISMISSED);
        }
    }

    /// Forks the standby process. It waits until the calling process is dead, or has missed its deadline, then kills what
    /// remains of the tree.
    fn fork(
        &mut self,
        remains: &Remains,
        cgroup: Option<&Cgroup>,
        deadlines: Option<Deadlines>,
    ) -> io::Result<()> {
        let (mut words, writer) = io::pipe()?;
        match sys::fork()? {
            ForkResult::Parent { child } => {
                self.pid = Some(child.as_raw());
                self.words = Some(writer);
                Ok(())
            }
            ForkResult::Child => {
                drop(writer);
                let _ = setsid();
                priority::raise_session();
                if !is_dismissed(&mut words, remains, deadlines) {
                    remains.kill(cgroup);
                }
                sys::exit_now(0)
            }
        }
    }
}

/// What the standby process kills.
struct Remains {
    /// The dlock that is stopped.
    dlock: i32,
    /// When it was started.
    started: Option<u64>,
    /// Its children other than the guard, which do not belong to the tree.
    strangers: HashSet<i32>,
    /// The guard, which has forked the standby process.
    guard: i32,
}

/// Where the tree is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Root {
    /// Below dlock, which inherits it from a guard that has died.
    Dlock,
    /// Below the guard, whose dlock is dead.
    Guard,
    /// Both are dead, and it is unknown which process has inherited it.
    Unknown,
}

impl Remains {
    fn root(&self) -> Root {
        match getppid().as_raw() {
            parent if parent == self.guard => match self.dlock_is_dead() {
                true => Root::Guard,
                false => Root::Dlock,
            },
            // Only a process that lives inherits another one.
            parent if parent == self.dlock => Root::Dlock,
            _ => Root::Unknown,
        }
    }

    fn tree(&self, root: Root) -> Tree {
        match root {
            Root::Dlock => Tree::below(self.dlock, self.strangers.clone()),
            Root::Guard => Tree::below(self.guard, HashSet::new()),
            Root::Unknown => Tree::below(getpid().as_raw(), HashSet::new()),
        }
    }

    /// Kills the tree. A guard whose dlock is dead has nothing left to do then.
    fn kill(&self, cgroup: Option<&Cgroup>) {
        loop {
            let root = self.root();
            let mut killer = Killer::begin(self.tree(root), cgroup);
            while !killer.is_done() && self.root() == root {
                let pass = killer.pass();
                // An empty pass proves something only after a while. Dead processes stay zombies, because the process that
                // inherits them is stopped.
                std::thread::sleep(killer.pause_after(pass).max(Duration::from_millis(5)));
            }
            if self.root() == root {
                if root == Root::Guard {
                    let _ = sys::kill(self.guard, libc::SIGKILL);
                }
                return;
            }
        }
    }

    /// Returns whether dlock is known to be dead: that `/proc` cannot be read proves nothing.
    fn dlock_is_dead(&self) -> bool {
        let another = |start: u64| self.started.is_some_and(|started| started != start);
        sys::kill(self.dlock, 0) == Err(Errno::ESRCH)
            || procfs::is_zombie(self.dlock)
            || procfs::start_of(self.dlock).is_some_and(another)
    }
}

/// Waits for the dismissal, or until the guard should have killed the tree; returns whether it was dismissed. Not in one step: the
/// time that `poll(2)` counts stands still while the host is suspended, and a timer would need a descriptor.
fn is_dismissed(words: &mut PipeReader, remains: &Remains, deadlines: Option<Deadlines>) -> bool {
    let (mut reserve, mut measured_at, mut guard_kills) = (Duration::ZERO, None, false);
    loop {
        let mut pause = PollTimeout::NONE;
        if let Some(deadlines) = deadlines {
            let (from, interval) = deadlines.measure_from();
            if measured_at.map_or(from, |at| at + interval) <= Moment::now() {
                let cost;
                (reserve, cost) =
                    remains.tree(remains.root()).reserve(reserve, deadlines.takeover_for(reserve));
                measured_at = Some(Moment::now() + cost * 10);
            }
            let until = if guard_kills { deadlines.dead } else { deadlines.takeover_for(reserve) };
            let left = until - Moment::now();
            if left.is_zero() {
                return false;
            }
            pause = PollTimeout::try_from(left.min(LONGEST_PAUSE)).unwrap_or(PollTimeout::ZERO);
        }
        if poll(&mut [PollFd::new(words.as_fd(), PollFlags::POLLIN)], pause) == Ok(0) {
            continue;
        }
        let mut word = [0];
        match words.read(&mut word) {
            Ok(1) if word == KILLING => guard_kills = true,
            Ok(count) => return count > 0,
            Err(_) => return false,
        }
    }
}
