//! The guard: the parent of the command, which enforces the deadline. One thread, one loop, no runtime; it talks to
//! nothing but dlock, so that neither a store nor a network can delay it.

mod stopping;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;

use self::stopping::Killing;
use super::cgroup::{Cgroup, CgroupPath};
use super::outbox::Outbox;
use super::parked::Parked;
use super::protocol::{Channel, Ended, Event, FromGuard, Group, Received, ToGuard};
use super::signals::{Arrival, Origin};
use super::sleeper::Sleeper;
use super::spare::Spare;
use super::stop::{Deadlines, Input, Orphans, Output, Stop};
use super::sys::{self, Change};
use super::terminal::Terminal;
use super::tree::{self, Tree};
use super::{procfs, signals};
use crate::clock::Moment;

/// dlock pings each second. If no ping has come for this long, dlock may be stopped.
const PEER_IS_LATE: Duration = Duration::from_millis(1500);

/// How long a command runs before the guard takes the measures of [`Guard::settle`].
const SETTLE_AFTER: Duration = Duration::from_millis(50);

pub(super) struct Guard {
    control: Channel,
    parked: Parked,
    terminal: Terminal,
    place: Option<CgroupPath>,
    cgroup: Option<Cgroup>,
    spare: Option<Spare>,
    /// When to check whether dlock is stopped: it has not sent a ping for some time.
    peer_check_at: Option<Moment>,
    /// When to take the measures that a short command is not worth.
    settle_at: Option<Moment>,
    group: Group,
    grace: Duration,
    stop: Stop,
    /// A signal that ends the command was forwarded.
    end_signalled: bool,
    /// The command is stopped (SIGSTOP, SIGTSTP, ...).
    stopped: bool,
    reaped: bool,
    /// The guard cannot do its work. When it exits, dlock takes over.
    failed: bool,
    /// When to measure the tree: a renewal is late.
    measure_at: Option<Moment>,
    /// Set once SIGKILL has been decided.
    killing: Option<Killing>,
    reported_pids: Vec<i32>,
    peer_gone: bool,
    outbox: Outbox,
    /// Descriptors that must stay open until the tree is dead, because closing them frees the lock.
    kept: Vec<OwnedFd>,
}

impl Guard {
    pub(super) fn new(
        control: Channel,
        parked: Parked,
        terminal: Terminal,
        place: Option<CgroupPath>,
        cgroup: Option<Cgroup>,
    ) -> Guard {
        Guard {
            control,
            parked,
            terminal,
            place,
            cgroup,
            spare: None,
            peer_check_at: None,
            settle_at: None,
            group: Group::Shared,
            grace: Duration::ZERO,
            stop: Stop::new(Orphans::Leave, Duration::ZERO),
            end_signalled: false,
            stopped: false,
            reaped: false,
            failed: false,
            measure_at: None,
            killing: None,
            reported_pids: Vec::new(),
            peer_gone: false,
            outbox: Outbox::default(),
            kept: Vec::new(),
        }
    }

    /// Runs until the whole tree has ended.
    pub(super) fn run(mut self) {
        self.queue(&FromGuard::Command { pid: self.parked.pid, cgroup: self.place.clone() });
        self.flush();
        match Sleeper::new() {
            Ok(sleeper) => {
                while !self.stop.is_done() && !self.failed {
                    self.read_control();
                    let more_to_reap = self.reap();
                    self.act(Input::Tick);
                    self.settle();
                    self.measure();
                    self.keep_spare();
                    let pause = self.kill_pass();
                    self.flush();
                    match pause {
                        _ if self.stop.is_done() || self.failed => {}
                        None if more_to_reap => {}
                        // Do not sleep on the sleeper: every death would wake it.
                        Some(pause) => std::thread::sleep(pause),
                        None => {
                            let control = (!self.peer_gone).then_some(&self.control);
                            let arrivals = sleeper.sleep(control, !self.outbox.is_empty(), self.next_wake());
                            self.report_arrivals(arrivals);
                        }
                    }
                }
            }
            Err(error) => {
                self.report(Event::GuardLost(format!("the guard process cannot watch: {error}")));
                self.flush();
                self.act(Input::Kill);
                self.kill_pass();
            }
        }
        self.flush_all();
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }

    /// Runs once the command has run for a moment: raises the priority, locks the memory against being paged out, and
    /// sweeps up what others have left behind. That takes a while, so a short command is spared it. Each step fails
    /// without the privilege for it, which is harmless: the margin before the lease's end allows for that.
    fn settle(&mut self) {
        if self.settle_at.is_some_and(|at| Moment::now() >= at) {
            self.settle_at = None;
            #[cfg(target_os = "linux")]
            sys::raise_priority();
            if let Some(place) = &self.place {
                place.sweep();
            }
        }
    }

    /// Reports the signals that the guard received: a signal is never sent to the guard alone but to every process, and
    /// dlock has to know.
    fn report_arrivals(&mut self, arrivals: Vec<Arrival>) {
        for Arrival { signal, origin } in arrivals {
            if let Origin::Process(sender) = origin {
                self.queue(&FromGuard::Signalled { signal, sender });
            }
        }
        self.flush();
    }

