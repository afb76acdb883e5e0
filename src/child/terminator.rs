//! Sends the stop signal to a whole process tree, once to each process; used by the guard.

use std::collections::HashMap;

use nix::errno::Errno;

use super::mark::Mark;
use super::procfs::{self, Stat};
use super::signals::ends_by_default;
use super::tree::{Member, Next, Tree, is_over};
use crate::clock::Moment;

/// The number of passes in a row without anyone to signal after which every process has been reached. One does not prove
/// that: while it reads, a parent may die, and its children move to a process whose children were read before.
const QUIET_PASSES: u32 = 2;

/// Signals a tree in passes, until passes find no process that is to receive the signal.
///
/// A parent that dies of the signal leaves its children to the guard, and a process may fork between the moment at which its
/// children are read and that at which it is signalled; a further pass finds both. It also finds what a process starts on
/// receiving the signal, to clean up, which must not be signalled. Every process that existed before the first signal receives
/// it. A later one does if its parent had not taken the signal yet when it was forked, or died of it without running
/// a handler. The parent of an orphan is not known; if a process that handles the signal had taken it by then, the orphan
/// may be part of a clean-up and is spared.
pub(super) struct Terminator {
    tree: Tree,
    signal: i32,
    /// The moment before the first signal.
    began: Option<Mark>,
    /// The moment before a process first took the signal that does not die of it, and may fork a clean-up.
    first_handled: Option<Mark>,
    /// Every process that has received the signal or was spared.
    known: HashMap<i32, Fate>,
    quiet_passes: u32,
}

/// What a process does on the signal.
#[derive(Clone, Copy)]
enum Fate {
    /// It may clean up: the children that it forks after this moment are spared.
    CleansUp(Mark),
    /// It forks nothing to clean up: it dies of the signal, or may not be signalled.
    ForksNothing,
    /// It had not taken the signal at this moment. If it leaves the default action to the signal, it may die of it.
    Undecided { at: Mark, may_die: bool },
}

/// A process that a pass has found and that was not known.
pub(super) struct Newcomer {
    member: Member,
    /// `None` if it is hidden from this process.
    stat: Option<Stat>,
}

impl Newcomer {
    /// Returns whether it leaves the default action to the signal, which is to end it.
    fn may_die_of(&self, signal: i32) -> bool {
        let pid = self.member.pid;
        let leaves_default = |stat: Stat| match stat.leaves_default(signal) {
            Some(is_default) => is_default,
            None => procfs::signals_of(pid).is_some_and(|signals| signals.leaves_default(signal)),
        };
        ends_by_default(signal) && self.stat.is_some_and(leaves_default)
    }
}

impl Terminator {
    pub(super) fn new(tree: Tree, signal: i32) -> Terminator {
        Terminator { tree, signal, began: None, first_handled: None, known: HashMap::new(), quiet_passes: 0 }
    }

    /// Returns every process that is not known yet, parents before their children; stops at `until`.
    pub(super) fn find(&mut self, until: Option<Moment>) -> Vec<Newcomer> {
        let mut newcomers = Vec::new();
        let _ = self.tree.walk(until, |member| {
            if !self.known.contains_key(&member.pid) {
                newcomers.push(Newcomer { member, stat: Stat::of(member.pid) });
            }
            Next::Descend
        });
        newcomers
    }

    /// Begins: every process that exists now is to receive the signal.
    pub(super) fn begin(&mut self) {
        self.began = Some(Mark::now());
    }

