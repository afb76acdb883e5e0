//! `dlock freeze`: prevents runs from starting under some names, and waits until the last holder has ended.

use std::slice::from_ref;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::hold::persistent;
use super::{execute, no_signals, notices_about, print, within};
use crate::backend::StoreError;
use crate::backend::admin::{Frozen, LockAdmin};
use crate::child::signals::{self, EndRequests, Source};
use crate::clock::Moment;
use crate::exit::{Exit, Failure, FailureKind};
use crate::identity;
use crate::lease::acquire::Wait;
use crate::lock::{FreezeRequest, Holder, LockName, LockState};
use crate::report::{Reporter, describe_freeze, describe_holder, hazard_of, label, printable, store_error};
use crate::settings::{FreezeArguments, FreezePlan, thaw_command};

/// The longest pause between two looks at the holders: a store without notifications is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub fn freeze(arguments: &FreezeArguments) -> Exit {
    let reporter = Reporter::of(&arguments.common);
    // Blocked from the beginning: a signal that ends the command removes the freeze first.
    let planned = signals::block().map_err(no_signals).and_then(|_| FreezePlan::new(arguments));
    execute(
        &reporter,
        planned,
        |plan| notices_about(&reporter, &plan.names, &plan.target),
        async |plan| run(plan, &reporter).await,
    )
}

async fn run(plan: &FreezePlan, reporter: &Reporter) -> Result<Exit, Failure> {
    let signals = Source::new().map_err(no_signals)?;
    let by = format!("{}@{}", identity::user(), identity::host());
    let mut freezing = Freezing {
        plan,
        reporter,
        request: FreezeRequest::new(by, plan.reason.clone(), plan.lasts),
        store: plan.target.store.open(),
        requested: Vec::new(),
        unanswered: None,
        begin: Moment::now(),
        is_announced: false,
        printed: Exit::SUCCESS,
    };
    let mut requests = EndRequests::default();
    let end = tokio::select! {
        biased;
        signal = super::ended_by(&signals) => {
            requests.note();
            End::Undone(Ok(Exit::Signal(signal)))
        }
        end = freezing.freeze_and_wait() => end,
    };
    match end {
        End::Done(result) => result,
        End::Undone(result) => {
            freezing.give_up(&signals, requests).await;
            result
        }
    }
}

/// How the command ends.
enum End {
    /// The locks stay frozen.
    Done(Result<Exit, Failure>),
    /// The freezes of this request are to be removed.
    Undone(Result<Exit, Failure>),
}

struct Freezing<'a> {
    plan: &'a FreezePlan,
    reporter: &'a Reporter,
    request: FreezeRequest,
    store: Box<dyn LockAdmin>,
    /// The locks that may be frozen by this request.
    requested: Vec<LockName>,
    /// The lock for which the last request has no reply.
    unanswered: Option<LockName>,
    begin: Moment,
    /// It was printed that the locks are frozen.
    is_announced: bool,
    /// Whether what was to be printed was printed.
    printed: Exit,
}

