//! The driver: decides on a ledger as it was read, and stores it if nobody else was faster.

use std::time::Duration;

use tokio::time::sleep;

use super::gate::Observation;
use super::{DocumentStore, Revision, Seen, Shortcut};
use crate::backend::ledger::driver::{MAX_CONFLICTS, busy, states};
use crate::backend::ledger::observed::{Gate, GateLifetime, Now, Observed};
use crate::backend::ledger::polling::behind;
use crate::backend::ledger::queue::{newest_run, superseded};
use crate::backend::ledger::store::{
    AnyReply, Decide, Decision, Done, EXHAUSTED, Effect, Purpose, Shape, Watch,
};
use crate::backend::ledger::value::Ledger;
use crate::backend::{Loss, StoreError};
use crate::clock::Moment;
use crate::lock::{LockName, LockState, NotedRecord};

/// How long a dlock that has passed the gate has to store its grant before it is taken for another program.
const GRANTED_WITHIN: Duration = Duration::from_millis(50);

/// The driver of documents.
#[derive(Debug)]
pub struct Documents<V> {
    /// The ledger that this client has read or stored last, of one lock; `None` if it may have changed since, as after a
    /// request without a reply.
    last: Option<(LockName, Seen<V>)>,
}

impl<V> Default for Documents<V> {
    fn default() -> Documents<V> {
        Documents { last: None }
    }
}

/// What is observed of a hold whose session has ended, and the gate with it, when the store cannot be queried: only
/// that the hold is lost.
struct GateLost;

impl Observed for GateLost {
    fn now(&self) -> Now {
        Now { clock: Duration::ZERO, wall: 0 }
    }

    fn gate(&self) -> Gate {
        Gate::Untried
    }

    fn loss(&self) -> Option<Loss> {
        Some(Loss::Gone)
    }
}

impl<S: DocumentStore<Version: Clone>> Shape<S> for Documents<S::Version> {
    async fn change(
        &mut self,
        store: &mut S,
        name: &LockName,
        purpose: Purpose,
        decide: Decide,
    ) -> Result<Done<AnyReply>, StoreError> {
        let has_lost_gate = |store: &S, done: &Result<_, _>| {
            matches!(done, Err(StoreError::Unavailable { .. })) && store.has_lost_gate(&purpose)
        };
        let mut done = self.attempt(store, name, &purpose, &decide).await;
        if has_lost_gate(store, &done) {
            // Another session may see who holds the lock now.
            done = self.attempt(store, name, &purpose, &decide).await;
        }
        if matches!(purpose, Purpose::Renew(_)) && has_lost_gate(store, &done) {
            return match decide(&mut Ledger::default(), &GateLost) {
                Decision::Done { value, .. } => Ok(Done::of(value)),
                _ => unreachable!("a lost hold is neither kept nor taken"),
            };
        }
        done
    }

    async fn read(
        &mut self,
        store: &mut S,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        states(names, view, async |name| {
            let seen = store.load(name, &Purpose::Operate, &Shortcut::None, None).await?;
            let mut observation = Observation::of(store, seen.now, Duration::ZERO);
            let ledger = observation.observe(store, name, &Purpose::Operate, seen).await?;
            Ok((ledger, observation))
        })
        .await
    }

    async fn history(&mut self, store: &mut S, name: &LockName) -> Result<Vec<NotedRecord>, StoreError> {
        let seen = store.load(name, &Purpose::History, &Shortcut::None, None).await?;
        if let Some(why) = store.lacks_ledgers() {
            return Err(StoreError::Config(why));
        }
        Ok(seen.ledger.history.into_iter().rev().collect())
    }
}

impl<V: Clone> Documents<V> {
    /// Returns the ledger of this lock, if it is known, with the time as it should be now.
    fn recall(&self, name: &LockName) -> Option<Seen<V>> {
        let (_, seen) = self.last.as_ref().filter(|(of, _)| of == name)?;
        Some(Seen { now: time_since(seen.now, seen.sent), sent: Moment::now(), ..seen.clone() })
    }

    /// Changes a ledger, see [`Shape::change`].
    ///
    /// # Errors
    /// The store could not be queried, the ledger is in an unknown format, or it is changed too often by others.
    async fn attempt<S: DocumentStore<Version = V>>(
        &mut self,
        store: &mut S,
        name: &LockName,
        purpose: &Purpose,
        decide: &Decide,
    ) -> Result<Done<AnyReply>, StoreError> {
        let mut progress = Progress::Nothing;
        match self.attempt_in_steps(store, name, purpose, decide, &mut progress).await {
            Err(error) => Err(after_a_step(store, purpose, progress, error).await),
            done => done,
        }
    }

