//! Kills a whole process tree with SIGKILL; used by dlock and by its guard.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use nix::errno::Errno;

use super::cgroup::Cgroup;
use super::procfs;
use super::tree::{Coverage, Next, Tree};
use crate::clock::Moment;

/// Kills a tree in passes, until a pass finds nothing alive.
///
/// A pass signals each process once, at the moment it is found, and skips what an earlier pass has signalled: the dying
/// processes need the CPUs more than this one does. So a pass costs little more than a list of this process's own
/// children, which come to include every process whose parent has died.
#[derive(Debug)]
pub struct Killer {
    tree: Tree,
    signalled: HashMap<i32, Moment>,
    /// Processes that this process may not signal (a setuid command).
    not_permitted: BTreeSet<i32>,
    pause: Duration,
    /// The number of passes in a row that found nothing alive.
    empty_passes: u32,
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The number of processes signalled for the first time.
    pub signalled: usize,
    /// The number of processes that are not known to be dead.
    pub alive: usize,
}

/// A process that still exists this long after SIGKILL is checked again, and so are its children: it may be dead and
/// not reaped, because a tracer has it or its parent does not wait for it, or its pid may have been reused by another
/// process of the tree.
const RECHECK_AFTER: Duration = Duration::from_millis(100);

/// How long to chase the youngest processes before each walk over the whole tree.
const CHASE: Duration = Duration::from_millis(10);

/// The number of pids that the first round of a chase covers, which includes processes that have waited for a processor.
const FIRST_ROUND: i32 = 4096;

/// The number of pids that each further round covers: those of running processes.
const FURTHER_ROUND: i32 = 256;

/// A chase ends after this many rounds in a row without a new process.
const QUIET_ROUNDS: u32 = 3;

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl Killer {
    /// Kills what is in the cgroup, and returns a killer for the whole tree.
    pub fn begin(tree: Tree, cgroup: Option<&Cgroup>) -> Killer {
        if let Some(cgroup) = cgroup {
            let _ = cgroup.kill();
        }
        Killer {
            tree,
            signalled: HashMap::new(),
            not_permitted: BTreeSet::new(),
            pause: SHORTEST_PAUSE,
            empty_passes: 0,
        }
    }

    /// Sends SIGKILL to every process that exists now and has not received it yet.
    pub fn pass(&mut self) -> Pass {
        let now = Moment::now();
        let mut pass = Pass { signalled: self.chase(), alive: 0 };
        let Killer { tree, signalled, not_permitted, .. } = self;
        let coverage = tree.walk(None, |member| {
            let last = signalled.get(&member.pid).copied();
            if last.is_some_and(|last| now - last < RECHECK_AFTER) {
                pass.alive += 1;
                return Next::Skip;
            }
            if last.is_some() && procfs::is_zombie(member.pid) {
                // Its children have been inherited already.
                return Next::Skip;
            }
            pass.alive += 1;
            match tree.signal(member, &[libc::SIGKILL]) {
                // It is gone, hidden from this process, or has another parent by now: then the next pass finds it.
                Err(Errno::ESRCH) => {
                    signalled.remove(&member.pid);
                }
                sent => {
                    pass.signalled += usize::from(last.is_none());
                    signalled.insert(member.pid, now);
                    if sent == Err(Errno::EPERM) && !procfs::is_zombie(member.pid) {
                        not_permitted.insert(member.pid);
                    }
                }
            }
            Next::Descend
        });
        let is_empty = pass.alive == 0 && pass.signalled == 0 && coverage == Coverage::Complete;
        self.empty_passes = if is_empty { self.empty_passes + 1 } else { 0 };
        self.pause = if pass.signalled > 0 { SHORTEST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        pass
    }

    /// Sends SIGKILL to the youngest processes of the tree, in rounds, and returns the number of processes signalled. In a
    /// chain of processes that fork a successor and exit, a signal must arrive between two forks; the shorter the rounds,
    /// the sooner it does.
    fn chase(&mut self) -> usize {
        let begin = Moment::now();
        let Killer { tree, signalled, .. } = self;
        let (mut count, mut quiet_rounds, mut range) = (0, 0, FIRST_ROUND);
        while quiet_rounds < QUIET_ROUNDS && Moment::now() - begin < CHASE {
            let before = count;
            for member in tree.youngest(range) {
                if let Entry::Vacant(first) = signalled.entry(member.pid) {
                    first.insert(begin);
                    count += 1;
                    // The next round finds a child that it has already forked.
                    let _ = tree.signal(member, &[libc::SIGKILL]);
                }
            }
            quiet_rounds = if count == before { quiet_rounds + 1 } else { 0 };
            range = FURTHER_ROUND;
        }
        count
    }

    /// Returns whether every process is dead, though perhaps not reaped: a tracer or a hung parent has it. One empty
    /// pass does not prove that, because a dying process may be between two parents; without a readable `/proc` no pass
    /// does.
    pub fn is_done(&self) -> bool {
        self.empty_passes > 1
    }

    /// Returns how long to leave the CPUs to the dying processes before the next pass: zero if this pass has found
    /// something new, because that may have forked.
    pub fn pause_after(&self, pass: Pass) -> Duration {
        if pass.signalled > 0 { Duration::ZERO } else { self.pause }
    }

    /// Notes that a child has been reaped: its pid may be reused from now on.
    pub fn forget(&mut self, pid: i32) {
        self.signalled.remove(&pid);
        self.tree.forget(pid);
    }

    /// Returns the processes that may not be signalled.
    pub fn not_permitted(&self) -> &BTreeSet<i32> {
        &self.not_permitted
    }
}
