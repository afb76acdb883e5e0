//! `dlock freeze`: lets nobody start under some names, and waits until the last holder has ended.

use std::io;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::hold::persistent;
use super::{execute, notices_about, print, within};
use crate::backend::StoreError;
use crate::backend::admin::{Frozen, LockAdmin};
use crate::child::signals::{self, Source, WhileWaiting};
use crate::child::sys;
use crate::clock::Moment;
use crate::exit::{Exit, Failure, FailureKind};
use crate::identity;
use crate::lease::acquire::Wait;
use crate::lock::{Freeze, FreezeRequest, Holder, LockName, LockState};
use crate::report::{Reporter, describe_freeze, describe_holder, lock_error, printable};
use crate::settings::{FreezeArguments, FreezePlan};

/// The longest pause between two looks at the holders: a store without notifications is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub fn freeze(arguments: &FreezeArguments) -> Exit {
    let reporter = Reporter::of(&arguments.common);
    // Blocked from the beginning: a signal that ends the command removes the freeze first.
    let planned = signals::block().map_err(internal).and_then(|_| FreezePlan::new(arguments));
    execute(
        &reporter,
        planned,
        |plan| notices_about(&reporter, &plan.names, &plan.target),
        async |plan| run(plan, &reporter).await,
    )
}

fn internal(error: io::Error) -> Failure {
    Failure::internal(format!("cannot receive signals: {error}"))
}

async fn run(plan: &FreezePlan, reporter: &Reporter) -> Result<Exit, Failure> {
    let signals = Source::new().map_err(internal)?;
    let by = format!("{}@{}", identity::user(), identity::host());
    let mut freezing = Freezing {
        plan,
        reporter,
        request: plan.request(by),
        store: plan.target.store.open(),
        requested: Vec::new(),
        frozen: Vec::new(),
    };
    let end = tokio::select! {
        biased;
        signal = ended_by(&signals) => End::Signal(signal),
        end = freezing.freeze_and_wait() => end,
    };
    match end {
        End::Done(exit) => Ok(exit),
        End::Signal(signal) => {
            freezing.give_up().await;
            Ok(Exit::Signal(signal))
        }
        End::Contended => {
            freezing.give_up().await;
            Ok(Exit::CONTENDED)
        }
        End::Failed(failure) => {
            freezing.give_up().await;
            Err(failure)
        }
    }
}

/// Waits for a signal that ends this process, and returns it; stops for others as any process does.
async fn ended_by(signals: &Source) -> i32 {
    loop {
        let signal = signals.next().await.signal;
        match signals::while_waiting(signal) {
            _ if signals::is_ignored(signal) => {}
            WhileWaiting::End => return signal,
            WhileWaiting::Stop => sys::raise_default(signal),
            WhileWaiting::Nothing => {}
        }
    }
}

/// Why the command ends. The freezes stay in the first case only.
enum End {
    Done(Exit),
    Signal(i32),
    /// One of the locks is frozen by another request.
    Contended,
    Failed(Failure),
}

struct Freezing<'a> {
    plan: &'a FreezePlan,
    reporter: &'a Reporter,
    request: FreezeRequest,
    store: Box<dyn LockAdmin>,
    /// The locks that may be frozen by this request, ...
    requested: Vec<LockName>,
    /// ... and those that are, with their freezes.
    frozen: Vec<(LockName, Freeze)>,
}