    fn report(&mut self, event: Event) {
        self.queue(&FromGuard::Event(event));
    }

    /// Queues a message; [`Guard::flush`] sends all of them together, so that dlock wakes once.
    fn queue(&mut self, message: &FromGuard) {
        self.outbox.push(message);
    }

    /// Sends what the socket takes; the rest when dlock reads again.
    fn flush(&mut self) {
        if self.outbox.flush(&self.control).is_err() {
            // If dlock is gone, reading detects it.
            self.outbox = Outbox::default();
        }
    }

    /// Sends the rest, however long dlock is stopped: it has no other way to learn how the command ended.
    fn flush_all(&mut self) {
        self.flush();
        while !self.outbox.is_empty() && self.control.wait_writable().is_ok() {
            self.flush();
        }
    }

    fn read_control(&mut self) {
        while !self.peer_gone {
            match self.control.receive() {
                Received::Message(message) => self.handle(message),
                Received::Nothing => return,
                Received::Closed => {
                    self.peer_gone = true;
                    self.act(Input::PeerGone);
                }
            }
        }
    }

    fn handle(&mut self, message: ToGuard) {
        match message {
            ToGuard::Keep => self.kept.extend(self.control.take_descriptor()),
            ToGuard::Start { group, until, orphans, grace, keeps } => {
                if keeps != self.kept.len() {
                    let why = "the guard process has no descriptor left for the lock";
                    self.report(Event::GuardLost(why.into()));
                    return self.act(Input::Kill);
                }
                self.grace = grace;
                self.stop = Stop::new(orphans, grace);
                self.start(group, until);
            }
            ToGuard::Arm(until) => {
                self.act(Input::Arm(until));
                self.measure_at = self.stop.measure_from().map(|(from, _)| from);
            }
            ToGuard::Told(signal) => self.note_end_signal(signal),
            ToGuard::Forward(signal) => self.forward(signal),
            ToGuard::Terminate { kill_at } => self.act(Input::Terminate { kill_at }),
            ToGuard::Kill => self.act(Input::Kill),
            ToGuard::Ping => {
                self.queue(&FromGuard::Pong);
                self.flush();
                self.peer_check_at = Some(Moment::now() + PEER_IS_LATE);
                self.dismiss_spare();
            }
            ToGuard::Continue { foreground } => {
                if foreground {
                    self.terminal.give_to(self.parked.pid);
                }
                if self.stopped {
                    self.signal_command(libc::SIGCONT);
                }
            }
        }
    }

    /// dlock lets the command run right after sending this message: so the guard has the deadline before the command's
    /// first instruction, and is there to see its end.
    fn start(&mut self, group: Group, until: Option<Deadlines>) {
        use nix::unistd::{Pid, setpgid, setsid};
        self.group = group;
        // The first of two processes to do so creates the group (setpgid(2) fails harmlessly after exec): a signal must
        // find it.
        if let Group::Own { .. } = self.group {
            let command = Pid::from_raw(self.parked.pid);
            let _ = setpgid(command, command);
        }
        // Moves the guard out of reach of signals for dlock's process group. A new session is better still, but not
        // while the command has its own process group on a terminal: a group without a process whose parent is in the
        // same session is orphaned, and an orphaned group cannot be stopped by Ctrl-Z (setpgid(2), credentials(7)).
        if matches!(self.group, Group::Own { .. }) && self.terminal.exists() {
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        } else {
            let _ = setsid();
        }
        // It was stopped while parked, together with dlock's process group: that was meant for dlock, which has been
        // continued.
        if self.stopped {
            self.signal_command(libc::SIGCONT);
        }
        self.settle_at = Some(Moment::now() + SETTLE_AFTER);
        self.peer_check_at = Some(Moment::now() + PEER_IS_LATE);
        self.act(Input::Start(until));
        self.measure_at = self.stop.measure_from().map(|(from, _)| from);
    }

    /// A signal that was ignored at the start (nohup, a background job of a script) does not end the command.
    fn note_end_signal(&mut self, signal: i32) {
        self.end_signalled |= signals::ENDING.contains(&signal) && !signals::is_ignored(signal);
    }

    /// Forwards a signal to the command's process group, once.
    fn forward(&mut self, signal: i32) {
        self.note_end_signal(signal);
        if !self.reaped {
            // In a shared group, the shell's own SIGCONT has reached every process already.
            if signal == libc::SIGCONT && self.group == Group::Shared && !self.stopped {
                return;
            }
            self.signal_command(signal);
        } else if signals::ENDING.contains(&signal) {
            // Only background processes are left (`--orphans wait`).
            self.act(Input::Terminate { kill_at: Moment::now() + self.grace });
        }
    }

