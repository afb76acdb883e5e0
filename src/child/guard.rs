//! The guarding process: parent of the command, keeper of the deadline. One thread, one loop, no runtime; it talks to
//! nobody but dlock, so that nothing a store or a network does can hold it up.

mod stopping;

use std::os::fd::OwnedFd;
use std::time::Duration;

use self::stopping::Killing;
use super::cgroup::{Cgroup, CgroupPath};
use super::outbox::Outbox;
use super::parked::Parked;
use super::protocol::{Channel, Ended, FromGuard, Group, Received, ToGuard};
use super::signals::{Arrival, Origin};
use super::sleeper::Sleeper;
use super::spare::Spare;
use super::stop::{Deadlines, Input, Orphans, Output, Stop};
use super::sys::{self, Change};
use super::terminal::Terminal;
use super::tree::{self, Tree};
use super::{procfs, signals};
use crate::clock::Moment;

/// dlock asks for a sign of life each second. When it has not for so long, it may be stopped.
const PEER_IS_LATE: Duration = Duration::from_millis(1500);

/// How long a command runs before the guarding process settles down beside it.
const SETTLE_AFTER: Duration = Duration::from_millis(50);

pub(super) struct Guard {
    control: Channel,
    parked: Parked,
    terminal: Terminal,
    place: Option<CgroupPath>,
    cgroup: Option<Cgroup>,
    spare: Option<Spare>,
    /// When to look whether dlock is stopped: it has not asked for a sign of life for some time.
    peer_check_at: Option<Moment>,
    /// When to take the measures that a short command is not worth.
    settle_at: Option<Moment>,
    group: Group,
    grace: Duration,
    stop: Stop,
    /// A signal that ends the command was forwarded.
    told_to_end: bool,
    /// The command is stopped (SIGSTOP, SIGTSTP, ...).
    stopped: bool,
    reaped: bool,
    /// We cannot do our work. dlock does it when we leave.
    is_broken: bool,
    /// When to measure the tree: a renewal is late.
    measure_at: Option<Moment>,
    /// Since SIGKILL was decided.
    killing: Option<Killing>,
    reported: Vec<i32>,
    peer_gone: bool,
    outbox: Outbox,
    /// What must stay open until the tree is dead, because closing it frees the lock.
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
            told_to_end: false,
            stopped: false,
            reaped: false,
            is_broken: false,
            measure_at: None,
            killing: None,
            reported: Vec::new(),
            peer_gone: false,
            outbox: Outbox::default(),
            kept: Vec::new(),
        }
    }

    /// Watches until the tree is over.
    pub(super) fn watch(mut self) {
        self.tell(&FromGuard::Command(self.parked.pid));
        self.speak();
        match Sleeper::new() {
            Ok(sleeper) => {
                while !self.stop.is_done() && !self.is_broken {
                    self.read_control();
                    let more_to_reap = self.reap();
                    self.act(Input::Tick);
                    self.settle();
                    self.measure();
                    self.keep_spare();
                    let pause = self.kill_pass();
                    self.speak();
                    match pause {
                        _ if self.stop.is_done() || self.is_broken => {}
                        None if more_to_reap => {}
                        // Not on the sleeper, which every death would wake.
                        Some(pause) => std::thread::sleep(pause),
                        None => {
                            let control = (!self.peer_gone).then_some(&self.control);
                            let arrivals = sleeper.sleep(control, !self.outbox.is_empty(), self.next_wake());
                            self.note_arrivals(arrivals);
                        }
                    }
                }
            }
            Err(error) => {
                self.tell(&FromGuard::Broken(format!("the guarding process cannot watch: {error}")));
                self.speak();
                self.act(Input::Kill);
                self.kill_pass();
            }
        }
        self.speak_out();
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }

    /// Once the command has run for a moment: first in line for the processor, no page of ours written out, and what
    /// others have left behind swept up. That takes a while, so a short command is spared it; any of it is refused
    /// without the right to it, which is fine: the margin before the lease's end allows for that.
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

    /// Nothing signals this process alone: whoever does signals every process, and dlock has to know.
    fn note_arrivals(&mut self, arrivals: Vec<Arrival>) {
        for Arrival { signal, origin } in arrivals {
            if let Origin::Process(sender) = origin {
                self.tell(&FromGuard::Signalled { signal, sender });
            }
        }
        self.speak();
    }

    /// Notes a message; [`Guard::speak`] sends all of them together, so that dlock wakes once.
    fn tell(&mut self, message: &FromGuard) {
        self.outbox.push(message);
    }

    /// Sends what dlock can take; the rest when it reads again.
    fn speak(&mut self) {
        if self.outbox.flush(&self.control).is_err() {
            // A dlock that is gone is noticed by reading.
            self.outbox = Outbox::default();
        }
    }

    /// Sends the rest, however long dlock is stopped: it cannot know how the command ended otherwise.
    fn speak_out(&mut self) {
        self.speak();
        while !self.outbox.is_empty() && self.control.wait_writable().is_ok() {
            self.speak();
        }
    }

    fn read_control(&mut self) {
        while !self.peer_gone {
            match self.control.receive() {
                Received::Message(message) => self.obey(message),
                Received::Nothing => return,
                Received::Closed => {
                    self.peer_gone = true;
                    self.act(Input::PeerGone);
                }
            }
        }
    }

    fn obey(&mut self, message: ToGuard) {
        match message {
            ToGuard::Keep => self.kept.extend(self.control.take_descriptor()),
            ToGuard::Start { group, until, orphans, grace, keeps } => {
                if keeps != self.kept.len() {
                    self.tell(&FromGuard::Broken(
                        "the guarding process has no descriptor left for the lock".into(),
                    ));
                    return self.act(Input::Kill);
                }
                self.grace = grace;
                self.stop = Stop::new(orphans, grace);
                self.start(group, until.map(Into::into));
            }
            ToGuard::Arm(until) => {
                self.act(Input::Arm(until.into()));
                self.measure_at = self.stop.measure_from().map(|(from, _)| from);
            }
            ToGuard::Told(signal) => self.note_end(signal),
            ToGuard::Forward(signal) => self.forward(signal),
            ToGuard::Terminate { kill_at } => {
                self.act(Input::Terminate { kill_at: Moment::from_boot(kill_at) });
            }
            ToGuard::Kill => self.act(Input::Kill),
            ToGuard::Ping => {
                self.tell(&FromGuard::Pong);
                self.speak();
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

    /// The command is being let go by dlock, after it has sent us this: so the deadline is in our hands before the
    /// command's first instruction, and we are here to see its end.
    fn start(&mut self, group: Group, until: Option<Deadlines>) {
        use nix::unistd::{Pid, setpgid, setsid};
        self.group = group;
        // Whoever comes first makes the group (setpgid(2) fails harmlessly after exec): a signal must find it.
        if let Group::Own { .. } = self.group {
            let command = Pid::from_raw(self.parked.pid);
            let _ = setpgid(command, command);
        }
        // Out of reach of signals for dlock's process group. A session of our own is better still, but not while the
        // command has a group of its own on a terminal: a group in which nobody's parent is of the same session is
        // orphaned, and an orphaned group cannot be stopped by Ctrl-Z (setpgid(2), credentials(7)).
        if matches!(self.group, Group::Own { .. }) && self.terminal.exists() {
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        } else {
            let _ = setsid();
        }
        // Stopped while it was parked, together with dlock's process group: that was for dlock, which goes on.
        if self.stopped {
            self.signal_command(libc::SIGCONT);
        }
        self.settle_at = Some(Moment::now() + SETTLE_AFTER);
        self.peer_check_at = Some(Moment::now() + PEER_IS_LATE);
        self.act(Input::Start(until));
        self.measure_at = self.stop.measure_from().map(|(from, _)| from);
    }

    /// One that was ignored at the start (nohup, a background job of a script) tells the command nothing.
    fn note_end(&mut self, signal: i32) {
        self.told_to_end |= signals::ENDING.contains(&signal) && !signals::is_ignored(signal);
    }

    /// Passes a signal on to the command's process group, once.
    fn forward(&mut self, signal: i32) {
        self.note_end(signal);
        if !self.reaped {
            // On a shared group the shell's own SIGCONT has reached everyone already.
            if signal == libc::SIGCONT && self.group == Group::Shared && !self.stopped {
                return;
            }
            self.signal_command(signal);
        } else if signals::ENDING.contains(&signal) {
            // Only what was left in the background is still there (`--orphans wait`).
            self.act(Input::Terminate { kill_at: Moment::now() + self.grace });
        }
    }

    /// The command is our child and not reaped, so neither its number nor its group's can mean anybody else.
    fn signal_command(&mut self, signal: i32) {
        if self.reaped {
            return;
        }
        let target = match self.group {
            Group::Own { .. } => -self.parked.pid,
            Group::Shared => self.parked.pid,
        };
        let sent = sys::kill(target, signal).or_else(|error| match error.raw_os_error() {
            // Let go, and not in its own group yet.
            Some(libc::ESRCH) => sys::kill(self.parked.pid, signal),
            _ => Err(error),
        });
        if sent.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) {
            self.report_not_permitted(self.parked.pid);
        }
    }

    fn act(&mut self, input: Input) {
        for output in self.stop.on(Moment::now(), input) {
            match output {
                Output::ReportDeadline => self.tell(&FromGuard::DeadlineReached),
                Output::Terminate => self.terminate(),
                Output::Kill => self.begin_to_kill(),
                Output::Finish => {
                    self.report_overdue(0);
                    let orphans_left = self.has_living_child();
                    self.tell(&FromGuard::Finished { orphans_left });
                }
            }
        }
    }

    /// While dlock is stopped a spare process stands by, in case that we are killed.
    fn keep_spare(&mut self) {
        let is_needed = !self.reaped && !self.peer_gone && !self.stop.is_stopping();
        if is_needed && self.peer_check_at.is_some_and(|at| Moment::now() >= at) {
            self.peer_check_at = Some(Moment::now() + PEER_IS_LATE);
            let dlock = nix::unistd::getppid().as_raw();
            if !procfs::is_stopped(dlock) {
                return;
            }
            if self.spare.is_none() {
                // While we live, whatever else is a child of dlock's is not of the tree.
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
        if !self.reported.contains(&pid) {
            self.reported.push(pid);
            self.tell(&FromGuard::NotPermitted(pid));
        }
    }

    /// Takes in the state changes of every child: the command's, and those of the orphans we inherit. Returns whether there
    /// may be more: a portion is full, or something else is due.
    fn reap(&mut self) -> bool {
        let due = self.stop.wake();
        let mut count = 0;
        for change in sys::portion_of_changes() {
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
                    // Where processes fork and end without a pause, the dead take longer than there is time.
                    if count % 64 == 0 && due.is_some_and(|due| Moment::now() >= due) {
                        return true;
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    self.act(Input::TreeGone);
                    return false;
                }
                // A sandbox that does not know the call: nothing can be told of the command.
                Err(error) => {
                    self.is_broken = true;
                    self.tell(&FromGuard::Broken(format!("cannot wait for the command: {error}")));
                    return false;
                }
            }
        }
        count == sys::PORTION
    }

    fn command_changed(&mut self, change: Change) {
        let ended = match change {
            Change::Stopped(signal) => {
                self.stopped = true;
                return self.tell(&FromGuard::Stopped(signal));
            }
            Change::Continued => {
                self.stopped = false;
                self.wake_dlock();
                return self.tell(&FromGuard::Continued);
            }
            Change::Exited(status) => match self.parked.exec_error() {
                Some(errno) => Ended::NotExecuted(errno),
                None => Ended::Exited(status),
            },
            Change::Killed(signal) => Ended::Killed(signal),
        };
        self.reaped = true;
        self.wake_dlock();
        self.tell(&FromGuard::Ended(ended));
        let by_itself = !matches!(ended, Ended::Killed(_)) && !self.told_to_end;
        self.act(Input::CommandEnded { by_itself });
    }

    /// On a terminal dlock stops itself when the command is stopped, for the shell to see. Somebody who continues or ends
    /// the command alone knows nothing of dlock, which would stay stopped.
    fn wake_dlock(&self) {
        let dlock = nix::unistd::getppid().as_raw();
        let by_others = !self.stop.is_stopping() && !self.peer_gone;
        if by_others && self.terminal.exists() && dlock > 1 && procfs::state_of(dlock) == Some('T') {
            let _ = sys::kill(dlock, libc::SIGCONT);
        }
    }

    /// The next moment at which something has to be done though nothing happens.
    fn next_wake(&self) -> Option<Moment> {
        [self.stop.wake(), self.settle_at, self.measure_at, self.peer_check_at].into_iter().flatten().min()
    }
}