impl Freezing<'_> {
    fn failed(&self, name: &LockName, error: &StoreError) -> End {
        End::Failed(lock_error(name, self.plan.target.store.display(), error, ""))
    }

    async fn freeze_and_wait(&mut self) -> End {
        let plan = self.plan;
        let begin = Moment::now();
        for name in &plan.names {
            self.requested.push(name.clone());
            match self.freeze(name).await {
                Err(error) => {
                    if !matches!(error, StoreError::Unavailable { maybe_applied: true, .. }) {
                        self.requested.retain(|requested| requested != name);
                    }
                    return self.failed(name, &error);
                }
                Ok(Frozen::Done(freeze) | Frozen::Kept(freeze)) => self.frozen.push((name.clone(), freeze)),
                Ok(Frozen::Already(freeze)) => {
                    self.requested.retain(|requested| requested != name);
                    let message =
                        format!("{}: nothing was changed; see dlock thaw", describe_freeze(name, &freeze));
                    self.reporter.held(Some(name), None, &message);
                    return End::Contended;
                }
                Ok(Frozen::Unsupported(why)) => {
                    let message =
                        format!("{name} on {} cannot be frozen: {why}", plan.target.store.display());
                    return End::Failed(Failure::new(FailureKind::Denied, message));
                }
            }
        }
        super::warn_of_exposure(&plan.target, self.reporter);
        if let Some(others) = self.store.unfrozen() {
            self.reporter.warning(&format!("a freeze does not keep out {others}"));
        }
        for (name, freeze) in &self.frozen {
            self.say(&describe_freeze(name, freeze));
        }
        let until = match plan.wait {
            Wait::No => Some(begin),
            Wait::For(wait) => Some(begin + wait),
            Wait::Forever => None,
        };
        self.wait(until).await
    }

    async fn freeze(&mut self, name: &LockName) -> Result<Frozen, StoreError> {
        let (store, request) = (&mut self.store, &self.request);
        persistent(self.plan.target.connect_timeout, async || {
            store.connect().await?;
            store.freeze(name, request).await
        })
        .await
    }

    /// Waits until nobody holds the locks, or until then.
    async fn wait(&mut self, until: Option<Moment>) -> End {
        let mut shown: Vec<(LockName, Holder)> = Vec::new();
        loop {
            let is_last = until.is_some_and(|until| Moment::now() >= until);
            let pause = until.map_or(POLL_INTERVAL, |until| POLL_INTERVAL.min(until - Moment::now()));
            let states = match self.look().await {
                Ok(states) => states,
                // The store may recover in time. What is frozen stays so.
                Err(StoreError::Unavailable { .. }) if !is_last => {
                    sleep(pause).await;
                    continue;
                }
                Err(error) => return self.failed(&self.plan.names[0], &error),
            };
            if let Some(thawed) = self.thawed(&states) {
                self.reporter.warning(&format!("{thawed} is not frozen any more"));
                return End::Contended;
            }
            let held = states.iter().filter(|state| !state.holders.is_empty());
            let held: Vec<(LockName, Holder)> =
                held.map(|state| (state.name.clone(), state.holders[0].clone())).collect();
            if held.is_empty() {
                return self.keep_others_out().await;
            }
            if is_last {
                return self.still_held(&held);
            }
            for (name, holder) in &held {
                let is_known = |(other, known): &(LockName, Holder)| other == name && is_same(known, holder);
                if !shown.iter().any(is_known) {
                    let holder = describe_holder(holder, self.plan.target.store.display());
                    self.say(&format!("{name} is still held by {holder}; waiting for its end"));
                }
            }
            shown = held;
            // Wakes up earlier if the store sends a notification.
            let _ = timeout(pause, self.store.changed()).await;
        }
    }

    async fn look(&mut self) -> Result<Vec<LockState>, StoreError> {
        let (store, names) = (&mut self.store, &self.plan.names);
        let look = async {
            store.connect().await?;
            store.inspect(names, None).await
        };
        Ok(within(self.plan.target.connect_timeout, look).await?.whole()?.locks)
    }

    /// Returns a lock whose freeze has been removed, or has ended.
    fn thawed(&self, states: &[LockState]) -> Option<LockName> {
        let is_ours =
            |state: &LockState| state.freeze.as_ref().is_some_and(|freeze| freeze.id == self.request.id);
        states.iter().find(|state| !is_ours(state)).map(|state| state.name.clone())
    }

    /// The holders have ended. One that was a foreign program has left a lock that others of its kind can take: where the store
    /// can prevent that, it does so when the request is repeated.
    async fn keep_others_out(&mut self) -> End {
        for (name, freeze) in self.frozen.clone() {
            match self.freeze(&name).await {
                Err(error) => return self.failed(&name, &error),
                Ok(Frozen::Done(now)) if now.since == freeze.since => {}
                // It was removed at this very moment.
                Ok(_) => {
                    self.reporter.warning(&format!("{name} is not frozen any more"));
                    return End::Contended;
                }
            }
        }
        End::Done(Exit::SUCCESS)
    }

    fn still_held(&self, held: &[(LockName, Holder)]) -> End {
        let is_asked_for = self.plan.wait == Wait::No;
        for (name, holder) in held {
            let holder = describe_holder(holder, self.plan.target.store.display());
            let rest = if is_asked_for { "" } else { "; it stays frozen, see dlock thaw" };
            let message = format!("{name} is still held by {holder}{rest}");
            match is_asked_for {
                true => self.say(&message),
                false => self.reporter.held(Some(name), None, &message),
            }
        }
        End::Done(if is_asked_for { Exit::SUCCESS } else { Exit::CONTENDED })
    }

    /// Removes the freezes of this request.
    async fn give_up(&mut self) {
        // A request may have been given up halfway.
        self.store = self.plan.target.store.open();
        for name in std::mem::take(&mut self.requested) {
            let (store, id) = (&mut self.store, &self.request.id);
            let thawed = persistent(self.plan.target.connect_timeout, async || {
                store.connect().await?;
                store.thaw(&name, id).await
            });
            if let Err(error) = thawed.await {
                let display = self.plan.target.store.display();
                let help = format!("; it may still be frozen: dlock thaw {name}");
                self.reporter.warning(&lock_error(&name, display, &error, &help).message);
            }
        }
    }

    fn say(&self, line: &str) {
        print(&format!("{}\n", printable(line)));
    }
}

/// Returns whether both are the same hold.
fn is_same(one: &Holder, other: &Holder) -> bool {
    one.fencing == other.fencing && one.digest == other.digest
}
