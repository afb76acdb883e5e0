//! dlock's half of the supervision: what the guarding process tells, and what to do when it can tell nothing any more.

use std::collections::HashSet;
use std::io::{self, PipeWriter, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::cgroup::{Cgroup, CgroupPath};
use super::forwarding::{Forwarding, Processes};
use super::heartbeat::{Heartbeat, Seems};
use super::killer::Killer;
use super::launch::{Half, SplitError};
use super::procfs;
use super::protocol::{Channel, Ended, FromGuard, Group, Launch, Received, ToGuard, frame};
use super::signals::Arrival;
use super::stop::{Deadlines, Orphans};
use super::sys::{self, Change};
use super::terminal::Terminal;
use super::tree::{self, Tree};
use crate::clock::Moment;
use crate::readiness::Readiness;

/// What happened to the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was stopped by this signal.
    Stopped(i32),
    /// It goes on after a stop.
    Continued,
    /// No renewal came in time: the tree is being stopped.
    DeadlineReached,
    /// A process of the tree may not be signalled by us.
    NotPermitted(i32),
    /// A process of the tree does not die of SIGKILL.
    StillAlive(i32),
    /// By the time by which the tree had to be dead, so many of its processes were not known to be.
    Overdue(usize),
    /// The command itself has ended.
    Ended(Ended),
    /// The whole tree is over, or what is left of it lives on without the lock.
    Finished {
        /// Background processes live on.
        orphans_left: bool,
    },
    /// The guarding process is dead, stopped or broken; why. Whoever sees this calls [`Supervisor::kill_tree`].
    GuardLost(String),
}

/// How long a guarding process may take to say why it leaves.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The command and its guard, as dlock's half sees them.
pub struct Supervisor {
    channel: Channel,
    readiness: Readiness,
    guard: i32,
    guard_reaped: bool,
    terminal: Terminal,
    /// What the parked command waits for.
    word: Option<PipeWriter>,
    place: Option<CgroupPath>,
    command: Option<i32>,
    group: Group,
    finished: bool,
    forwarding: Forwarding,
    command_ended: bool,
    heartbeat: Heartbeat,
    /// The guarding process has begun to stop the tree because no renewal came in time.
    deadline_noticed: bool,
    /// Children that are not of our making: those of the program that replaced itself with dlock, and, for the first process
    /// of a PID namespace, its orphans.
    strangers: HashSet<i32>,
}

impl Supervisor {
    /// Takes up the work on the current runtime.
    ///
    /// # Errors
    /// The socket cannot be watched.
    pub fn new(half: Half) -> io::Result<Supervisor> {
        let readiness = match Readiness::of(&half.channel) {
            Ok(readiness) => readiness,
            Err(error) => {
                half.dismiss();
                return Err(error);
            }
        };
        Ok(Supervisor {
            readiness,
            channel: half.channel,
            guard: half.guard,
            guard_reaped: false,
            terminal: half.terminal,
            word: Some(half.word),
            place: half.place,
            command: None,
            group: Group::Shared,
            finished: false,
            forwarding: Forwarding::new(half.argv),
            command_ended: false,
            heartbeat: Heartbeat::default(),
            deadline_noticed: false,
            strangers: HashSet::new(),
        })
    }

    /// Lets the command run, until the given moments if there is a lease. `kept` are descriptors whose closing would
    /// free the lock: the guarding process keeps duplicates until the tree is dead.
    ///
    /// # Errors
    /// The guarding process is gone; the command has not run.
    pub fn start(
        &mut self,
        mut launch: Launch,
        until: Option<Deadlines>,
        orphans: Orphans,
        grace: Duration,
        kept: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut family = vec![self.guard];
        if self.terminal.exists() {
            family.extend(Tree::below(self.guard, HashSet::new()).members());
        }
        launch.group = self.terminal.group_for_command(&family);
        self.group = launch.group;
        launch.not_after = until.map(|deadlines| deadlines.term.since_boot());
        for descriptor in kept {
            self.channel.send(&ToGuard::Keep, Some(*descriptor))?;
        }
        let keeps = kept.len();
        let message =
            ToGuard::Start { group: launch.group, until: until.map(Into::into), orphans, grace, keeps };
        self.channel.send(&message, None)?;
        // Only now: from here on the command runs, and the guarding process has its deadline.
        let mut word = self.word.take().ok_or(io::ErrorKind::AlreadyExists)?;
        word.write_all(&frame(&launch)?)?;
        // The command runs meanwhile.
        self.look_for_strangers();
        self.heartbeat.begin(Moment::now());
        self.forwarding.begin(self.group);
        Ok(())
    }

    /// Puts dlock's half first in line for the processor, so that a busy host does not cost it a renewal. The command
    /// has been forked before and is what it was.
    pub fn be_punctual(&self) {
        #[cfg(target_os = "linux")]
        sys::raise_priority();
    }

    /// Tells the guarding process of an acknowledged renewal.
    pub fn arm(&mut self, deadlines: Deadlines) {
        self.send(&ToGuard::Arm(deadlines.into()));
        self.update_strangers();
    }

