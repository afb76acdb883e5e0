//! The second phase: the command runs, the keeper renews, signals are passed on.

use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use super::{Session, environment};
use crate::backend::{Backend, Loss};
use crate::child::protocol::Ended;
use crate::child::signals::{self, Arrival, Origin};
use crate::child::stop::Deadlines;
use crate::child::{Event, Supervisor, sys};
use crate::clock::{Alarm, Moment};
use crate::lease::keeper::{self, keep};
use crate::lease::validity::{MARGIN, Validity};
use crate::lock::{Claim, Grant};
use crate::plan::OnLost;

/// How the command's time under the lock ended.
#[derive(Debug, Default)]
pub(super) struct End {
    /// How the command itself ended, if it did before everything was over.
    pub(super) ended: Option<Ended>,
    /// Why dlock stopped it, if it did.
    pub(super) stopped: Option<Stopped>,
    /// The lock was lost and the command went on (`--on-lost warn`).
    pub(super) lost: Option<Loss>,
    /// Background processes live on.
    pub(super) orphans_left: bool,
    /// Some process could not be signalled.
    pub(super) not_permitted: bool,
    /// The last failure to renew, since the last success.
    pub(super) trouble: Option<String>,
    /// The earliest end of the lease at the store.
    pub(super) lease_ends: Option<Moment>,
}

/// Why dlock stopped the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The store says that the lock is not ours.
    Lost(Loss),
    /// No renewal was acknowledged in time.
    Deadline,
    /// `--max-runtime`
    MaxRuntime(Duration),
    /// The guarding process failed.
    Guard(String),
}

/// A loss in words.
pub(super) fn describe(loss: Loss) -> &'static str {
    match loss {
        Loss::Gone => "it is gone from the store (deleted, expired or evicted)",
        Loss::Taken => "somebody else holds it now",
    }
}

/// When the store has lost the lock and nobody else has it yet, the command gets at most so long after SIGTERM.
const LONGEST_GRACE_AFTER_LOSS: Duration = Duration::from_secs(1);

/// How long a command runs before dlock settles down beside it.
const SETTLE_AFTER: Duration = Duration::from_millis(50);

