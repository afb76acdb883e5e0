//! The second phase: the command runs, the keeper renews, signals are passed on.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::Run;
use super::outcome::{RunOutcome, Stopped, describe};
use crate::backend::Loss;
use crate::child::protocol::{Ended, Launch};
use crate::child::signals::{self, Arrival, Origin};
use crate::child::stop::Deadlines;
use crate::child::{Event, Supervisor, sys};
use crate::clock::{Alarm, Moment};
use crate::lease::acquire_all::{HeldLock, Keepers};
use crate::lease::keeper;
use crate::lease::validity::{MARGIN, Validity};
use crate::lock::Revocation;
use crate::plan::OnLost;

/// When the store has lost the lock and nobody else has it yet, the command gets at most so long after SIGTERM.
const LONGEST_GRACE_AFTER_LOSS: Duration = Duration::from_secs(1);

/// How long a command runs before dlock settles down beside it.
const SETTLE_AFTER: Duration = Duration::from_millis(50);

impl Run<'_> {
    /// Lets the command run until it has ended, or has to end because of any of the locks.
    pub(super) async fn keep_and_watch(
        &self,
        held: &[HeldLock],
        keeping: &mut Keepers<'_>,
        launch: Launch,
        supervisor: &mut Supervisor,
    ) -> RunOutcome {
        let plan = self.plan;
        let validities = held.iter().map(|held| held.lease_state.validity).collect();
        let failed = |why: String| RunOutcome {
            ran: false,
            stopped: Some(Stopped::Guard(why)),
            ..RunOutcome::at_first(held)
        };
        let mut watch = Supervision {
            session: self,
            supervisor,
            validities,
            settle_at: Some(Moment::now() + SETTLE_AFTER),
            max_runtime_at: plan.max_runtime.map(|limit| Moment::now() + limit),
            command_stopped: false,
            resume_when_ours: None,
            checked: false,
            end: RunOutcome::at_first(held),
        };
        let kept: Vec<BorrowedFd<'_>> =
            held.iter().flat_map(|held| &held.kept).map(|descriptor| descriptor.as_fd()).collect();
        let deadlines = watch.deadlines();
        if watch.supervisor.start(launch, deadlines, plan.orphans, plan.terms.grace, &kept).is_err() {
            let why = watch.supervisor.last_words().await;
            watch.supervisor.kill_tree().await;
            return failed(why);
        }
        loop {
            let due = watch.due();
            let step = tokio::select! {
                biased;
                (lock, event) = keeping.next() => {
                    watch.on_keeper(lock, event);
                    Step::GoOn
                }
                event = watch.supervisor.next() => watch.on_child(event),
                arrival = self.signals.next() => watch.on_signal(arrival, keeping),
                () = at(&self.alarm, due) => watch.on_time(),
            };
            match step {
                Step::GoOn => {}
                Step::Over => return watch.end,
                Step::GuardLost => {
                    // The locks are renewed until the last process of the tree is dead.
                    let kill = watch.supervisor.kill_tree();
                    tokio::pin!(kill);
                    loop {
                        tokio::select! {
                            () = &mut kill => return watch.end,
                            _ = keeping.next() => {}
                        }
                    }
                }
            }
        }
    }
}

/// What the loop has to do after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    GoOn,
    Over,
    GuardLost,
}

/// The state of the second phase.
struct Supervision<'a> {
    session: &'a Run<'a>,
    supervisor: &'a mut Supervisor,
    /// Of each lock; `None` without a lease, or when it is lost.
    validities: Vec<Option<Validity>>,
    settle_at: Option<Moment>,
    max_runtime_at: Option<Moment>,
    command_stopped: bool,
    /// The command was stopped and is to go on, if the stores say that the locks are still ours; which have not yet.
    resume_when_ours: Option<Vec<usize>>,
    checked: bool,
    end: RunOutcome,
}