    /// Passes a signal on to the command, at once or when it is known that the command has not got it by itself.
    pub fn forward(&mut self, arrival: Arrival) {
        if !self.command_ended && self.forwarding.hold(arrival) {
            self.send(&ToGuard::Told(arrival.signal));
        } else {
            self.send(&ToGuard::Forward(arrival.signal));
        }
    }

    /// The terminal has signalled the process group that the command shares with dlock.
    pub fn note_terminal(&mut self) {
        self.forwarding.note_terminal();
    }

    /// When [`Supervisor::forward_due`] is to be called.
    pub fn forward_at(&self) -> Option<Moment> {
        self.forwarding.wake()
    }

    /// Passes on what was held back and has not reached the command by itself.
    pub fn forward_due(&mut self) {
        let processes = Processes { guard: self.guard, command: self.command };
        for signal in self.forwarding.due(processes) {
            self.send(&ToGuard::Forward(signal));
        }
    }

    /// SIGTERM to the whole tree now, SIGKILL at the given moment.
    pub fn terminate(&mut self, kill_at: Moment) {
        self.stop(&ToGuard::Terminate { kill_at: kill_at.since_boot() });
    }

    /// SIGKILL to the whole tree now.
    pub fn kill(&mut self) {
        self.stop(&ToGuard::Kill);
    }

    /// Whether the guarding process has reported that it stops the tree because no renewal came in time.
    pub fn deadline_noticed(&self) -> bool {
        self.deadline_noticed
    }

    /// When [`Supervisor::beat`] is due.
    pub fn beat_at(&self) -> Option<Moment> {
        self.heartbeat.due().filter(|_| !self.finished)
    }

    /// Asks the guarding process for a sign of life, or finds that it gives none: it is stopped by a tracer, or hangs.
    pub fn beat(&mut self) -> Option<Event> {
        let guard = self.guard_seems();
        if self.heartbeat.is_missed(Moment::now(), guard) {
            return Some(Event::GuardLost("the guarding process does not answer".into()));
        }
        self.send(&ToGuard::Ping);
        None
    }

    /// The tree has to be stopped now: a guarding process that cannot do that must be noticed soon, and one that has not
    /// read its messages for so long that its socket is full counts as lost.
    fn stop(&mut self, message: &ToGuard) {
        if self.channel.send(message, None).is_err() {
            self.heartbeat.give_up();
            return;
        }
        let guard = self.guard_seems();
        self.heartbeat.expect_soon(Moment::now(), guard);
        self.send(&ToGuard::Ping);
    }

    /// Later on, others can only come from those, or, to the first process of a PID namespace, from anywhere in it.
    fn update_strangers(&mut self) {
        if !self.strangers.is_empty() || std::process::id() == 1 {
            self.look_for_strangers();
        }
    }

    fn guard_seems(&self) -> Seems {
        if procfs::is_stopped(self.guard) { Seems::Stopped } else { Seems::Running }
    }

    /// While the guarding process lives, every other child of ours is a stranger: it is the one that inherits the orphans of
    /// the tree.
    fn look_for_strangers(&mut self) {
        let mut children = tree::children_of(std::process::id() as i32);
        children.remove(&self.guard);
        if !self.guard_reaped && !procfs::is_zombie(self.guard) {
            self.strangers = children;
        }
    }

    /// Lets a stopped command go on, in the foreground if that is where dlock is.
    pub fn resume(&self) {
        self.send(&ToGuard::Continue { foreground: self.may_have_foreground() });
    }

    /// After dlock itself was put into the foreground: hands it to a command that has a group of its own.
    pub fn pass_foreground_on(&self) {
        if let Some(command) = self.command.filter(|_| self.may_have_foreground()) {
            self.terminal.give_to(command);
        }
    }

    /// After the command has ended: takes the terminal back from it, so that its signals reach dlock.
    pub fn take_foreground_back(&self) {
        if let (Group::Own { .. }, Some(command)) = (self.group, self.command) {
            self.terminal.take_back(command);
        }
    }

    fn may_have_foreground(&self) -> bool {
        matches!(self.group, Group::Own { .. }) && self.terminal.is_foreground()
    }

    /// Whether a signal of the terminal has reached the command already, because it is in dlock's own group.
    pub fn shares_group(&self) -> bool {
        self.group == Group::Shared
    }

    /// Whether a stop of the command is to stop dlock too, for a shell to see: there is a terminal, and the command
    /// has a group of its own on it.
    pub fn mirrors_stops(&self) -> bool {
        !self.shares_group() && self.terminal.exists()
    }

    fn send(&self, message: &ToGuard) {
        // A guarding process that is gone is noticed by `next` and by its SIGCHLD.
        let _ = self.channel.send(message, None);
    }

    /// Whether the command's process exists, parked or running.
    pub fn has_command(&self) -> bool {
        self.command.is_some()
    }

    /// After [`Supervisor::start`] has failed: why the guarding process leaves, or has left.
    pub async fn last_words(&mut self) -> String {
        let guard_lost = async {
            loop {
                if let Event::GuardLost(why) = self.next().await {
                    return why;
                }
            }
        };
        let silence = |_| "the guarding process does not answer".into();
        tokio::time::timeout(LAST_WORDS, guard_lost).await.unwrap_or_else(silence)
    }

