//! Measuring, terminating and killing the process tree.

use std::time::Duration;

use super::{Guard, Killing, Terminating};
use crate::child::killer::Killer;
use crate::child::procfs;
use crate::child::protocol::Event;
use crate::child::stop::Input;
use crate::child::terminator::{Newcomer, Terminator};
use crate::child::tree::Tree;
use crate::child::wait::{self, Change};
use crate::clock::Moment;

/// How long a process may survive SIGKILL before that is reported: it sleeps uninterruptibly, or the guard may not kill
/// it.
const STUBBORN: Duration = Duration::from_secs(1);

/// A host that was suspended past the end of the lease needs a moment to kill the tree; this is its limit.
const AFTER_A_PAUSE: Duration = Duration::from_millis(50);

/// During a pass that takes this long, the death of the last process may go unnoticed.
const LONG_PASS: Duration = Duration::from_millis(100);

impl Guard {
    pub(super) fn tree(&self) -> Tree {
        Tree::below(
            std::process::id() as i32,
            self.standby.pid().into_iter().chain(self.terminal_witness.pid()).collect(),
        )
    }

    /// Returns whether any process of the tree is alive: as a subreaper, the guard is the parent of every orphan.
    pub(super) fn has_living_child(&self) -> bool {
        if wait::pending_changes().any(|change| change.is_err()) {
            return false;
        }
        !procfs::is_usable() || !self.tree().members().into_iter().all(procfs::is_zombie)
    }

    /// While a renewal is late, measures how long the tree will take to die, so that SIGTERM and SIGKILL come early
    /// enough.
    pub(super) fn measure(&mut self) {
        let begin = Moment::now();
        if self.measure_at.is_none_or(|at| begin < at) {
            return;
        }
        self.measure_at = None;
        let Some((_, interval)) = self.stop.measure_from() else { return };
        // SIGTERM and SIGKILL do not wait for it.
        let until = self.stop.wake().map_or(begin + interval / 2, |due| due.min(begin + interval / 2));
        let (reserve, cost) = self.tree().reserve(self.stop.reserve(), until);
        self.act(Input::Reserve(reserve));
        self.measure_at = Some(Moment::now() + interval.max(cost * 10));
    }

    /// Begins to send the stop signal and SIGCONT once to every process of the tree, until SIGKILL is due.
    pub(super) fn terminate(&mut self) {
        // Without a moment for SIGKILL, that is due at once.
        let until = Some(self.stop.kill_at().unwrap_or_else(Moment::now));
        let signal = self.options.signal.number();
        let mut terminator = Terminator::new(self.tree(), signal);
        let newcomers = terminator.find(until);
        terminator.begin();
        let with_group = !self.command.is_reaped && (self.command.has_own_group() || !procfs::is_usable());
        if with_group {
            for signal in [signal, libc::SIGCONT] {
                self.signal_command(signal);
            }
        }
        self.terminating = Some(Terminating { terminator, with_group });
        self.signal_newcomers(&newcomers, until);
    }

    /// While the stop signal has not reached every process, sends it to those that the last pass has not found. Returns the
    /// pause until the next pass.
    pub(super) fn termination_pass(&mut self) -> Option<Duration> {
        let until = self.stop.kill_at();
        let terminating = self.terminating.as_mut().filter(|_| until.is_some())?;
        if terminating.terminator.is_done() {
            return None;
        }
        let newcomers = terminating.terminator.find(until);
        self.signal_newcomers(&newcomers, until);
        Some(Duration::ZERO)
    }

    fn signal_newcomers(&mut self, newcomers: &[Newcomer], until: Option<Moment>) {
        let Some(Terminating { terminator, with_group }) = &mut self.terminating else { return };
        let has_received = |pid| *with_group && self.command.shares_group_with(pid);
        let not_permitted = terminator.signal(newcomers, until, has_received);
        self.report_not_permitted(not_permitted);
    }

    fn report_not_permitted(&mut self, pids: impl IntoIterator<Item = i32>) {
        for pid in pids {
            self.report_once(pid, Event::NotPermitted);
        }
    }

    pub(super) fn start_killing(&mut self) {
        self.terminating = None;
        self.report(Event::Killing);
        // dlock checks soon after the deadline that it has been reported; if dlock is stopped, the standby process does.
        self.dlock.flush();
        self.standby.note_killing();
        let killer = Killer::begin(self.tree(), self.cgroup.as_ref());
        self.signal_command(libc::SIGKILL);
        self.killing = Some(Killing {
            since: Moment::now(),
            killer,
            overdue_reported: false,
            longest_pass: Duration::ZERO,
        });
    }

    /// While the tree is being killed, sends SIGKILL to the processes that have not received it yet. Returns the pause
    /// until the next pass.
    pub(super) fn kill_pass(&mut self) -> Option<Duration> {
        let killing = self.killing.as_mut().filter(|_| self.stop.is_killing())?;
        let begin = Moment::now();
        let pass = killing.killer.pass();
        killing.longest_pass = killing.longest_pass.max(Moment::now() - begin);
        let pause = killing.killer.pause_after(pass);
        let is_stubborn = Moment::now() - killing.since > STUBBORN;
        let all_dead = killing.killer.is_done();
        let not_permitted: Vec<i32> = killing.killer.not_permitted().iter().copied().collect();
        self.report_not_permitted(not_permitted);
        self.reap();
        if !self.stop.is_killing() {
            return Some(Duration::ZERO);
        }
        self.report_overdue(pass.alive);
        if all_dead {
            self.all_dead();
        } else if is_stubborn {
            self.signal_command(libc::SIGKILL);
            self.report_survivors();
        }
        Some(pause)
    }

    /// Reports once that the tree was not known to be dead by its deadline. If it has died meanwhile, that is reported
    /// only if the guard was too slow to notice it.
    pub(super) fn report_overdue(&mut self, alive: usize) {
        let is_overdue = self.stop.deadlines().is_some_and(|deadlines| Moment::now() >= deadlines.dead);
        let Some(killing) = self.killing.as_mut().filter(|_| is_overdue) else { return };
        let is_certain = alive > 0 && Moment::now() - killing.since > AFTER_A_PAUSE;
        if !killing.overdue_reported && (is_certain || killing.longest_pass > LONG_PASS) {
            killing.overdue_reported = true;
            self.report(Event::Overdue(alive));
        }
    }

    /// Every process of the tree is dead, though some cannot be reaped: a tracer has them.
    fn all_dead(&mut self) {
        if !self.command.is_reaped {
            self.command_changed(Change::Killed(libc::SIGKILL));
        }
        self.act(Input::TreeGone);
    }

    /// Reports once each process that has not died of SIGKILL by now: it sleeps uninterruptibly, or (pid 0) it exists
    /// but cannot be found.
    fn report_survivors(&mut self) {
        let mut survivors = self.tree().members();
        if survivors.is_empty() {
            survivors.push(0);
        }
        survivors.retain(|pid| *pid == 0 || !procfs::is_zombie(*pid));
        for pid in survivors {
            self.report_once(pid, Event::StillAlive);
        }
    }
}
