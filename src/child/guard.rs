//! The guard: the parent of the command, which enforces the deadline. One thread, one loop, no runtime; it talks to
//! nothing but dlock, so that neither a store nor a network can delay it.
//!
//! Started by [`launch`](super::launch). What always holds: the tree is dead before the last deadline that dlock has sent.

mod children;
mod event_wait;
mod mailbox;
mod orders;
mod standby;
mod terminal_witness;
mod termination;

use std::os::fd::OwnedFd;
use std::time::Duration;

use self::event_wait::EventWait;
use self::mailbox::Mailbox;
use self::standby::Standby;
use self::terminal_witness::TerminalWitness;
use super::cgroup::{Cgroup, CgroupPath};
use super::command::CommandProcess;
use super::killer::Killer;
use super::protocol::{Channel, Event, FromGuard};
use super::signals::{Arrival, Origin, StopSignal};
use super::stop::{Input, Orphans, Output, Stop, StopOptions};
use super::sys;
use super::terminal::Terminal;
use super::terminator::Terminator;
use crate::clock::Moment;
use crate::priority;

/// How long a command runs before the guard takes the measures of [`Guard::settle`].
const SETTLE_AFTER: Duration = Duration::from_millis(50);

/// The pause between two looks whether dlock has stopped itself.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

pub(super) struct Guard {
    dlock: Mailbox,
    command: CommandProcess,
    terminal: Terminal,
    cgroup_path: Option<CgroupPath>,
    cgroup: Option<Cgroup>,
    standby: Standby,
    terminal_witness: TerminalWitness,
    /// When to take the measures that a short command is not worth.
    settle_at: Option<Moment>,
    /// They were taken.
    has_settled: bool,
    options: StopOptions,
    stop: Stop,
    /// The guard cannot do its work. When it exits, dlock takes over.
    failed: bool,
    /// Until when dlock may stop itself because of a stop of the command that is over.
    wake_dlock_until: Option<Moment>,
    /// When to measure the tree: a renewal is late.
    measure_at: Option<Moment>,
    /// dlock has asked for the stop signal, with SIGKILL at this moment. The messages that it has sent since come first: a
    /// large tree takes seconds to signal.
    terminate_by: Option<Moment>,
    /// Set once the stop signal has been decided.
    terminating: Option<Terminating>,
    /// Set once SIGKILL has been decided.
    killing: Option<Killing>,
    reported_pids: Vec<i32>,
    /// Descriptors that must stay open until the tree is dead, because closing them frees the lock.
    kept: Vec<OwnedFd>,
}

/// The state of a tree that receives the stop signal.
struct Terminating {
    terminator: Terminator,
    /// The command's process group has received the signal as a whole.
    with_group: bool,
}

/// The state of the last phase of a tree.
struct Killing {
    since: Moment,
    killer: Killer,
    overdue_reported: bool,
    longest_pass: Duration,
}