    /// Waits for the next event. Dropping the future loses none.
    pub async fn next(&mut self) -> Event {
        loop {
            let message = match self.channel.receive() {
                Received::Message(message) => message,
                Received::Closed if self.finished => return std::future::pending().await,
                Received::Closed => return Event::GuardLost("the guarding process died".into()),
                Received::Nothing => {
                    self.readiness.wait().await;
                    continue;
                }
            };
            return match message {
                FromGuard::Command(pid) => {
                    self.command = Some(pid);
                    continue;
                }
                FromGuard::Stopped(signal) => Event::Stopped(signal),
                FromGuard::Continued => Event::Continued,
                FromGuard::Pong => {
                    self.heartbeat.answered();
                    continue;
                }
                FromGuard::DeadlineReached => {
                    self.deadline_noticed = true;
                    Event::DeadlineReached
                }
                FromGuard::Overdue(alive) => Event::Overdue(alive),
                FromGuard::NotPermitted(pid) => Event::NotPermitted(pid),
                FromGuard::StillAlive(pid) => Event::StillAlive(pid),
                FromGuard::Signalled { signal, sender } => {
                    self.forwarding.note_copy(signal, sender);
                    continue;
                }
                FromGuard::Ended(ended) => {
                    self.command_ended = true;
                    for signal in self.forwarding.finish() {
                        self.send(&ToGuard::Forward(signal));
                    }
                    Event::Ended(ended)
                }
                FromGuard::Finished { orphans_left } => {
                    self.finished = true;
                    Event::Finished { orphans_left }
                }
                FromGuard::NotForked(errno) => Event::GuardLost(not_forked(errno)),
                FromGuard::Broken(why) => Event::GuardLost(why),
            };
        }
    }

    /// After SIGCHLD: whether the guarding process was stopped. Its death is told by [`Supervisor::next`].
    pub fn guard_stopped(&mut self) -> Option<Event> {
        let mut stopped = false;
        while let Ok(Some((pid, change))) = sys::wait_any() {
            match change {
                Change::Exited(_) | Change::Killed(_) => self.reaped(pid),
                Change::Stopped(_) if pid == self.guard => stopped = true,
                Change::Stopped(_) | Change::Continued => {}
            }
        }
        self.update_strangers();
        stopped.then(|| Event::GuardLost("the guarding process was stopped".into()))
    }

    fn reaped(&mut self, pid: i32) {
        self.guard_reaped |= pid == self.guard;
        self.strangers.remove(&pid);
        self.forwarding.reaped(pid);
    }

    /// Does the guarding process' work when that cannot: kills it (its orphans then become ours) and the whole tree,
    /// and returns when the last process is dead. Dropping the future leaves what is alive alive.
    pub async fn kill_tree(&mut self) {
        #[cfg(target_os = "linux")]
        sys::lower_priority();
        if !self.guard_reaped {
            let _ = sys::kill(self.guard, libc::SIGKILL);
        }
        if let Some(cgroup) = self.cgroup() {
            let _ = cgroup.kill();
        }
        let own = std::process::id() as i32;
        let mut killer = Killer::of(Tree::below(own, self.strangers.clone()));
        loop {
            let pass = killer.pass();
            let has_children = self.reap_into(&mut killer);
            if !has_children || killer.is_done() {
                self.finished = true;
                self.guard_reaped = true;
                self.cgroup().inspect(Cgroup::remove);
                return;
            }
            match killer.pause_after(pass) {
                Duration::ZERO => tokio::task::yield_now().await,
                pause => tokio::time::sleep(pause).await,
            }
        }
    }

    /// Reaps what has died by now, and answers whether we have any child left.
    fn reap_into(&mut self, killer: &mut Killer) -> bool {
        for change in sys::portion_of_changes() {
            match change {
                Ok((pid, Change::Exited(_) | Change::Killed(_))) => {
                    self.reaped(pid);
                    killer.forget(pid);
                }
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// The command's cgroup, if the guarding process has made one.
    fn cgroup(&self) -> Option<Cgroup> {
        self.place.as_ref().and_then(|place| Cgroup::open(place).ok())
    }

    /// Takes the terminal back and waits for the guarding process to leave, which it does at once after
    /// [`Event::Finished`]. A parked command that was never started goes with it.
    pub fn dismiss(self) {
        self.take_foreground_back();
        // Closing our end is what tells a guard whose command never ran.
        drop((self.channel, self.readiness, self.word));
        if !self.guard_reaped {
            // It is leaving; unless somebody has stopped it at just this moment.
            if !sys::has_ended(self.guard, Duration::from_millis(500)) {
                let _ = sys::kill(self.guard, libc::SIGKILL);
                // In the sleep of a hung disk, or a freezer, even that takes effect only later.
                if !sys::has_ended(self.guard, Duration::from_millis(100)) {
                    return;
                }
            }
            let _ = sys::reap(self.guard);
        }
    }
}

fn not_forked(errno: i32) -> String {
    SplitError::Process(io::Error::from_raw_os_error(errno)).to_string()
}