    /// Does the same, and notes its progress.
    ///
    /// # Errors
    /// As of [`attempt`](Documents::attempt), of its last step.
    async fn attempt_in_steps<S: DocumentStore<Version = V>>(
        &mut self,
        store: &mut S,
        name: &LockName,
        purpose: &Purpose,
        decide: &Decide,
        progress: &mut Progress,
    ) -> Result<Done<AnyReply>, StoreError> {
        let asked = Moment::now();
        let has_gate = store.gate_lifetime().is_some();
        let mut recalled = self.recall(name);
        let shortcut = match Shortcut::of(purpose, recalled.as_ref(), decide) {
            // The gate must be passed before the grant is stored.
            Shortcut::TakeIfIdle(_) if has_gate => Shortcut::None,
            shortcut => shortcut,
        };
        let (mut observation, mut late, mut is_kept_out) = (None, None, false);
        // A release that leaves a gate first needs a fresh ledger: other processes may be inside the hold.
        let leaves_gate_first = has_gate && (!store.swaps_gate() || store.passed(purpose).is_none());
        let may_recall = matches!(purpose, Purpose::Release(_)) && !leaves_gate_first;
        for _ in 0..MAX_CONFLICTS {
            self.last = None;
            let (seen, is_current) = match recalled.take() {
                Some(seen) if may_recall => (seen, false),
                known => (store.load(name, purpose, &shortcut, known.as_ref()).await?, true),
            };
            if let Some(why) = store.lacks_ledgers().filter(|_| matches!(purpose, Purpose::Operate)) {
                return Err(StoreError::Config(why));
            }
            let age = asked - seen.sent;
            let observation = observation.get_or_insert_with(|| Observation::of(store, seen.now, age));
            let (version, time, sent) = (seen.version.clone(), seen.now, seen.sent);
            if let Some((shown, at)) = late {
                // If this host has stood still, it has read the time since; otherwise the clocks of the store's servers differ.
                let now = Moment::now();
                observation.note_behind(behind(time.clock, now - sent, shown + (now - at)));
            }
            let known = |ledger, version| {
                Some((name.clone(), Seen { ledger, version, now: time, sent, occupants: None }))
            };
            let before = observation.observe(store, name, purpose, seen).await?;
            observation.let_in_after_end(store, name, &before).await?;
            let decided =
                decided(store, observation, name, purpose, &before, decide, &mut is_kept_out).await?;
            let Some(Decided { ledger, value, effect, watch }) = decided else { continue };
            let is_foreign = watch.iter().any(|event| matches!(event, Watch::Gate(_)));
            let is_subscribed = is_subscribed(store, name, &ledger, effect);
            observation.let_in(store, name, &before, &ledger).await?;
            let is_withdrawn = observation.withdraw(store, purpose, &before).await? && ledger == before;
            let stored = if ledger != before || !is_subscribed || is_withdrawn {
                let revision = revision(&before, &ledger, effect, time_since(time, sent));
                let stored = store.swap(name, purpose, version, revision).await?;
                match stored {
                    Some(_) => *progress = Progress::Stored,
                    None => observation.note_refused(),
                }
                stored
            } else {
                Some(version).filter(|_| is_current)
            };
            if let Some(version) = stored {
                let has_lease = matches!(effect, Effect::Hold(_)) || matches!(purpose, Purpose::Renew(_));
                let is_late = |shown: &Duration| behind(time.clock, Moment::now() - sent, *shown).is_some();
                if let Some(shown) =
                    store.shown().filter(|shown| has_lease && late.is_none() && is_late(shown))
                {
                    // What is stored ends too soon, perhaps it has already.
                    late = Some((shown, Moment::now()));
                    continue;
                }
                observation.let_in(store, name, &before, &ledger).await?;
                observation.keep_out(store, name, &ledger).await?;
                self.last = known(ledger, version);
                // Foreign programs send no notifications, but the store may.
                let is_watched = store.is_notified() && (!is_foreign || store.is_gate_watched());
                return Ok(Done { is_watched, ..Done::of(value) });
            }
        }
        Err(busy(name, "state"))
    }
}

/// What a change that has failed has stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Nothing,
    /// The ledger.
    Stored,
}

/// Returns the error of a change of which a step has failed: it is marked as perhaps applied if an earlier step has stored
/// something. A claim that failed for good leaves the gate that it has passed, if that has a lease: otherwise the gate would be
/// closed until the lease expires, although nobody holds the lock.
async fn after_a_step<S: DocumentStore>(
    store: &mut S,
    purpose: &Purpose,
    progress: Progress,
    error: StoreError,
) -> StoreError {
    let has_lease = store.gate_lifetime() == Some(GateLifetime::Lease);
    let is_in_gate = has_lease && store.passed(purpose).is_some();
    match purpose {
        Purpose::Claim(claim) if is_in_gate => {
            if !matches!(error, StoreError::Unavailable { .. }) {
                let _ = store.leave_gate(purpose, claim, Duration::ZERO).await;
            }
            error.after_a_part()
        }
        _ if progress == Progress::Stored => error.after_a_part(),
        _ => error,
    }
}