impl Freezing<'_> {
    async fn freeze_and_wait(&mut self) -> End {
        let plan = self.plan;
        let mut frozen = Vec::new();
        for name in &plan.names {
            self.requested.push(name.clone());
            match self.freeze(name, &self.request.clone()).await {
                Err(error) => {
                    if !matches!(error, StoreError::Unavailable { maybe_applied: true, .. }) {
                        self.requested.retain(|requested| requested != name);
                        // A part of it may have been carried out before it was refused.
                        let _ = within(plan.target.connect_timeout, self.store.thaw(name, &self.request.id))
                            .await;
                    }
                    return End::Undone(Err(self.failure(from_ref(name), &error, "")));
                }
                Ok(Frozen::Done(freeze) | Frozen::Kept(freeze)) => {
                    frozen.push(describe_freeze(name, &freeze));
                }
                Ok(Frozen::Already(freeze)) => {
                    self.requested.retain(|requested| requested != name);
                    let message =
                        format!("{}: nothing was changed; see dlock thaw", describe_freeze(name, &freeze));
                    self.reporter.held(Some(name), None, &message);
                    return End::Undone(Ok(Exit::CONTENDED));
                }
                Ok(Frozen::Unsupported(why)) => {
                    let message =
                        format!("{name} on {} cannot be frozen: {why}", plan.target.store.display());
                    return End::Undone(Err(Failure::new(FailureKind::Denied, message)));
                }
            }
        }
        super::warn_of_exposure(&plan.target, self.reporter);
        if let Some(hazard) = self.store.hazard().filter(|hazard| !plan.target.accepts(hazard)) {
            self.reporter.warning(&hazard_of(plan.target.store.display(), &hazard));
        }
        if let Some(others) = self.store.unfrozen() {
            self.reporter.warning(&format!("a freeze does not keep out {others}"));
        }
        frozen.iter().for_each(|line| self.say(line));
        self.is_announced = true;
        let until = match plan.wait {
            Wait::No => Some(self.begin),
            Wait::For(wait) => Some(self.begin + wait),
            Wait::Forever => None,
        };
        self.wait(until).await
    }

    fn failure(&self, names: &[LockName], error: &StoreError, help: &str) -> Failure {
        let Failure { kind, message } =
            store_error(&format!("{} on {}", label(names), self.plan.target.store.display()), error);
        Failure::new(kind, message + help)
    }

    async fn freeze(&mut self, name: &LockName, request: &FreezeRequest) -> Result<Frozen, StoreError> {
        self.unanswered = Some(name.clone());
        let store = &mut self.store;
        let frozen = persistent(self.plan.target.connect_timeout, async || {
            store.connect().await?;
            store.freeze(name, request).await
        });
        let frozen = frozen.await?;
        self.unanswered = None;
        Ok(frozen)
    }

    /// Waits until nobody holds the locks, or until then. What is frozen stays so, whatever happens to the store.
    async fn wait(&mut self, until: Option<Moment>) -> End {
        let mut shown: Vec<Held> = Vec::new();
        let (mut is_warned, mut was_free) = (false, false);
        loop {
            let is_last = until.is_some_and(|until| Moment::now() >= until);
            let pause = until.map_or(POLL_INTERVAL, |until| POLL_INTERVAL.min(until - Moment::now()));
            let held = match self.look().await {
                Ok(Look::Thawed(name)) => return self.thawed(&name),
                Ok(Look::Held(held)) => held,
                Err(StoreError::Unavailable { reason, .. }) if !is_last => {
                    if !std::mem::replace(&mut is_warned, true) {
                        let store = self.plan.target.store.display();
                        self.reporter.warning(&format!("cannot reach {store}: {reason}; trying again"));
                    }
                    sleep(pause).await;
                    continue;
                }
                Err(error) => {
                    let help = "; the locks stay frozen, see dlock thaw";
                    return End::Done(Err(self.failure(&self.plan.names, &error, help)));
                }
            };
            match (held.is_empty(), std::mem::replace(&mut was_free, held.is_empty())) {
                // Others are kept out since the last look.
                (true, true) => return End::Done(Ok(self.printed)),
                (true, false) => continue,
                (false, _) => {}
            }
            if is_last {
                return self.still_held(&held);
            }
            if let Some(own) = held.iter().find(|held| held.is_by_ancestor()) {
                let message = format!(
                    "{} is held by the dlock that runs this very command: freeze it from elsewhere, or with --now",
                    own.name
                );
                self.reporter.held(Some(&own.name), Some(&own.holder), &message);
                return End::Undone(Ok(Exit::CONTENDED));
            }
            for held in held.iter().filter(|held| !shown.iter().any(|shown| shown.is_same(held))) {
                let line =
                    format!("{}; waiting for its end", held.describe(self.plan.target.store.display()));
                self.say(&line);
            }
            shown = held;
            // Wakes up earlier if the store sends a notification.
            let _ = timeout(pause, self.store.changed()).await;
        }
    }

    /// Returns which of the locks are still held. If none is, other programs may be able to take one that such a program has
    /// held until now: where the store can prevent that, it does so when the request is repeated.
    async fn look(&mut self) -> Result<Look, StoreError> {
        let (store, names) = (&mut self.store, &self.plan.names);
        let inspection = async {
            store.connect().await?;
            store.inspect(names, None).await
        };
        let states = within(self.plan.target.connect_timeout, inspection).await?.whole()?.locks;
        let is_ours =
            |state: &LockState| state.freeze.as_ref().is_some_and(|freeze| freeze.id == self.request.id);
        if let Some(thawed) = states.iter().find(|state| !is_ours(state)) {
            return Ok(Look::Thawed(thawed.name.clone()));
        }
        let held: Vec<Held> = states.into_iter().filter_map(Held::of).collect();
        if held.is_empty() {
            let gone = Moment::now() - self.begin;
            let lasts = self.request.lasts.map(|lasts| lasts.saturating_sub(gone));
            if lasts == Some(Duration::ZERO) {
                return Ok(Look::Thawed(self.plan.names[0].clone()));
            }
            let request = FreezeRequest { lasts, ..self.request.clone() };
            for name in self.plan.names.clone() {
                // It was removed at this very moment, unless it is kept.
                if !matches!(self.freeze(&name, &request).await?, Frozen::Kept(_)) {
                    return Ok(Look::Thawed(name));
                }
            }
        }
        Ok(Look::Held(held))
    }

    fn thawed(&self, name: &LockName) -> End {
        self.reporter.warning(&format!("{name} is no longer frozen"));
        End::Undone(Ok(Exit::CONTENDED))
    }

    fn still_held(&mut self, held: &[Held]) -> End {
        for held in held {
            let line = held.describe(self.plan.target.store.display());
            match self.plan.leaves_holders {
                true => self.say(&line),
                false => {
                    let message = format!("{line}; it stays frozen, see dlock thaw");
                    self.reporter.held(Some(&held.name), Some(&held.holder), &message);
                }
            }
        }
        End::Done(Ok(if self.plan.leaves_holders { self.printed } else { Exit::CONTENDED }))
    }

    /// Removes the freezes of this request, within the time of one request, or until a second signal.
    async fn give_up(&mut self, signals: &Source, mut requests: EndRequests) {
        // A request may have been given up halfway.
        let mut store = self.plan.target.store.open();
        let (mut left, limit) = (std::mem::take(&mut self.requested), self.plan.target.connect_timeout);
        let (request, mut thawed) = (&self.request, Vec::new());
        let thawing = async {
            while let Some(name) = left.last() {
                let is_thawed = persistent(limit, async || {
                    store.connect().await?;
                    let is_thawed = store.thaw(name, &request.id).await?;
                    if !is_thawed && self.unanswered.as_ref() == Some(name) {
                        // The request may still arrive: what it would change must not be as it was then.
                        store.freeze(name, request).await?;
                        store.thaw(name, &request.id).await?;
                    }
                    Ok(is_thawed)
                })
                .await?;
                thawed.extend(left.pop().filter(|_| is_thawed));
            }
            Ok(())
        };
        let insisted = async {
            loop {
                super::ended_by(signals).await;
                if requests.note() {
                    return;
                }
            }
        };
        let ended = tokio::select! {
            biased;
            () = insisted => Err(StoreError::unanswered("interrupted")),
            ended = within(limit, thawing) => ended,
        };
        if self.is_announced {
            thawed.iter().rev().for_each(|name| self.say(&format!("{name} is thawed")));
        }
        if let Err(error) = ended {
            let help = format!("; this may still be frozen: {}", thaw_command(&left));
            self.reporter.failure(&self.failure(&left, &error, &help));
        }
    }

    fn say(&mut self, line: &str) {
        let printed = print(&format!("{}\n", printable(line)));
        if printed != Exit::SUCCESS {
            self.printed = printed;
        }
    }
}

/// The state of the locks.
enum Look {
    /// All of them are frozen; these are held.
    Held(Vec<Held>),
    /// This one is no longer frozen, by this request.
    Thawed(LockName),
}

/// A lock that is still held.
struct Held {
    name: LockName,
    /// The first of its holders.
    holder: Holder,
    others: usize,
}

impl Held {
    fn of(mut state: LockState) -> Option<Held> {
        let others = state.holders.len().checked_sub(1)?;
        Some(Held { name: state.name, holder: state.holders.swap_remove(0), others })
    }

    fn describe(&self, store: &str) -> String {
        let others = if self.others > 0 { format!(" and {} more", self.others) } else { String::new() };
        format!("{} is still held by {}{others}", self.name, describe_holder(&self.holder, store))
    }

    fn is_same(&self, other: &Held) -> bool {
        self.name == other.name && self.holder.is_same_hold(&other.holder)
    }

    fn is_by_ancestor(&self) -> bool {
        self.holder.identity.as_ref().is_some_and(|identity| identity::is_our_ancestor(identity, &self.name))
    }
}
