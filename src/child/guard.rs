//! The guard: the parent of the command, which enforces the deadline. One thread, one loop, no runtime; it talks to
//! nothing but dlock, so that neither a store nor a network can delay it.
//!
//! Started by [`launch`](super::launch). What always holds: the tree is dead before the last deadline that dlock has sent.

mod event_wait;
mod mailbox;
mod standby;
mod terminal_witness;
mod termination;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;

use self::event_wait::EventWait;
use self::mailbox::Mailbox;
use self::standby::Standby;
use self::terminal_witness::TerminalWitness;
use super::cgroup::{Cgroup, CgroupPath};
use super::command::CommandProcess;
use super::killer::Killer;
use super::procfs;
use super::protocol::{Channel, Event, FromGuard, Group, Received, ToGuard};
use super::signals::{self, Arrival, Origin, StopSignal};
use super::stop::{Deadlines, Input, Orphans, Output, Stop, StopOptions};
use super::sys;
use super::terminal::Terminal;
use super::terminator::Terminator;
use super::wait::{self, Change};
use crate::clock::Moment;
use crate::priority;

/// How long a command runs before the guard takes the measures of [`Guard::settle`].
const SETTLE_AFTER: Duration = Duration::from_millis(50);

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
    /// When to measure the tree: a renewal is late.
    measure_at: Option<Moment>,
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
            measure_at: None,
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
        let more_to_reap = self.reap();
        self.act(Input::Tick);
        self.settle();
        self.measure();
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

    fn read_messages(&mut self) {
        while !self.dlock.is_gone() {
            match self.dlock.receive() {
                Received::Message(message) => self.handle(message),
                Received::Nothing => return,
                Received::Closed => self.act(Input::PeerGone),
            }
        }
    }

    fn handle(&mut self, message: ToGuard) {
        match message {
            ToGuard::Keep => self.kept.extend(self.dlock.take_descriptor()),
            ToGuard::Start { group, until, stop, keeps } => {
                if keeps != self.kept.len() {
                    let why = "the guard process has no descriptor left for the lock";
                    self.report(Event::GuardLost(why.into()));
                    return self.act(Input::Kill);
                }
                self.options = stop;
                self.stop = Stop::new(stop.orphans, stop.grace);
                self.start(group, until);
            }
            ToGuard::Arm(until) => {
                self.act(Input::Arm(until));
                self.measure_at = self.stop.measure_from().map(|(from, _)| from);
            }
            ToGuard::Received(signal) => self.command.note_end_signal(signal),
            ToGuard::Forward(signal) => self.forward(signal),
            ToGuard::Terminate { kill_at } => self.act(Input::Terminate { kill_at }),
            ToGuard::Kill => self.act(Input::Kill),
            ToGuard::Ping => {
                self.dlock.queue(&FromGuard::Pong);
                self.dlock.flush();
                self.standby.note_ping();
            }
            ToGuard::Continue { foreground } => {
                if foreground {
                    self.terminal.give_to(self.command.pid);
                }
                if self.command.is_stopped {
                    self.signal_command(libc::SIGCONT);
                }
            }
        }
    }

    /// dlock lets the command run right after sending this message: so the guard has the deadline before the command's
    /// first instruction, and is there to see its end.
    fn start(&mut self, group: Group, until: Option<Deadlines>) {
        use nix::unistd::{Pid, setpgid, setsid};
        self.command.enter(group);
        if self.terminal.exists() {
            self.terminal_witness.fork(self.command.has_own_group().then_some(self.command.pid));
        }
        // Moves the guard out of reach of signals for dlock's process group. A new session is better still, but not
        // while the command has its own process group on a terminal: a group without a process whose parent is in the
        // same session is orphaned, and an orphaned group cannot be stopped by Ctrl-Z (setpgid(2), credentials(7)).
        if self.command.has_own_group() && self.terminal.exists() {
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        } else {
            let _ = setsid();
        }
        // It was stopped while parked, together with dlock's process group: that was meant for dlock, which has been
        // continued. One that runs already has stopped itself: this process was late.
        if self.command.is_stopped && !self.command.is_executed() {
            self.signal_command(libc::SIGCONT);
        }
        self.settle_at = Some(Moment::now() + SETTLE_AFTER);
        self.standby.note_ping();
        self.act(Input::Start(until));
        self.measure_at = self.stop.measure_from().map(|(from, _)| from);
    }

    /// Forwards a signal to the command's process group, once.
    fn forward(&mut self, signal: i32) {
        self.command.note_end_signal(signal);
        if !self.command.is_reaped {
            // In a shared group, the shell's own SIGCONT has reached every process already.
            if signal == libc::SIGCONT && !self.command.has_own_group() && !self.command.is_stopped {
                return;
            }
            self.signal_command(signal);
        } else if signals::asks_to_end(signal) {
            // Only background processes are left (`--orphans wait`).
            self.act(Input::Terminate { kill_at: Moment::now() + self.options.grace });
        }
    }

    fn signal_command(&mut self, signal: i32) {
        if self.command.signal(signal) == Err(Errno::EPERM) {
            self.report_once(self.command.pid, Event::NotPermitted);
        }
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
        } else if !self.stop.is_stopping() {
            self.standby.keep(self.cgroup.as_ref(), self.stop.dead());
        }
    }

    fn report_once(&mut self, pid: i32, event: fn(i32) -> Event) {
        if !self.reported_pids.contains(&pid) {
            self.reported_pids.push(pid);
            self.report(event(pid));
        }
    }

    /// Handles the state changes of every child: the command, and the orphans that the guard inherits. Returns whether
    /// there may be more: the limit per call has been reached, or a deadline is due.
    fn reap(&mut self) -> bool {
        let due = self.stop.wake();
        let mut count = 0;
        for change in wait::pending_changes() {
            count += 1;
            match change {
                Ok((pid, change)) => {
                    if let Change::Exited(_) | Change::Killed(_) = change {
                        if let Some(terminating) = &mut self.terminating {
                            terminating.terminator.forget(pid);
                        }
                        if let Some(killing) = &mut self.killing {
                            killing.killer.forget(pid);
                        }
                        self.standby.note_reaped(pid);
                        self.terminal_witness.note_reaped(pid);
                    }
                    // Once it is reaped, another process may get its number.
                    if pid == self.command.pid && !self.command.is_reaped {
                        self.command_changed(change);
                    }
                    // If processes fork and exit without a pause, reaping them all would miss the deadline.
                    if due.is_some_and(|due| Moment::now() >= due) {
                        return true;
                    }
                }
                Err(Errno::ECHILD) => {
                    self.act(Input::TreeGone);
                    return false;
                }
                // A sandbox that does not allow the call: the state of the command cannot be determined.
                Err(errno) => {
                    self.failed = true;
                    let why = format!("cannot wait for the command: {}", io::Error::from(errno));
                    self.report(Event::GuardLost(why));
                    return false;
                }
            }
        }
        count == wait::MAX_CHANGES
    }

    fn command_changed(&mut self, change: Change) {
        let ended = self.command.note(change);
        match change {
            // It was stopped while it was parked, which `start` did not know yet.
            Change::Stopped(_) if !self.stop.is_parked() && !self.command.is_executed() => {
                return self.signal_command(libc::SIGCONT);
            }
            Change::Stopped(signal) => return self.report(Event::Stopped(signal)),
            Change::Continued => self.report(Event::Continued),
            Change::Exited(_) | Change::Killed(_) => {}
        }
        self.wake_dlock();
        if let Some(ended) = ended {
            let is_interrupted = self.terminal_witness.has_seen_end_signal();
            if is_interrupted {
                self.report(Event::Interrupted);
            }
            self.report(Event::Ended(ended));
            self.terminal_witness.end();
            self.act(Input::CommandEnded {
                by_itself: self.command.ended_by_itself(ended) && !is_interrupted,
            });
        }
    }

    /// On a terminal, dlock stops itself when the command is stopped, for the shell to see. If another process
    /// continues or ends only the command, dlock would stay stopped, so the guard continues it.
    fn wake_dlock(&self) {
        let dlock = nix::unistd::getppid().as_raw();
        let by_others = !self.stop.is_stopping() && !self.dlock.is_gone();
        if by_others && self.terminal.exists() && dlock > 1 && procfs::state_of(dlock) == Some('T') {
            let _ = sys::kill(dlock, libc::SIGCONT);
        }
    }

    /// Returns the next moment at which something is due without an event.
    fn next_wake(&self) -> Option<Moment> {
        let check_at = self.standby.check_at().filter(|_| !self.stop.is_stopping());
        let own = [self.stop.wake(), self.settle_at, self.measure_at, check_at, self.standby.next_walk()];
        own.into_iter().flatten().min()
    }
}