/// What a change makes of a ledger.
struct Decided {
    ledger: Ledger,
    value: AnyReply,
    effect: Effect,
    watch: Vec<Watch>,
}

/// Decides on a ledger as it was read, and passes the gate or leaves it, as the decision needs. Returns `None`, once, for a claim
/// that is kept out of the gate, perhaps by a dlock whose grant the ledger has shown since.
///
/// # Errors
/// The store could not be queried, or the fencing counter has no next value.
async fn decided<S: DocumentStore>(
    store: &mut S,
    observation: &mut Observation,
    name: &LockName,
    purpose: &Purpose,
    before: &Ledger,
    decide: &Decide,
    is_kept_out: &mut bool,
) -> Result<Option<Decided>, StoreError> {
    loop {
        let mut ledger = observation.ledger(before);
        match (decide(&mut ledger, observation), purpose) {
            (Decision::Done { value, effect, watch }, _) => {
                if observation.leave(store, purpose, &ledger, effect).await? {
                    return Ok(Some(Decided { ledger, value, effect, watch }));
                }
            }
            (Decision::PassGate(mode), Purpose::Claim(claim) | Purpose::Renew(claim)) => {
                let has_passed = observation.pass(store, purpose, claim, mode).await?;
                if !has_passed && !*is_kept_out && may_be_another(store, name, before).await? {
                    *is_kept_out = true;
                    sleep(GRANTED_WITHIN).await;
                    return Ok(None);
                }
            }
            (Decision::PassGate(_), _) => unreachable!("only a claim and a hold pass the gate"),
            (Decision::Exhausted, _) => return Err(StoreError::Config(format!("{name}: {EXHAUSTED}"))),
        }
    }
}

/// Returns whether the store can notify the claim; true if it does not wait.
fn is_subscribed<S: DocumentStore>(store: &S, name: &LockName, ledger: &Ledger, effect: Effect) -> bool {
    let Effect::Wait(ticket) = effect else { return true };
    let waiter = ledger.waiters.iter().find(|waiter| waiter.ticket == ticket);
    waiter.is_some_and(|waiter| store.is_subscribed(name, waiter))
}

/// Returns the revision of a ledger, with the waiters that it concerns.
fn revision<'a>(before: &'a Ledger, ledger: &'a Ledger, effect: Effect, now: Now) -> Revision<'a> {
    let mut called = called(before, ledger);
    let next = next(ledger, &called);
    called.extend(first_behind_kept(before, ledger));
    if newest_run(ledger) > newest_run(before) {
        called.extend(superseded(ledger));
    }
    Revision { before, ledger, now, effect, called, next }
}

/// Returns whether a dlock may have passed the gate after the ledger was read, which has no holder: its grant is stored next.
///
/// # Errors
/// The store could not be queried.
async fn may_be_another<S: DocumentStore>(
    store: &mut S,
    name: &LockName,
    ledger: &Ledger,
) -> Result<bool, StoreError> {
    if store.lacks_ledgers().is_some() {
        return Ok(false);
    }
    let occupants = store.observe_gate(name, &Purpose::Operate, ledger).await?;
    Ok(occupants.iter().any(|occupant| occupant.identity.is_some()))
}

/// Returns the time of the store now: `now` is what its clock showed in the reply to a request that was sent at `sent`.
/// The result may be ahead of the clock, by no more than the request took.
fn time_since(now: Now, sent: Moment) -> Now {
    let since = Moment::now() - sent;
    let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    Now { clock: now.clock + since, wall: now.wall.saturating_add(micros) }
}

/// Returns the first waiter if it still expects a hold to end with its lease, although the hold was released and ends
/// sooner: with its minimum hold time (`--min-hold`).
fn first_behind_kept(before: &Ledger, after: &Ledger) -> Option<u64> {
    let first = |ledger: &Ledger| ledger.waiters.first().map(|waiter| waiter.ticket);
    let is_told = after.kept() <= before.kept() && first(after) == first(before);
    first(after).filter(|_| !before.waiters.is_empty() && after.kept() > 0 && !is_told)
}

/// Returns the waiter behind the last one that is called.
pub fn next(ledger: &Ledger, called: &[u64]) -> Option<u64> {
    let last = ledger.waiters.iter().position(|waiter| Some(&waiter.ticket) == called.last())?;
    ledger.waiters.get(last + 1).map(|waiter| waiter.ticket)
}

/// Returns the tickets of the waiters that are called in a ledger and were not before.
pub fn called(before: &Ledger, after: &Ledger) -> Vec<u64> {
    let was_called =
        |ticket| before.waiters.iter().any(|waiter| waiter.ticket == ticket && waiter.called.is_some());
    let called = after.waiters.iter().filter(|waiter| waiter.called.is_some() && !was_called(waiter.ticket));
    called.map(|waiter| waiter.ticket).collect()
}