impl Session<'_> {
    pub(super) async fn keep_and_watch(
        &self,
        backend: &mut dyn Backend,
        claim: &Claim,
        grant: Grant,
        validity: Option<Validity>,
        supervisor: &mut Supervisor,
    ) -> End {
        let plan = self.plan;
        let deadlines = |validity: Option<Validity>| match plan.on_lost {
            OnLost::Kill => validity.map(|validity| Deadlines { term: validity.term, kill: validity.kill }),
            OnLost::Warn => None,
        };
        let launch = environment::launch(claim, &grant, plan.store.display());
        let kept = backend.kept_descriptor();
        if let Err(error) =
            supervisor.start(launch, deadlines(validity), plan.orphans, plan.terms.grace, kept)
        {
            supervisor.kill_tree().await;
            return End {
                stopped: Some(Stopped::Guard(format!("the guarding process is gone: {error}"))),
                ..End::default()
            };
        }
        let (events, mut keeper_events) = mpsc::unbounded_channel();
        let check_now = Notify::new();
        let keeper = keep(backend, claim, &plan.terms, validity, events, &check_now);
        let (Ok(check_alarm), Ok(settle_alarm)) = (Alarm::new(), Alarm::new()) else {
            supervisor.kill_tree().await;
            return End { stopped: Some(Stopped::Guard("no timer is left".into())), ..End::default() };
        };
        let mut watch = Watch {
            session: self,
            supervisor,
            check_now: &check_now,
            validity,
            settle_at: Some(Moment::now() + SETTLE_AFTER),
            max_runtime_at: plan.max_runtime.map(|limit| Moment::now() + limit),
            command_stopped: false,
            resume_when_ours: false,
            checked: false,
            end: End { lease_ends: validity.map(|validity| validity.ends), ..End::default() },
        };
        tokio::pin!(keeper);
        let mut keeping = true;
        loop {
            let last_check_at = watch.last_check_at();
            let max_runtime_at = watch.max_runtime_at;
            let settle_at = watch.settle_at;
            let lost_guard = tokio::select! {
                biased;
                () = &mut keeper, if keeping => {
                    keeping = false;
                    false
                }
                Some(event) = keeper_events.recv() => {
                    watch.on_keeper(event, &deadlines);
                    false
                }
                event = watch.supervisor.next() => match watch.on_child(event) {
                    Step::Over => return watch.end,
                    step => step == Step::GuardLost,
                },
                arrival = self.signals.next() => watch.on_signal(arrival) == Step::GuardLost,
                () = at(&settle_alarm, settle_at) => {
                    watch.settle_at = None;
                    watch.supervisor.be_punctual();
                    false
                }
                () = at(&self.alarm, max_runtime_at) => {
                    watch.on_max_runtime();
                    false
                }
                () = at(&check_alarm, last_check_at) => {
                    watch.on_last_check();
                    false
                }
            };
            if lost_guard {
                // The lock is renewed until the last process of the tree is dead.
                let kill = watch.supervisor.kill_tree();
                tokio::pin!(kill);
                loop {
                    tokio::select! {
                        () = &mut kill => break,
                        () = &mut keeper, if keeping => keeping = false,
                    }
                }
                return watch.end;
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
struct Watch<'a> {
    session: &'a Session<'a>,
    supervisor: &'a mut Supervisor,
    check_now: &'a Notify,
    validity: Option<Validity>,
    settle_at: Option<Moment>,
    max_runtime_at: Option<Moment>,
    command_stopped: bool,
    /// The command was stopped and is to go on, if the store says that the lock is still ours.
    resume_when_ours: bool,
    checked: bool,
    end: End,
}

impl Watch<'_> {
    fn on_keeper(&mut self, event: keeper::Event, deadlines: &dyn Fn(Option<Validity>) -> Option<Deadlines>) {
        match event {
            keeper::Event::Renewed(validity) => {
                self.validity = validity;
                self.end.trouble = None;
                self.end.lease_ends = validity.map(|validity| validity.ends);
                self.checked = false;
                if let Some(deadlines) = deadlines(validity) {
                    self.supervisor.arm(deadlines);
                }
                if std::mem::take(&mut self.resume_when_ours) {
                    self.supervisor.resume();
                }
            }
            keeper::Event::Lost(loss) => self.on_lost(loss),
            keeper::Event::Trouble(why) => {
                let plan = self.session.plan;
                let store = plan.store.display();
                self.session.reporter.detail(&format!("{} on {store}: cannot renew: {why}", plan.name));
                self.end.trouble = Some(why);
            }
        }
    }

    fn on_lost(&mut self, loss: Loss) {
        let plan = self.session.plan;
        self.validity = None;
        if plan.on_lost == OnLost::Warn {
            self.end.lost = Some(loss);
            self.warn_of_loss(&format!("was lost: {}", describe(loss)));
            if std::mem::take(&mut self.resume_when_ours) {
                self.supervisor.resume();
            }
            return;
        }
        if self.end.stopped.is_some() {
            // Being stopped already; but somebody else may be running now.
            return self.supervisor.kill();
        }
        self.end.stopped = Some(Stopped::Lost(loss));
        // A stopped command must not run one more instruction; nor one beside somebody else's.
        if loss == Loss::Taken || self.command_stopped {
            return self.supervisor.kill();
        }
        let grace = plan.terms.grace.min(LONGEST_GRACE_AFTER_LOSS);
        self.supervisor.terminate(Moment::now() + grace);
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
                self.end.stopped.get_or_insert(Stopped::Deadline);
            }
            Event::NotPermitted(pid) => {
                self.end.not_permitted = true;
                self.session.reporter.error(&format!(
                    "{}: process {pid} may not be signalled by this user (a setuid command?)",
                    self.session.plan.name
                ));
            }
            Event::StillAlive(pid) => {
                let who =
                    if pid == 0 { "a process that cannot be found".into() } else { format!("process {pid}") };
                self.session.reporter.error(&format!(
                    "{}: {who} has not died of SIGKILL; the lock is kept as long as that can be done",
                    self.session.plan.name
                ));
            }
            Event::Ended(ended) => {
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

    fn guard_lost(&mut self, why: String) -> Step {
        self.end.stopped = Some(Stopped::Guard(why));
        Step::GuardLost
    }

    fn on_signal(&mut self, arrival: Arrival) -> Step {
        let Arrival { signal, origin } = arrival;
        match signal {
            libc::SIGCHLD => match self.supervisor.guard_stopped() {
                Some(Event::GuardLost(why)) => return self.guard_lost(why),
                _ => return Step::GoOn,
            },
            libc::SIGCONT => {
                self.supervisor.pass_foreground_on();
                // We may have been stopped for long: ask before anything else happens.
                self.check_now.notify_one();
                if self.command_stopped && self.end.lost.is_some() {
                    // Lost, and to go on all the same: nobody is asked any more.
                    self.supervisor.resume();
                } else if self.command_stopped {
                    self.resume_when_ours = true;
                } else {
                    self.supervisor.forward(signal);
                }
            }
            // In a shared group the terminal has told the command itself; but a terminal that is gone tells only the
            // leader of its session.
            _ if origin == Origin::Kernel && self.supervisor.shares_group() && !is_for_leader(signal) => {
                if matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
                    sys::raise_default(signal);
                }
            }
            _ => self.supervisor.forward(signal),
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

    /// When the guarding process should long have begun to kill: between its moment and the end of the lease. With
    /// `--on-lost warn` nobody kills, and it is the end of the lease.
    fn last_check_at(&self) -> Option<Moment> {
        let validity = self.validity.filter(|_| !self.checked)?;
        Some(match self.session.plan.on_lost {
            OnLost::Kill => validity.kill + MARGIN / 4,
            OnLost::Warn => validity.ends,
        })
    }

    /// No renewal has come, and the tree lives: do the guarding process' work, or say that the command goes on.
    fn on_last_check(&mut self) {
        self.checked = true;
        match self.session.plan.on_lost {
            OnLost::Kill => {
                self.end.stopped.get_or_insert(Stopped::Deadline);
                self.supervisor.kill_directly();
            }
            OnLost::Warn => {
                let why = self.end.trouble.as_deref().unwrap_or("no answer");
                self.warn_of_loss(&format!("could not be renewed in time ({why})"));
                self.end.lost = Some(Loss::Gone);
                if std::mem::take(&mut self.resume_when_ours) {
                    self.supervisor.resume();
                }
            }
        }
    }

    fn warn_of_loss(&self, what: &str) {
        let plan = self.session.plan;
        let store = plan.store.display();
        self.session.reporter.error(&format!(
            "{} on {store}: the lock {what}; the command goes on (--on-lost warn)",
            plan.name
        ));
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
