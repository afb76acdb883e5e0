//! The second phase: the command runs, the keepers renew its locks, signals are forwarded.
//!
//! Called by `run`. What always holds: whatever ends this phase, the command has ended after it, and its tree unless
//! `--orphans leave` spares it.

mod renewal;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::Run;
use super::supervised::{Stopped, Supervised, Unguarded};
use crate::child::protocol::{Ended, Launch};
use crate::child::signals::{self, Arrival, Origin};
use crate::child::{Deadlines, Event, Supervisor, sys};
use crate::clock::Moment;
use crate::commands::or_never;
use crate::lease::acquire_all::{HeldLock, Keepers};
use crate::lease::keeper;
use crate::lease::validity::{MARGIN, Validity};
use crate::priority;
use crate::settings::OnLost;

/// The longest grace after SIGTERM when the store has lost the lock and no other client holds it yet.
const LONGEST_GRACE_AFTER_LOSS: Duration = Duration::from_secs(1);

/// How long a command runs before dlock locks its own memory.
const SETTLE_AFTER: Duration = Duration::from_millis(50);

impl Run<'_> {
    /// Runs the command until it has ended, or must end because of one of the locks.
    pub(super) async fn supervise(
        &self,
        held: &[HeldLock<'_>],
        keepers: &mut Keepers<'_>,
        launch: Launch,
        supervisor: &mut Supervisor,
    ) -> Supervised {
        let plan = self.plan;
        let failed = |why: String| Supervised {
            ran: false,
            stopped: Some(Stopped::Guard(why)),
            ..Supervised::at_first(held)
        };
        let max_runtime = plan.settings.max_runtime();
        let mut supervision = Supervision {
            run: self,
            supervisor,
            settle_at: Some(Moment::now() + SETTLE_AFTER),
            max_runtime_at: (!max_runtime.is_zero()).then(|| Moment::now() + max_runtime),
            command_stopped: false,
            resume_when_ours: None,
            checked: false,
            supervised: Supervised::at_first(held),
        };
        let kept: Vec<BorrowedFd<'_>> =
            held.iter().flat_map(|held| &held.kept).map(|descriptor| descriptor.as_fd()).collect();
        // A busy host must not delay a renewal, also if it is the command that keeps it busy from its first instruction on.
        // The priority of the command, which was forked before, does not change.
        priority::raise();
        let deadlines = supervision.deadlines();
        let stop = plan.settings.stop_options(plan.terms.grace);
        if supervision.supervisor.start(launch, deadlines, stop, &kept).await.is_err() {
            let why = supervision.supervisor.failure_of_guard().await;
            supervision.kill_tree().await;
            return failed(why);
        }
        loop {
            let due = supervision.due();
            let step = tokio::select! {
                biased;
                (lock, event) = keepers.next() => {
                    supervision.on_keeper(lock, event);
                    Progress::GoOn
                }
                event = supervision.supervisor.next() => supervision.on_child(event),
                arrival = self.signals.next() => supervision.on_signal(arrival, keepers),
                () = or_never(due.map(|due| self.alarm.until(due))) => supervision.on_time(),
            };
            match step {
                Progress::GoOn => {}
                Progress::Done => return supervision.supervised,
                Progress::GuardLost => {
                    // The locks are renewed until the last process of the tree is dead.
                    let mut renewals = Vec::new();
                    let renewed = async {
                        loop {
                            let (lock, event) = keepers.next().await;
                            if let keeper::Event::Renewed { validity, took } = event {
                                renewals.push((lock, validity, took));
                            }
                        }
                    };
                    tokio::select! {
                        biased;
                        () = renewed => {}
                        () = supervision.kill_tree() => {}
                    }
                    // The release may take as long as the leases last.
                    for (lock, validity, took) in renewals {
                        supervision.supervised.locks[lock].note_renewal(validity, took);
                    }
                    return supervision.supervised;
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    GoOn,
    Done,
    GuardLost,
}

struct Supervision<'a> {
    run: &'a Run<'a>,
    supervisor: &'a mut Supervisor,
    settle_at: Option<Moment>,
    max_runtime_at: Option<Moment>,
    command_stopped: bool,
    /// The command was stopped, and is continued once the stores confirm that its locks are still held: the
    /// locks that are not confirmed yet.
    resume_when_ours: Option<Vec<usize>>,
    checked: bool,
    supervised: Supervised,
}

impl Supervision<'_> {
    /// Returns the earliest deadlines of all leases.
    fn deadlines(&self) -> Option<Deadlines> {
        let earliest_of = |moment: fn(&Validity) -> Moment| self.validities().map(moment).min();
        let deadlines = Deadlines {
            earliest: earliest_of(|validity| validity.start_before)?,
            term: earliest_of(|validity| validity.term)?,
            kill: earliest_of(|validity| validity.kill)?,
            dead: earliest_of(|validity| validity.dead)?,
        };
        (self.run.plan.settings.on_lost() == OnLost::Kill).then_some(deadlines)
    }

    fn validities(&self) -> impl Iterator<Item = &Validity> {
        self.supervised.locks.iter().filter_map(|lock| lock.validity.as_ref())
    }

    fn on_child(&mut self, event: Event) -> Progress {
        match event {
            Event::Stopped(signal) => {
                self.command_stopped = true;
                // If it was continued or killed at once, nobody would continue dlock.
                if self.supervisor.mirrors_stops() && self.supervisor.is_command_stopped() {
                    // Returns when the shell has sent SIGCONT, which then also arrives as a signal, or at
                    // once if there is no such shell any more: then no process would ever continue the
                    // command.
                    sys::raise_default(signal);
                    if signal == libc::SIGTSTP && sys::pending(&[libc::SIGCONT]).next().is_none() {
                        self.supervisor.resume();
                    }
                }
            }
            Event::Continued => self.command_stopped = false,
            Event::DeadlineReached => {
                let lock = self.earliest();
                self.supervised.stopped.get_or_insert(Stopped::Deadline(lock));
            }
            Event::Killing => {}
            Event::NotPermitted(pid) => {
                self.supervised.not_permitted = true;
                self.report(&not_permitted(pid));
            }
            Event::StillAlive(pid) => {
                let who =
                    if pid == 0 { "a process that cannot be found".into() } else { format!("process {pid}") };
                self.report(&format!(
                    "{who} has not died of SIGKILL; the lock is kept as long as that can be done"
                ));
            }
            Event::Overdue(alive) => {
                let what = match alive {
                    0 => "the last process of the command died too late".to_owned(),
                    alive => format!("{alive} processes of the command are not known to be dead"),
                };
                self.report(&format!(
                    "{what}: its lease may have ended, and the next holder may run beside it"
                ));
            }
            Event::Interrupted => self.supervised.was_told_to_end = true,
            Event::Ended(ended) => {
                (self.command_stopped, self.resume_when_ours) = (false, None);
                self.supervised.ran = !matches!(ended, Ended::NotExecuted(_));
                self.supervised.ended = Some(ended);
                self.supervised.has_unread_end = signals::is_end_pending();
                self.supervised.was_told_to_end |= self.supervised.has_unread_end;
                self.supervisor.take_foreground_back();
            }
            Event::Finished { orphans_left } => {
                self.supervised.orphans_left = orphans_left;
                return Progress::Done;
            }
            Event::GuardLost(why) => return self.guard_lost(why),
        }
        Progress::GoOn
    }

    /// Kills the tree in the place of the guard.
    async fn kill_tree(&mut self) {
        let Supervision { supervisor, supervised, run, .. } = self;
        let label = supervised.label();
        let on_not_permitted = |pid| {
            supervised.not_permitted = true;
            run.reporter.survivors(&format!("{label}: {}", not_permitted(pid)));
        };
        supervisor.kill_tree(on_not_permitted).await;
    }

    fn report(&self, error: &str) {
        let line = format!("{}: {error}", self.supervised.label());
        self.run.reporter.survivors(&line);
    }

    /// If dlock was already stopping the command, that reason is kept.
    fn guard_lost(&mut self, why: String) -> Progress {
        self.supervised.ran &= self.supervisor.has_command();
        // Both processes may have been stopped until after the end of the lease.
        let is_over = self.run.plan.settings.on_lost() == OnLost::Kill
            && self.last_check_at().is_some_and(|at| Moment::now() >= at);
        let stopped = if is_over { Stopped::Deadline(self.earliest()) } else { Stopped::Guard(why) };
        self.supervised.stopped.get_or_insert(stopped);
        Progress::GuardLost
    }

    fn on_signal(&mut self, arrival: Arrival, keepers: &Keepers<'_>) -> Progress {
        let Arrival { signal, origin } = arrival;
        self.supervised.was_told_to_end |= signals::asks_to_end(signal);
        match signal {
            libc::SIGCHLD => match self.supervisor.guard_stopped() {
                Some(Event::GuardLost(why)) => return self.guard_lost(why),
                _ => return Progress::GoOn,
            },
            libc::SIGCONT => {
                self.supervisor.pass_foreground_on();
                // dlock may have been stopped for a long time: check the locks first.
                keepers.check_now();
                if self.command_stopped {
                    // A lost lock whose command goes on (--on-lost warn) is no longer checked.
                    let locks = &self.supervised.locks;
                    let unknown = (0..locks.len()).filter(|lock| !locks[*lock].is_lost).collect();
                    self.resume_when_ours = Some(unknown);
                    self.confirmed(usize::MAX);
                } else {
                    self.supervisor.forward(arrival);
                }
            }
            // What the command has left (`--orphans wait`) may ignore what the terminal sends.
            _ if self.supervised.ended.is_some() && signals::stops(signal) => sys::raise_default(signal),
            _ if self.supervised.ended.is_some() => self.supervisor.forward(arrival),
            // In a shared group the terminal has signalled the command itself; but a terminal hang-up signals
            // only the leader of the session.
            _ if origin == Origin::Terminal && self.supervisor.shares_group() && !is_for_leader(signal) => {
                self.supervisor.note_terminal();
                if matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
                    sys::raise_default(signal);
                }
            }
            _ => self.supervisor.forward(arrival),
        }
        Progress::GoOn
    }

    fn on_max_runtime(&mut self) {
        let plan = self.run.plan;
        self.max_runtime_at = None;
        if self.supervised.stopped.is_none() {
            self.supervised.stopped = Some(Stopped::MaxRuntime(plan.settings.max_runtime()));
            self.supervisor.terminate(Moment::now() + plan.terms.grace);
        }
    }

    /// Returns the next moment at which a timed action is due.
    fn due(&self) -> Option<Moment> {
        let due = [self.settle_at, self.max_runtime_at, self.last_check_at(), self.supervisor.wake()];
        due.into_iter().flatten().min()
    }

    fn on_time(&mut self) -> Progress {
        let is_due = |at: Option<Moment>| at.is_some_and(|at| Moment::now() >= at);
        if is_due(self.settle_at) {
            self.settle_at = None;
            // A page that has to be read back must not delay a renewal.
            sys::lock_memory();
        }
        let guard_lost = self.supervisor.on_time();
        if is_due(self.max_runtime_at) {
            self.on_max_runtime();
        }
        if let Some(Event::GuardLost(why)) = guard_lost {
            return self.guard_lost(why);
        }
        if is_due(self.last_check_at()) {
            return self.on_last_check();
        }
        Progress::GoOn
    }

    /// Returns the lock whose lease ends first.
    fn earliest(&self) -> usize {
        let locks = &self.supervised.locks;
        let ends = |lock: &usize| locks[*lock].lease_ends.unwrap_or(Moment::from_boot(Duration::MAX));
        (0..locks.len()).min_by_key(ends).unwrap_or(0)
    }

    /// Returns when the guard process must have begun to kill: between the kill deadline and the end of the
    /// lease. With `--on-lost warn` nothing is killed, and it is the end of the lease.
    fn last_check_at(&self) -> Option<Moment> {
        let moment = |validity: &Validity| match self.run.plan.settings.on_lost() {
            OnLost::Kill => validity.kill + MARGIN / 4,
            OnLost::Warn => validity.ends,
        };
        self.validities().map(moment).min().filter(|_| !self.checked)
    }

    /// No renewal has succeeded, and the tree is alive: checks that the guard process acts, or warns that the
    /// command goes on.
    fn on_last_check(&mut self) -> Progress {
        let lock = self.earliest();
        let is_revoked = matches!(self.supervised.stopped, Some(Stopped::Revoked(..)));
        if self.run.plan.settings.on_lost() == OnLost::Kill || is_revoked {
            self.checked = true;
            self.supervised.stopped.get_or_insert(Stopped::Deadline(lock));
            if !self.supervisor.guard_kills() {
                return self.guard_lost("the guard process has missed the deadline".into());
            }
            return Progress::GoOn;
        }
        let why = self.supervised.locks[lock].trouble.clone().unwrap_or_else(|| "no answer".into());
        self.go_on_without(lock, Unguarded::Deadline(why));
        Progress::GoOn
    }

    /// Warns that a lock was lost under a command that goes on (`--on-lost warn`). Its deadlines do not apply until a later
    /// renewal succeeds.
    fn go_on_without(&mut self, lock: usize, loss: Unguarded) {
        let lost = &mut self.supervised.locks[lock];
        (lost.validity, lost.lease_ends, lost.is_lost) = (None, None, true);
        self.run.reporter.lost(&lost.name, &self.run.loss_line(&lost.name, &loss));
        self.supervised.loss = Some((lock, loss));
        self.confirmed(lock);
    }
}

fn is_for_leader(signal: i32) -> bool {
    let own = nix::unistd::getpid();
    signal == libc::SIGHUP && nix::unistd::getsid(None) == Ok(own)
}

fn not_permitted(pid: i32) -> String {
    format!("process {pid} may not be signalled by this user (a setuid command?)")
}