    /// The command is a child of this process and not reaped, so its pid and process group cannot have been reused.
    fn signal_command(&mut self, signal: i32) {
        if self.reaped {
            return;
        }
        let target = match self.group {
            Group::Own { .. } => -self.parked.pid,
            Group::Shared => self.parked.pid,
        };
        let sent = sys::kill(target, signal).or_else(|errno| match errno {
            // It was let go, and is not in its own group yet.
            Errno::ESRCH => sys::kill(self.parked.pid, signal),
            _ => Err(errno),
        });
        if sent == Err(Errno::EPERM) {
            self.report_not_permitted(self.parked.pid);
        }
    }

    fn act(&mut self, input: Input) {
        for output in self.stop.on(Moment::now(), input) {
            match output {
                Output::ReportDeadline => self.report(Event::DeadlineReached),
                Output::Terminate => self.terminate(),
                Output::Kill => self.start_killing(),
                Output::Finish => {
                    self.report_overdue(0);
                    let orphans_left = self.has_living_child();
                    self.report(Event::Finished { orphans_left });
                }
            }
        }
    }

    /// While dlock is stopped, a spare process stands by in case the guard is killed.
    fn keep_spare(&mut self) {
        let is_needed = !self.reaped && !self.peer_gone && !self.stop.is_stopping();
        if is_needed && self.peer_check_at.is_some_and(|at| Moment::now() >= at) {
            self.peer_check_at = Some(Moment::now() + PEER_IS_LATE);
            let dlock = nix::unistd::getppid().as_raw();
            if !procfs::is_stopped(dlock) {
                return;
            }
            if self.spare.is_none() {
                // While the guard lives, the other children of dlock do not belong to the tree.
                let mut strangers = tree::children_of(dlock);
                strangers.remove(&(std::process::id() as i32));
                let orphans = Tree::below(dlock, strangers);
                self.spare = Spare::fork(orphans, self.cgroup.as_ref()).ok();
            }
        } else if !is_needed {
            self.peer_check_at = None;
            self.dismiss_spare();
        }
    }

    fn dismiss_spare(&mut self) {
        if let Some(spare) = &mut self.spare {
            spare.dismiss();
        }
    }

    fn report_not_permitted(&mut self, pid: i32) {
        if !self.reported_pids.contains(&pid) {
            self.reported_pids.push(pid);
            self.report(Event::NotPermitted(pid));
        }
    }

    /// Handles the state changes of every child: the command, and the orphans that the guard inherits. Returns whether
    /// there may be more: the limit per call has been reached, or a deadline is due.
    fn reap(&mut self) -> bool {
        let due = self.stop.wake();
        let mut count = 0;
        for change in sys::pending_changes() {
            count += 1;
            match change {
                Ok((pid, change)) => {
                    let has_ended = matches!(change, Change::Exited(_) | Change::Killed(_));
                    if let Some(killing) = self.killing.as_mut().filter(|_| has_ended) {
                        killing.killer.forget(pid);
                    }
                    if pid == self.parked.pid {
                        self.command_changed(change);
                    } else if self.spare.as_ref().is_some_and(|spare| spare.pid == pid) && has_ended {
                        self.spare = None;
                    }
                    // If processes fork and exit without a pause, reaping them all would miss the deadline.
                    if count % 64 == 0 && due.is_some_and(|due| Moment::now() >= due) {
                        return true;
                    }
                }
                Err(Errno::ECHILD) => {
                    self.act(Input::TreeGone);
                    return false;
                }
                // A sandbox that does not allow the call: the state of the command cannot be determined.
                Err(error) => {
                    self.failed = true;
                    self.report(Event::GuardLost(format!(
                        "cannot wait for the command: {}",
                        io::Error::from(error)
                    )));
                    return false;
                }
            }
        }
        count == sys::MAX_CHANGES
    }

    fn command_changed(&mut self, change: Change) {
        let ended = match change {
            Change::Stopped(signal) => {
                self.stopped = true;
                return self.report(Event::Stopped(signal));
            }
            Change::Continued => {
                self.stopped = false;
                self.wake_dlock();
                return self.report(Event::Continued);
            }
            Change::Exited(status) => match self.parked.exec_error() {
                Some(errno) => Ended::NotExecuted(errno),
                None => Ended::Exited(status),
            },
            Change::Killed(signal) => Ended::Killed(signal),
        };
        self.reaped = true;
        self.wake_dlock();
        self.report(Event::Ended(ended));
        let by_itself = !matches!(ended, Ended::Killed(_)) && !self.end_signalled;
        self.act(Input::CommandEnded { by_itself });
    }

    /// On a terminal, dlock stops itself when the command is stopped, for the shell to see. If another process
    /// continues or ends only the command, dlock would stay stopped, so the guard continues it.
    fn wake_dlock(&self) {
        let dlock = nix::unistd::getppid().as_raw();
        let by_others = !self.stop.is_stopping() && !self.peer_gone;
        if by_others && self.terminal.exists() && dlock > 1 && procfs::state_of(dlock) == Some('T') {
            let _ = sys::kill(dlock, libc::SIGCONT);
        }
    }

    /// Returns the next moment at which something is due without an event.
    fn next_wake(&self) -> Option<Moment> {
        [self.stop.wake(), self.settle_at, self.measure_at, self.peer_check_at].into_iter().flatten().min()
    }
}
