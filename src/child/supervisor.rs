//! The supervisor, dlock's side of the supervision: it handles the guard's reports, and takes over when the guard
//! fails.

mod takeover;

use std::collections::{HashSet, VecDeque};
use std::io::{self, PipeWriter, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::cgroup::CgroupPath;
use super::deadlines::Deadlines;
use super::forwarder::{Forwarder, Processes};
use super::heartbeat::Heartbeat;
use super::procfs;
use super::protocol::{Channel, Event, FromGuard, Group, Launch, Received, ToGuard, frame};
use super::signals::Arrival;
use super::stop::StopOptions;
use super::sys;
use super::terminal::Terminal;
use super::tree::Tree;
use super::wait;
use crate::clock::Moment;
use crate::readiness::Readiness;

/// How long a guard may take to report why it exits.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the guard may hold up a command that has its own process group on a terminal.
const READY_TIMEOUT: Duration = Duration::from_millis(200);

/// The supervisor of the command and its guard.
pub struct Supervisor {
    channel: Channel,
    /// On the runtime, once there is one.
    readiness: Option<Readiness>,
    guard: i32,
    guard_reaped: bool,
    terminal: Terminal,
    launch_pipe: Option<PipeWriter>,
    cgroup_path: Option<CgroupPath>,
    command: Option<i32>,
    group: Group,
    finished: bool,
    forwarder: Forwarder,
    command_ended: bool,
    heartbeat: Heartbeat,
    /// The guard has begun to kill the tree, or to stop it because no renewal was acknowledged in time.
    guard_kills: bool,
    /// Events that came while a reply of the guard was awaited.
    early: VecDeque<Event>,
    /// Children that dlock did not create: those of the program that replaced itself with dlock, and, if dlock is the
    /// first process of a PID namespace, its orphans.
    strangers: HashSet<i32>,
}

impl Supervisor {
    /// `launch_pipe` is the pipe on which the parked command waits for its launch message; `strangers` are the children that
    /// dlock had before.
    pub(super) fn new(
        channel: Channel,
        guard: i32,
        terminal: Terminal,
        launch_pipe: PipeWriter,
        argv: sys::ArgvMemory,
        strangers: HashSet<i32>,
    ) -> Supervisor {
        Supervisor {
            channel,
            readiness: None,
            guard,
            guard_reaped: false,
            terminal,
            launch_pipe: Some(launch_pipe),
            cgroup_path: None,
            command: None,
            group: Group::Shared,
            finished: false,
            forwarder: Forwarder::new(argv),
            command_ended: false,
            heartbeat: Heartbeat::default(),
            guard_kills: false,
            early: VecDeque::new(),
            strangers,
        }
    }

    /// Begins to read the guard's messages, on the current runtime. Before that, [`Supervisor::next`] returns no event.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn watch(&mut self) -> io::Result<()> {
        self.readiness = Some(Readiness::of(&self.channel)?);
        Ok(())
    }

    /// Lets the command run, until the given moments if there is a lease. `kept` are descriptors whose closing would
    /// free the lock: the guard keeps duplicates until the tree is dead.
    ///
    /// # Errors
    /// The guard is gone; the command has not run. It has not run either if the future is dropped.
    pub async fn start(
        &mut self,
        mut launch: Launch,
        until: Option<Deadlines>,
        stop: StopOptions,
        kept: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut our_pids = vec![self.guard];
        if self.terminal.exists() {
            our_pids.extend(Tree::below(self.guard, HashSet::new()).members());
        }
        launch.group = self.terminal.group_for_command(&our_pids);
        self.group = launch.group;
        launch.not_after = until.map(|deadlines| deadlines.term);
        for descriptor in kept {
            self.channel.send(&ToGuard::Keep, Some(*descriptor))?;
        }
        // The guard was stopped with dlock's process group, and dlock was continued alone.
        if self.guard_stopped().is_some() {
            self.continue_guard();
        }
        let keeps = kept.len();
        let message = ToGuard::Start { group: launch.group, until, stop, keeps };
        self.channel.send(&message, None)?;
        if self.terminal.exists() && launch.group != Group::Shared {
            let latest = Moment::now() + READY_TIMEOUT;
            self.await_guard(until.map_or(latest, |deadlines| latest.min(deadlines.earliest))).await?;
            // The command does not run: the lease has ended, or the guard cannot keep the lock.
            if self.guard_kills || self.command_ended {
                return Ok(());
            }
        }
        // Only now: from here on the command runs, and the guard has its deadline.
        let mut launch_pipe = self.launch_pipe.take().ok_or(io::ErrorKind::AlreadyExists)?;
        launch_pipe.write_all(&frame(&launch)?)?;
        // The command runs already.
        self.update_strangers();
        self.heartbeat.begin(Moment::now());
        self.forwarder.begin(self.group);
        Ok(())
    }

    /// Waits until the guard has done what it was ordered to do, until this moment at most: a guard that is late, or stopped,
    /// does not keep the command from running. After that, the guard sees a Ctrl-C that only the command receives.
    ///
    /// # Errors
    /// The guard is gone.
    async fn await_guard(&mut self, until: Moment) -> io::Result<()> {
        self.ping();
        let replied = async {
            loop {
                match self.receive().await.ok_or(io::ErrorKind::BrokenPipe)? {
                    FromGuard::Pong => {
                        self.heartbeat.note_reply();
                        return Ok(());
                    }
                    message => {
                        let event = self.handle(message);
                        self.early.extend(event);
                    }
                }
            }
        };
        tokio::time::timeout(until - Moment::now(), replied).await.unwrap_or(Ok(()))
    }

    /// Reports an acknowledged renewal to the guard.
    pub fn arm(&mut self, deadlines: Deadlines) {
        self.send(&ToGuard::Arm(deadlines));
        self.update_strangers();
    }

    /// Forwards a signal to the command, at once or when it is known that the command has not received it directly.
    pub fn forward(&mut self, arrival: Arrival) {
        if !self.command_ended && self.forwarder.hold(arrival) {
            self.send(&ToGuard::Received(arrival.signal));
        } else {
            self.send(&ToGuard::Forward(arrival.signal));
        }
    }

    /// Notes that the terminal has signalled the process group that the command shares with dlock.
    pub fn note_terminal(&mut self) {
        self.forwarder.note_terminal();
    }

    /// Returns when [`Supervisor::on_time`] is due.
    pub fn wake(&self) -> Option<Moment> {
        [self.beat_at(), self.forwarder.wake()].into_iter().flatten().min()
    }

    /// Forwards the signals that were held back and have not reached the command directly, and pings the guard. Returns an
    /// event if that does not reply: it is stopped by a tracer, or hangs.
    pub fn on_time(&mut self) -> Option<Event> {
        let is_due = |at: Option<Moment>| at.is_some_and(|at| Moment::now() >= at);
        if is_due(self.forwarder.wake()) {
            let processes = Processes { guard: self.guard, command: self.command };
            for signal in self.forwarder.due(processes) {
                self.send(&ToGuard::Forward(signal));
            }
        }
        if !is_due(self.beat_at()) {
            return None;
        }
        if self.heartbeat.is_missed(Moment::now(), self.guard_state()) {
            return Some(Event::GuardLost("the guard process does not answer".into()));
        }
        self.update_strangers();
        self.ping();
        None
    }

    fn beat_at(&self) -> Option<Moment> {
        self.heartbeat.due().filter(|_| !self.finished)
    }

    /// Sends the stop signal to the whole tree now, and SIGKILL at the given moment.
    pub fn terminate(&mut self, kill_at: Moment) {
        self.stop(&ToGuard::Terminate { kill_at });
    }

    /// Sends SIGKILL to the whole tree now.
    pub fn kill(&mut self) {
        self.stop(&ToGuard::Kill);
    }

    /// Returns whether the guard has reported that it kills the tree.
    pub fn guard_kills(&self) -> bool {
        self.guard_kills
    }

    /// Returns whether the command is stopped, as far as that can be seen.
    pub fn is_command_stopped(&self) -> bool {
        !procfs::is_usable() || self.command.is_some_and(procfs::is_stopped)
    }

    /// The tree has to be stopped now: a guard that cannot do that must be detected soon, and one that has not read its
    /// messages for so long that its socket is full is considered lost.
    fn stop(&mut self, message: &ToGuard) {
        if self.channel.send(message, None).is_err() {
            self.heartbeat.give_up();
            return;
        }
        let guard = self.guard_state();
        self.heartbeat.expect_soon(Moment::now(), guard);
        self.heartbeat.note_request();
    }

    fn ping(&mut self) {
        if self.channel.send(&ToGuard::Ping, None).is_ok() {
            self.heartbeat.note_request();
        }
    }

    /// Continues a stopped command, in the foreground if dlock is there.
    pub fn resume(&self) {
        self.send(&ToGuard::Continue { foreground: self.may_have_foreground() });
    }

    /// After dlock was put into the foreground: passes it on to a command that has its own process group.
    pub fn pass_foreground_on(&self) {
        if let Some(command) = self.command.filter(|_| self.may_have_foreground()) {
            self.terminal.give_to(command);
        }
    }

    /// After the command has ended: takes the terminal back, so that the terminal's signals reach dlock.
    pub fn take_foreground_back(&self) {
        if let (Group::Own { .. }, Some(command)) = (self.group, self.command) {
            self.terminal.take_back(command);
        }
    }

    fn may_have_foreground(&self) -> bool {
        matches!(self.group, Group::Own { .. }) && !self.command_ended && self.terminal.is_foreground()
    }

    /// Returns whether the command is in dlock's process group, and so receives the terminal's signals directly.
    pub fn shares_group(&self) -> bool {
        self.group == Group::Shared
    }

    /// Returns whether a stop of the command is to stop dlock too, for a shell to see: there is a terminal, and the
    /// command has its own process group on it.
    pub fn mirrors_stops(&self) -> bool {
        !self.shares_group() && self.terminal.exists()
    }

    fn send(&self, message: &ToGuard) {
        // If the guard is gone, `next` and its SIGCHLD detect it.
        let _ = self.channel.send(message, None);
    }

    /// Returns whether the command's process exists, parked or running.
    pub fn has_command(&self) -> bool {
        self.command.is_some()
    }

    /// After [`Supervisor::start`] has failed: returns why the guard exits, or has exited.
    pub async fn failure_of_guard(&mut self) -> String {
        let guard_lost = async {
            loop {
                if let Event::GuardLost(why) = self.next().await {
                    return why;
                }
            }
        };
        let no_reply = |_| "the guard process does not answer".into();
        tokio::time::timeout(FAREWELL_TIMEOUT, guard_lost).await.unwrap_or_else(no_reply)
    }

    /// Waits for the next event. Dropping the future loses none.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.early.pop_front() {
                return event;
            }
            let event = match self.receive().await {
                Some(message) => self.handle(message),
                None if self.finished => std::future::pending().await,
                None => Some(Event::GuardLost("the guard process died".into())),
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    /// Waits for the next message; `None` if the guard is gone. Dropping the future loses none.
    async fn receive(&mut self) -> Option<FromGuard> {
        loop {
            match (self.channel.receive(), &self.readiness) {
                (Received::Message(message), _) => return Some(message),
                (Received::Closed, _) => return None,
                (Received::Nothing, Some(readiness)) => readiness.wait().await,
                (Received::Nothing, None) => std::future::pending().await,
            }
        }
    }

    fn handle(&mut self, message: FromGuard) -> Option<Event> {
        match message {
            FromGuard::Command { pid, cgroup } => {
                self.command = Some(pid);
                self.cgroup_path = cgroup;
            }
            FromGuard::Pong => self.heartbeat.note_reply(),
            FromGuard::Signalled { signal, sender } => self.forwarder.note_copy(signal, sender),
            FromGuard::Event(event) => {
                self.note(&event);
                return Some(event);
            }
        }
        None
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Killing => self.guard_kills = true,
            Event::Ended(_) => {
                self.command_ended = true;
                for signal in self.forwarder.finish() {
                    self.send(&ToGuard::Forward(signal));
                }
            }
            Event::Finished { .. } => self.finished = true,
            _ => {}
        }
    }

    /// Takes the terminal back and waits for the guard to exit, which it does at once after [`Event::Finished`]. A
    /// parked command that was never started exits with it.
    pub fn dismiss(self) {
        self.take_foreground_back();
        // Closing this end notifies a guard whose command never ran.
        drop((self.channel, self.readiness, self.launch_pipe));
        if !self.guard_reaped {
            wait::reap_exiting(self.guard);
        }
    }
}