impl Guard {
    pub(super) fn new(
        control: Channel,
        command: CommandProcess,
        terminal: Terminal,
        cgroup_path: Option<CgroupPath>,
        cgroup: Option<Cgroup>,
    ) -> Guard {
        let options =
            StopOptions { orphans: Orphans::Leave, signal: StopSignal::TERM, grace: Duration::ZERO };
        Guard {
            dlock: Mailbox::new(control),
            command,
            terminal,
            cgroup_path,
            cgroup,
            standby: Standby::default(),
            terminal_witness: TerminalWitness::default(),
            settle_at: None,
            has_settled: false,
            options,
            stop: Stop::new(options.orphans, options.grace),
            failed: false,
            wake_dlock_until: None,
            measure_at: None,
            terminate_by: None,
            terminating: None,
            killing: None,
            reported_pids: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Runs until the whole tree has ended.
    pub(super) fn run(mut self) {
        // Before the command runs: one that forks without a pause would keep the CPUs from a guard that has yet to do this.
        priority::raise();
        let (pid, cgroup) = (self.command.pid, self.cgroup_path.clone());
        self.dlock.queue(&FromGuard::Command { pid, cgroup });
        self.dlock.flush();
        match EventWait::new() {
            Ok(event_wait) => {
                while !self.is_done() {
                    self.turn(&event_wait);
                }
            }
            Err(error) => {
                self.report(Event::GuardLost(format!("the guard process cannot watch: {error}")));
                self.dlock.flush();
                self.act(Input::Kill);
                self.kill_pass();
            }
        }
        self.standby.end();
        self.dlock.flush_all();
        priority::restore();
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
        if let Some(path) = self.cgroup_path.filter(|_| self.has_settled) {
            path.sweep();
        }
    }

    fn is_done(&self) -> bool {
        self.stop.is_done() || self.failed
    }

    fn turn(&mut self, event_wait: &EventWait) {
        self.read_messages();
        if let Some(kill_at) = self.terminate_by.take() {
            self.act(Input::Terminate { kill_at });
        }
        let more_to_reap = self.reap();
        self.act(Input::Tick);
        self.settle();
        self.measure();
        self.wake_late_dlock();
        self.keep_standby();
        let pause = self.kill_pass().or_else(|| self.termination_pass());
        self.dlock.flush();
        match pause {
            _ if self.is_done() => {}
            None if more_to_reap => {}
            // Not an event wait: every death would end it.
            Some(pause) => std::thread::sleep(pause),
            None => {
                let arrivals = event_wait.wait(&self.dlock, self.next_wake());
                self.report_arrivals(arrivals);
            }
        }
    }

    /// Runs once the command has run for a moment: raises the guard's own session, and locks the memory against being paged
    /// out. That takes a while, so a short command is spared it. It fails without the privilege for it, which is harmless:
    /// the margin before the lease's end allows for that.
    fn settle(&mut self) {
        if self.settle_at.is_some_and(|at| Moment::now() >= at) {
            self.settle_at = None;
            self.has_settled = true;
            priority::raise_session();
            sys::lock_memory();
        }
    }

    /// Reports the signals that the guard received: a signal is never sent to the guard alone but to every process, and
    /// dlock has to know.
    fn report_arrivals(&mut self, arrivals: Vec<Arrival>) {
        for Arrival { signal, origin } in arrivals {
            if let Origin::Process(sender) = origin {
                self.dlock.queue(&FromGuard::Signalled { signal, sender });
            }
        }
        self.dlock.flush();
    }

    fn report(&mut self, event: Event) {
        self.dlock.queue(&FromGuard::Event(event));
    }

    fn act(&mut self, input: Input) {
        for output in self.stop.on(Moment::now(), input) {
            match output {
                Output::ReportDeadline => self.report(Event::DeadlineReached),
                Output::Terminate => self.terminate(),
                Output::Kill => self.start_killing(),
                Output::Finish => {
                    // What has entered another PID namespace belongs to the tree no longer.
                    if self.terminating.is_some() || self.killing.is_some() {
                        self.cgroup.as_ref().map(Cgroup::kill);
                    }
                    self.report_overdue(0);
                    let orphans_left = self.has_living_child();
                    self.report(Event::Finished { orphans_left });
                }
            }
        }
    }

    fn keep_standby(&mut self) {
        if self.command.is_reaped && self.standby.pid().is_some() {
            let is_empty = self.tree().members().is_empty();
            self.standby.note_walk(is_empty);
        }
        if self.dlock.is_gone() || self.standby.is_left_alone() {
            self.standby.end();
        } else if !self.stop.is_killing() {
            self.standby.keep(self.cgroup.as_ref(), self.stop.deadlines());
        }
    }

    fn report_once(&mut self, pid: i32, event: fn(i32) -> Event) {
        if !self.reported_pids.contains(&pid) {
            self.reported_pids.push(pid);
            self.report(event(pid));
        }
    }

    /// Returns the next moment at which something is due without an event.
    fn next_wake(&self) -> Option<Moment> {
        let check_at = self.standby.check_at().filter(|_| !self.stop.is_killing());
        let wake_dlock_at =
            self.wake_dlock_until.filter(|_| self.terminal.exists() && !self.command.is_reaped);
        let wake_dlock_at = wake_dlock_at.map(|until| until.min(Moment::now() + BETWEEN_LOOKS));
        let own = [
            self.stop.wake(),
            self.settle_at,
            self.measure_at,
            check_at,
            self.standby.next_walk(),
            wake_dlock_at,
        ];
        own.into_iter().flatten().min()
    }
}