impl Supervision<'_> {
    /// The earliest moments of all leases.
    fn deadlines(&self) -> Option<Deadlines> {
        let validities = || self.validities.iter().flatten();
        let earliest_of = |moment: fn(&Validity) -> Moment| validities().map(moment).min();
        let deadlines = Deadlines {
            earliest: earliest_of(|validity| validity.start_before)?,
            term: earliest_of(|validity| validity.term)?,
            kill: earliest_of(|validity| validity.kill)?,
            dead: earliest_of(|validity| validity.dead)?,
        };
        (self.session.plan.on_lost == OnLost::Kill).then_some(deadlines)
    }

    fn on_keeper(&mut self, lock: usize, event: keeper::Event) {
        match event {
            keeper::Event::Renewed { validity, took } => {
                self.end.renewals[lock].observe(took);
                self.validities[lock] = validity;
                self.end.trouble[lock] = None;
                self.end.lease_ends[lock] = validity.map(|validity| validity.ends);
                self.checked = false;
                if let Some(deadlines) = self.deadlines() {
                    self.supervisor.arm(deadlines);
                }
                self.confirmed(lock);
            }
            keeper::Event::Lost(loss) => self.on_lost(lock, loss),
            keeper::Event::Revoked(revocation) => self.on_revoked(lock, revocation),
            keeper::Event::Trouble(why) => {
                let plan = self.session.plan;
                let (name, store) = (&plan.names[lock], plan.store.display());
                self.session.reporter.detail(&format!("{name} on {store}: cannot renew: {why}"));
                self.end.trouble[lock] = Some(why);
            }
        }
    }

    /// This lock is ours, or nobody waits for it any more: a command that waits for the last of them goes on.
    fn confirmed(&mut self, lock: usize) {
        if let Some(unknown) = &mut self.resume_when_ours {
            unknown.retain(|unknown| *unknown != lock);
            if unknown.is_empty() {
                self.resume_when_ours = None;
                self.supervisor.resume();
            }
        }
    }

    fn on_lost(&mut self, lock: usize, loss: Loss) {
        let plan = self.session.plan;
        let is_revoked = matches!(self.end.stopped, Some(Stopped::Revoked(..)));
        if plan.on_lost == OnLost::Warn && !is_revoked {
            self.validities[lock] = None;
            self.end.lost[lock] = true;
            self.warn_of_loss(lock, &format!("was lost: {}", describe(loss)));
            return self.confirmed(lock);
        }
        // There is nothing left to wait for, whatever becomes of the other locks.
        self.validities.fill(None);
        if self.end.stopped.is_some() {
            // Being stopped already; but somebody else may be running now.
            return self.supervisor.kill();
        }
        self.end.stopped = Some(Stopped::Lost(lock, loss));
        // A stopped command must not run one more instruction; nor one beside somebody else's.
        if loss == Loss::Taken || self.command_stopped {
            return self.supervisor.kill();
        }
        let grace = plan.terms.grace.min(LONGEST_GRACE_AFTER_LOSS);
        self.supervisor.terminate(Moment::now() + grace);
    }

    /// The lock is ours until the tree is dead, and then released in good order; whatever `--on-lost` says.
    fn on_revoked(&mut self, lock: usize, revocation: Revocation) {
        if self.end.stopped.is_none() {
            self.end.stopped = Some(Stopped::Revoked(lock, revocation));
            self.resume_when_ours = None;
            self.supervisor.terminate(Moment::now() + self.session.plan.terms.grace);
        }
    }

    fn on_child(&mut self, event: Event) -> Step {
        match event {
            Event::Stopped(signal) => {
                self.command_stopped = true;
                if self.supervisor.mirrors_stops() {
                    // Returns when the shell has sent SIGCONT, which then also arrives as a signal. Or at once, when
                    // there is no such shell any more: then nobody would ever continue the command.
                    sys::raise_default(signal);
                    if signal == libc::SIGTSTP && !signals::is_pending(libc::SIGCONT) {
                        self.supervisor.resume();
                    }
                }
            }
            Event::Continued => self.command_stopped = false,
            Event::DeadlineReached => {
                let lock = self.earliest();
                self.end.stopped.get_or_insert(Stopped::Deadline(lock));
            }
            Event::NotPermitted(pid) => {
                self.end.not_permitted = true;
                self.session.reporter.error(&format!(
                    "{}: process {pid} may not be signalled by this user (a setuid command?)",
                    self.session.plan.label()
                ));
            }
            Event::StillAlive(pid) => {
                let who =
                    if pid == 0 { "a process that cannot be found".into() } else { format!("process {pid}") };
                self.session.reporter.error(&format!(
                    "{}: {who} has not died of SIGKILL; the lock is kept as long as that can be done",
                    self.session.plan.label()
                ));
            }
            Event::Overdue(alive) => {
                let what = match alive {
                    0 => "the last process of the command died too late".to_owned(),
                    alive => format!("{alive} processes of the command are not known to be dead"),
                };
                self.session.reporter.error(&format!(
                    "{}: {what}: its lease may have ended, and the next holder may run beside it",
                    self.session.plan.label()
                ));
            }
            Event::Ended(ended) => {
                self.end.ran = !matches!(ended, Ended::NotExecuted(_));
                self.end.ended = Some(ended);
                self.supervisor.take_foreground_back();
            }
            Event::Finished { orphans_left } => {
                self.end.orphans_left = orphans_left;
                return Step::Over;
            }
            Event::GuardLost(why) => return self.guard_lost(why),
        }
        Step::GoOn
    }

    /// What dlock was about to stop the command for, if anything, is why it ends.
    fn guard_lost(&mut self, why: String) -> Step {
        self.end.ran &= self.supervisor.has_command();
        self.end.stopped.get_or_insert(Stopped::Guard(why));
        Step::GuardLost
    }

    fn on_signal(&mut self, arrival: Arrival, keeping: &Keepers<'_>) -> Step {
        let Arrival { signal, origin } = arrival;
        match signal {
            libc::SIGCHLD => match self.supervisor.guard_stopped() {
                Some(Event::GuardLost(why)) => return self.guard_lost(why),
                _ => return Step::GoOn,
            },
            libc::SIGCONT => {
                self.supervisor.pass_foreground_on();
                // We may have been stopped for long: ask before anything else happens.
                keeping.check_now();
                if self.command_stopped {
                    // One that is lost, while the command is to go on all the same, is not asked for any more.
                    let unknown = (0..self.end.lost.len()).filter(|lock| !self.end.lost[*lock]).collect();
                    self.resume_when_ours = Some(unknown);
                    self.confirmed(usize::MAX);
                } else {
                    self.supervisor.forward(arrival);
                }
            }
            // In a shared group the terminal has told the command itself; but a terminal that is gone tells only the
            // leader of its session.
            _ if origin == Origin::Terminal && self.supervisor.shares_group() && !is_for_leader(signal) => {
                self.supervisor.note_terminal();
                if matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
                    sys::raise_default(signal);
                }
            }
            _ => self.supervisor.forward(arrival),
        }
        Step::GoOn
    }

    fn on_max_runtime(&mut self) {
        let plan = self.session.plan;
        self.max_runtime_at = None;
        if let (None, Some(limit)) = (&self.end.stopped, plan.max_runtime) {
            self.end.stopped = Some(Stopped::MaxRuntime(limit));
            self.supervisor.terminate(Moment::now() + plan.terms.grace);
        }
    }

    /// The next moment at which something has to be done though nothing happens.
    fn due(&self) -> Option<Moment> {
        let supervisor = [self.supervisor.beat_at(), self.supervisor.forward_at()];
        let own = [self.settle_at, self.max_runtime_at, self.last_check_at()];
        own.into_iter().chain(supervisor).flatten().min()
    }

    /// Does what is due.
    fn on_time(&mut self) -> Step {
        let is_due = |at: Option<Moment>| at.is_some_and(|at| Moment::now() >= at);
        if is_due(self.settle_at) {
            self.settle_at = None;
            self.supervisor.be_punctual();
        }
        if is_due(self.supervisor.forward_at()) {
            self.supervisor.forward_due();
        }
        if is_due(self.max_runtime_at) {
            self.on_max_runtime();
        }
        if is_due(self.supervisor.beat_at())
            && let Some(Event::GuardLost(why)) = self.supervisor.beat()
        {
            return self.guard_lost(why);
        }
        if is_due(self.last_check_at()) {
            return self.on_last_check();
        }
        Step::GoOn
    }

    /// The lock whose lease ends first.
    fn earliest(&self) -> usize {
        let ends = |lock: &usize| self.end.lease_ends[*lock].unwrap_or(Moment::from_boot(Duration::MAX));
        (0..self.end.lease_ends.len()).min_by_key(ends).unwrap_or(0)
    }

    /// When the guarding process should long have begun to kill: between its moment and the end of the lease. With
    /// `--on-lost warn` nobody kills, and it is the end of the lease.
    fn last_check_at(&self) -> Option<Moment> {
        let moment = |validity: &Validity| match self.session.plan.on_lost {
            OnLost::Kill => validity.kill + MARGIN / 4,
            OnLost::Warn => validity.ends,
        };
        self.validities.iter().flatten().map(moment).min().filter(|_| !self.checked)
    }

    /// No renewal has come, and the tree lives: see that the guarding process does its work, or say that the command goes on.
    fn on_last_check(&mut self) -> Step {
        let lock = self.earliest();
        let is_revoked = matches!(self.end.stopped, Some(Stopped::Revoked(..)));
        if self.session.plan.on_lost == OnLost::Kill || is_revoked {
            self.checked = true;
            self.end.stopped.get_or_insert(Stopped::Deadline(lock));
            if !self.supervisor.deadline_noticed() {
                return self.guard_lost("the guarding process has missed the deadline".into());
            }
            return Step::GoOn;
        }
        // Until it is renewed after all.
        self.validities[lock] = None;
        self.end.lease_ends[lock] = None;
        let why = self.end.trouble[lock].as_deref().unwrap_or("no answer");
        self.warn_of_loss(lock, &format!("could not be renewed in time ({why})"));
        self.end.lost[lock] = true;
        self.confirmed(lock);
        Step::GoOn
    }

    fn warn_of_loss(&mut self, lock: usize, what: &str) {
        let plan = self.session.plan;
        let (name, store) = (&plan.names[lock], plan.store.display());
        let line = format!("{name} on {store}: the lock {what}; the command goes on (--on-lost warn)");
        self.session.reporter.error(&line);
        self.end.loss_said = Some(line);
    }
}

fn is_for_leader(signal: i32) -> bool {
    let own = nix::unistd::getpid();
    signal == libc::SIGHUP && nix::unistd::getsid(None) == Ok(own)
}

async fn at(alarm: &Alarm, moment: Option<Moment>) {
    match moment {
        Some(moment) => alarm.until(moment).await,
        None => std::future::pending().await,
    }
}