    /// Sends the signal and SIGCONT to the processes that are to receive them, except those that `has_received` them with their
    /// process group; stops at `until`. Returns the processes that may not be signalled.
    pub(super) fn signal(
        &mut self,
        newcomers: &[Newcomer],
        until: Option<Moment>,
        has_received: impl Fn(i32) -> bool,
    ) -> Vec<i32> {
        // SIGCONT last: a stopped process acts on the signal before it only when it is continued.
        let signals = [self.signal, libc::SIGCONT];
        let began = *self.began.get_or_insert_with(Mark::now);
        self.decide(until);
        let (mut count, mut not_permitted) = (0, Vec::new());
        for newcomer in newcomers {
            if is_over(until) {
                break;
            }
            let pid = newcomer.member.pid;
            if !self.is_to_receive(newcomer, began) {
                self.known.insert(pid, Fate::CleansUp(began));
                continue;
            }
            let has_received = has_received(pid);
            let may_die = newcomer.may_die_of(self.signal);
            // Before the signal: when that is sent, its handler may fork before this process runs again.
            let at = if has_received { began } else { Mark::now() };
            let sent = if has_received { Ok(()) } else { self.tree.signal(newcomer.member, &signals) };
            match sent {
                Ok(()) => {
                    count += 1;
                    self.note(pid, at, may_die);
                }
                // It is gone, hidden from this process, or has another parent by now: then the next pass finds it.
                Err(Errno::ESRCH) => {}
                Err(errno) => {
                    self.known.insert(pid, Fate::ForksNothing);
                    if errno == Errno::EPERM && !procfs::is_zombie(pid) {
                        not_permitted.push(pid);
                    }
                }
            }
        }
        self.quiet_passes = if count == 0 { self.quiet_passes + 1 } else { 0 };
        not_permitted
    }

    /// Looks again at the processes that had not taken the signal. Those that have since did so after the last look.
    /// Stops at `until`.
    fn decide(&mut self, until: Option<Moment>) {
        let now = Mark::now();
        let undecided: Vec<_> = self
            .known
            .iter()
            .filter_map(|(pid, fate)| match fate {
                Fate::Undecided { at, may_die } => Some((*pid, *at, *may_die)),
                Fate::CleansUp(_) | Fate::ForksNothing => None,
            })
            .collect();
        for (pid, at, may_die) in undecided {
            if is_over(until) {
                break;
            }
            self.note(pid, at, may_die);
            if let Some(Fate::Undecided { at, .. }) = self.known.get_mut(&pid) {
                *at = now;
            }
        }
    }

    /// Notes what a process does that has received the signal, and had not taken it at this moment.
    fn note(&mut self, pid: i32, at: Mark, may_die: bool) {
        let fate = match cleans_up(self.signal, pid, may_die) {
            Some(true) => {
                self.first_handled = Some(self.first_handled.map_or(at, |first| first.earlier(at)));
                Fate::CleansUp(at)
            }
            Some(false) => Fate::ForksNothing,
            None => Fate::Undecided { at, may_die },
        };
        self.known.insert(pid, fate);
    }

    /// Returns whether it existed before the first signal, or was forked by a process that had not received it.
    fn is_to_receive(&self, newcomer: &Newcomer, began: Mark) -> bool {
        let Some(stat) = newcomer.stat else { return true };
        let existed_at = |mark: Mark| mark.is_after_start(newcomer.member.pid, &stat);
        let was_forked_before = match self.known.get(&newcomer.member.parent) {
            Some(Fate::CleansUp(from)) => existed_at(*from),
            Some(Fate::ForksNothing | Fate::Undecided { .. }) => true,
            None => self.first_handled.is_none_or(existed_at),
        };
        was_forked_before || existed_at(began)
    }

    /// Returns whether every process has been reached that is to receive the signal.
    pub(super) fn is_done(&self) -> bool {
        self.quiet_passes >= QUIET_PASSES
    }

    /// Notes that a child has been reaped: its pid may be reused from now on.
    pub(super) fn forget(&mut self, pid: i32) {
        self.known.remove(&pid);
        self.tree.forget(pid);
    }
}

/// Returns whether a process that was sent the signal does not die of it; `None` while it has not taken the signal.
fn cleans_up(signal: i32, pid: i32, may_die: bool) -> Option<bool> {
    let dies = || may_die && procfs::is_ending(pid);
    if dies() {
        return Some(false);
    }
    let is_pending = procfs::signals_of(pid).is_some_and(|signals| signals.is_pending(signal));
    // A tracer that has taken the signal may pass it on.
    if is_pending || (may_die && procfs::state_of(pid) == Some('t')) {
        return None;
    }
    // If it took the signal between the readings, the kernel has begun to end it by now.
    Some(!dies())
}
