//! SIGKILL for a whole tree, the same for both halves of dlock.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::procfs;
use super::tree::{Coverage, Next, Tree};
use crate::clock::Moment;

/// Kills a tree in passes, until a pass finds nothing alive.
///
/// A pass signals each process once, at the moment it is found, and leaves alone what an earlier pass has signalled: the
/// dying need the processors more than we do. So a pass costs little more than a list of our own children, among which
/// everything turns up whose parent has died.
#[derive(Debug)]
pub struct Killer {
    tree: Tree,
    signalled: HashMap<i32, Moment>,
    /// Processes that we may not signal (a setuid command).
    not_permitted: BTreeSet<i32>,
    pause: Duration,
    /// Passes in a row that found nothing alive.
    empty_passes: u32,
}

/// What a pass came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Processes that it signalled for the first time.
    pub signalled: usize,
    /// Processes that are not known to be dead.
    pub alive: usize,
}

/// A process that is still there so long after SIGKILL is looked at again, and so are its children: it may be dead and not
/// reaped, because a tracer has it or its parent does not care, or its number may mean another process of the tree.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A tree that is running away is chased among its youngest processes for this long before the next walk over all of it.
const CHASE: Duration = Duration::from_millis(10);

/// How many process numbers the first round of a chase covers: those of processes that have waited for a processor.
const FIRST_ROUND: i32 = 4096;

/// How many process numbers each further round covers: those of processes that are running.
const FURTHER_ROUND: i32 = 256;

/// A chase ends after this many rounds in a row without a new process.
const QUIET_ROUNDS: u32 = 3;

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl Killer {
    /// For this tree.
    pub fn of(tree: Tree) -> Killer {
        Killer {
            tree,
            signalled: HashMap::new(),
            not_permitted: BTreeSet::new(),
            pause: SHORTEST_PAUSE,
            empty_passes: 0,
        }
    }

    /// Sends SIGKILL to everything that is there now and has not got it yet.
    pub fn pass(&mut self) -> Pass {
        let now = Moment::now();
        let mut pass = Pass { signalled: 0, alive: 0 };
        pass.signalled += self.chase();
        let Killer { tree, signalled, not_permitted, .. } = self;
        let coverage = tree.walk(|member| {
            let last = signalled.get(&member.pid).copied();
            if last.is_some_and(|last| now - last < LOOK_AGAIN) {
                pass.alive += 1;
                return Next::Skip;
            }
            if last.is_some() && procfs::is_zombie(member.pid) {
                // What it leaves behind is ours already.
                return Next::Skip;
            }
            pass.alive += 1;
            pass.signalled += usize::from(last.is_none());
            signalled.insert(member.pid, now);
            if let Err(error) = tree.signal(member, libc::SIGKILL)
                && error.raw_os_error() == Some(libc::EPERM)
                && !procfs::is_zombie(member.pid)
            {
                not_permitted.insert(member.pid);
            }
            Next::Descend
        });
        let is_empty = pass.alive == 0 && pass.signalled == 0 && coverage == Coverage::Complete;
        self.empty_passes = if is_empty { self.empty_passes + 1 } else { 0 };
        self.pause = if pass.signalled > 0 { SHORTEST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        pass
    }

    /// Sends SIGKILL to the youngest processes of the tree, round after round: each line of processes that fork a successor
    /// and end is hit between two forks sooner or later, and the sooner the less time passes between two rounds. Returns how
    /// many it signalled.
    fn chase(&mut self) -> usize {
        let begin = Moment::now();
        let Killer { tree, signalled, .. } = self;
        let (mut count, mut quiet_rounds, mut range) = (0, 0, FIRST_ROUND);
        while quiet_rounds < QUIET_ROUNDS && Moment::now() - begin < CHASE {
            let before = count;
            tree.walk_youngest(range, |member| {
                if let Entry::Vacant(first) = signalled.entry(member.pid) {
                    first.insert(begin);
                    count += 1;
                    // A child that it has forked by now is found in the next round.
                    let _ = tree.signal(member, libc::SIGKILL);
                }
            });
            quiet_rounds = if count == before { quiet_rounds + 1 } else { 0 };
            range = FURTHER_ROUND;
        }
        count
    }

    /// Whether everything is dead, though perhaps not reaped: a tracer or a hung parent has it. One empty pass does not show
    /// that, because what dies may be between two parents; where `/proc` cannot be read none does.
    pub fn is_done(&self) -> bool {
        self.empty_passes > 1
    }

    /// How long to leave the processors to the dying before the next pass: not at all when this one has found something
    /// new, because what it found may have forked.
    pub fn pause_after(&self, pass: Pass) -> Duration {
        if pass.signalled > 0 { Duration::ZERO } else { self.pause }
    }

    /// We have reaped this child: its number may mean another process from now on.
    pub fn forget(&mut self, pid: i32) {
        self.signalled.remove(&pid);
        self.tree.forget(pid);
    }

    /// The processes that we may not signal.
    pub fn not_permitted(&self) -> &BTreeSet<i32> {
        &self.not_permitted
    }
}
