//! The gate in front of the ledgers of a document store: a native lock of the store, such as an advisory lock, which
//! foreign programs take too.
//!
//! A claim whose turn it is passes the gate before its grant is stored, and its hold ends when it loses the gate. An
//! occupant of the gate that is not in the ledger is a foreign program.

use std::time::Duration;

use super::identity::identity;
use super::{DocumentStore, Seen, Shortcut};
use crate::backend::ledger::observed::{Gate, GateLifetime, GateMode, Now, Observed};
use crate::backend::ledger::store::{Effect, Purpose};
use crate::backend::ledger::value::{HolderEntry, Ledger};
use crate::backend::{Loss, StoreError};
use crate::lock::{Claim, Freeze, Holder, LockName, Mode, Token};

/// By how much a lease is longer, at most, because the clocks of a store's servers differ: beyond that, one of them is wrong.
const MOST_BEHIND: Duration = Duration::from_secs(10);

/// For how long a gate with a lease is passed for a freeze without an end.
const LONGEST_PASSAGE: Duration = Duration::from_secs(366 * 86_400);

/// Returns the token with which the gate is passed for a freeze.
fn token_of(freeze: &Freeze) -> Token {
    Token::from_text(format!("freeze:{}", freeze.id))
}

/// A client that has passed the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// The identity that the ledger records of a holder; `None` if it cannot be a dlock.
    pub identity: Option<(u64, u64)>,
    /// How it keeps the gate.
    pub mode: GateMode,
    /// What the store knows of it.
    pub holder: Holder,
}

/// The time and the gate of a ledger, as one change of the ledger observes them.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    now: Now,
    /// See [`DocumentStore::clock_lag`].
    lag: Duration,
    /// How far the time is behind that of another server of the store.
    behind: Duration,
    lifetime: Option<GateLifetime>,
    gate: Gate,
    /// Who is in the gate, if that was asked for.
    occupants: Option<Vec<Occupant>>,
    /// The one among them that is not in the ledger.
    stranger: Option<(GateMode, Holder)>,
    loss: Option<Loss>,
    /// The ticket of the claim's own hold, if its gate is lost: the claim starts anew.
    forgotten: Option<u64>,
    /// The gate was left for this change, a release.
    has_left: bool,
    /// Why other clients cannot see the ledger, if so.
    lacks_ledger: Option<String>,
    /// See [`DocumentStore::is_read_only`].
    is_read_only: bool,
    /// See [`DocumentStore::polled`].
    polled: Option<Duration>,
    /// See [`Observed::was_refused`].
    was_refused: bool,
}

impl Observation {
    /// Nothing but the time is known, which is that of a ledger that was read so long before the request: at the store, what
    /// is granted ends later by as much.
    pub(super) fn of<S: DocumentStore>(store: &S, now: Now, age: Duration) -> Observation {
        let lifetime = store.gate_lifetime();
        let gate = if lifetime.is_some() { Gate::Untried } else { Gate::Passed(None) };
        Observation {
            now,
            lag: store.clock_lag() + age,
            behind: Duration::ZERO,
            lifetime,
            gate,
            occupants: None,
            stranger: None,
            loss: None,
            forgotten: None,
            has_left: false,
            lacks_ledger: None,
            is_read_only: false,
            polled: store.polled(),
            was_refused: false,
        }
    }

    /// Notes that another server of the store has shown a later time, by as much: what is granted ends later.
    pub(super) fn note_behind(&mut self, behind: Option<Duration>) {
        self.behind = behind.unwrap_or_default().min(MOST_BEHIND);
    }

    /// Notes that the ledger was not stored as it was decided, for all that the reply tells.
    pub(super) fn note_refused(&mut self) {
        self.was_refused = true;
    }

    /// Observes the gate of a ledger that was read, and returns the ledger.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn observe<S: DocumentStore>(
        &mut self,
        store: &mut S,
        name: &LockName,
        purpose: &Purpose,
        seen: Seen<S::Version>,
    ) -> Result<Ledger, StoreError> {
        let Seen { ledger, now, occupants, .. } = seen;
        self.now = now;
        self.lacks_ledger = store.lacks_ledgers();
        self.is_read_only = store.is_read_only();
        if self.has_left {
            self.pass_again(store, purpose, &ledger).await?;
            return Ok(ledger);
        }
        if self.lifetime.is_none() {
            return Ok(ledger);
        }
        let claim = purpose.claim();
        let token = claim.map(|claim| claim.token.reveal());
        let is_mine = |holder: &HolderEntry| Some(holder.token.as_str()) == token;
        let is_needed = match purpose {
            // One with a lease that an earlier attempt has passed may have ended since.
            Purpose::Claim(_) => {
                !ledger.is_idle()
                    || (self.lifetime == Some(GateLifetime::Lease) && store.passed(purpose).is_some())
            }
            Purpose::Renew(_) | Purpose::Operate | Purpose::Prepare => true,
            // A gate that this session has passed is still ours; with leases, another process of the hold may have
            // passed it.
            Purpose::Release(_) if store.passed(purpose).is_some() => false,
            Purpose::Release(_) => {
                self.lifetime == Some(GateLifetime::Lease) || ledger.holders.iter().any(is_mine)
            }
            Purpose::History => false,
        };
        if is_needed {
            self.occupants = match occupants {
                None => Some(store.observe_gate(name, purpose, &ledger).await?),
                read => read,
            };
        }
        let passed = store.passed(purpose);
        // That of a hold which has not ended as long as its session: its lease may have, when the clock was set.
        let kept = claim.filter(|_| matches!(purpose, Purpose::Renew(_) | Purpose::Release(_)));
        let kept = kept.filter(|_| self.lifetime == Some(GateLifetime::Session));
        let kept = kept.and_then(|claim| ledger.hold_of(claim)?.gate);
        let is_known = |occupant: &&Occupant| {
            let holds = |holder: &HolderEntry| holder.gate == occupant.identity && holder.counts(&now);
            let is_of_freeze =
                || occupant.identity == ledger.freeze().map(|freeze| identity(&token_of(freeze)));
            let is_of_hold = || ledger.holders.iter().any(holds);
            let is_own = [passed, kept].contains(&occupant.identity);
            occupant.identity.is_some() && (is_own || is_of_hold() || is_of_freeze())
        };
        let stranger = self.occupants.iter().flatten().find(|occupant| !is_known(occupant));
        self.stranger = stranger.map(|stranger| (stranger.mode, stranger.holder.clone()));
        self.gate = match (passed, purpose) {
            (Some(gate), _) => Gate::Passed(Some(gate)),
            (None, Purpose::Claim(claim) | Purpose::Renew(claim)) if !self.is_open_to(claim.mode) => {
                Gate::Closed
            }
            (None, _) => Gate::Untried,
        };
        let is_lost = |mine: &HolderEntry| {
            is_mine(mine) && mine.ticket == mine.family && mine.ended_at.is_none() && mine.gate != passed
        };
        let lost = ledger.holders.iter().find(|holder| is_lost(holder)).map(|holder| holder.ticket);
        let is_foreign = |holder: &HolderEntry| holder.identity().is_none();
        let is_taken = self.stranger.is_some() || ledger.holders.iter().any(is_foreign);
        (self.loss, self.forgotten) = match purpose {
            Purpose::Claim(_) => (None, lost),
            _ => (lost.map(|_| if is_taken { Loss::Taken } else { Loss::Gone }), None),
        };
        Ok(ledger)
    }

    /// Passes the gate again that was left for a release, if a run has entered the hold since that was decided: it relies on the
    /// gate of the hold. If another program is faster, its next renewal tells it.
    ///
    /// # Errors
    /// The store could not be queried.
    async fn pass_again<S: DocumentStore>(
        &mut self,
        store: &mut S,
        purpose: &Purpose,
        ledger: &Ledger,
    ) -> Result<(), StoreError> {
        let Some(claim) = purpose.claim() else { return Ok(()) };
        let mine = ledger.hold_of(claim);
        let is_inside = |other: &HolderEntry, mine: &HolderEntry| {
            other.ticket != mine.ticket && other.gate == mine.gate && other.has_owner(self)
        };
        if let Some(mine) = mine.filter(|mine| ledger.holders.iter().any(|other| is_inside(other, mine))) {
            self.has_left = !store.pass_gate(purpose, claim, GateMode::of(mine.mode)).await?;
        }
        Ok(())
    }

    /// Returns a copy of the ledger to decide on: without the claim's own hold, if its gate is lost.
    pub(super) fn ledger(&self, before: &Ledger) -> Ledger {
        let mut ledger = before.clone();
        if let Some(ticket) = self.forgotten {
            ledger.holders.retain(|holder| holder.ticket != ticket);
        }
        ledger
    }

    /// Tries to pass the gate. Returns whether it has passed.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn pass<S: DocumentStore>(
        &mut self,
        store: &mut S,
        purpose: &Purpose,
        claim: &Claim,
        mode: GateMode,
    ) -> Result<bool, StoreError> {
        let has_passed = store.pass_gate(purpose, claim, mode).await?;
        self.gate = if has_passed { Gate::Passed(store.passed(purpose)) } else { Gate::Closed };
        Ok(has_passed)
    }

    /// Leaves the gate if the claim has passed it, and does not hold the lock in this ledger, or only for the rest of
    /// its minimum hold time. Returns false if the gate was lost before; the decision must then be repeated.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn leave<S: DocumentStore>(
        &mut self,
        store: &mut S,
        purpose: &Purpose,
        ledger: &Ledger,
        effect: Effect,
    ) -> Result<bool, StoreError> {
        let Some(claim) = purpose.claim().filter(|_| self.lifetime.is_some() && !self.has_left) else {
            return Ok(true);
        };
        let Some(gate) = store.passed(purpose) else { return Ok(true) };
        let has_lease = self.lifetime == Some(GateLifetime::Lease);
        let mine = ledger.hold_of(claim);
        let is_held = |mine: &HolderEntry| mine.ended_at.is_none() && mine.counts(&self.now);
        if mine.is_some_and(|mine| is_held(mine) || !has_lease) {
            return Ok(true);
        }
        // The processes inside the hold pass the gate themselves before their leases end.
        let kept = ledger.holders.iter().filter(|holder| has_lease && holder.gate == Some(gate));
        let ends = kept.filter_map(|holder| holder.lease_ends).max();
        let rest = ends.unwrap_or_default().saturating_sub(self.now.clock);
        let was_kept = store.leave_gate(purpose, claim, rest).await?;
        // A claim that passed the gate without being granted may have to pass it again.
        self.has_left = matches!(purpose, Purpose::Release(_)) && !store.swaps_gate();
        if !was_kept && (effect == Effect::Free || !rest.is_zero()) {
            self.loss = Some(Loss::Gone);
            return Ok(false);
        }
        Ok(true)
    }

    /// Withdraws a claim that is released and not in the ledger: the request that makes it may still be on its way. Returns whether
    /// the ledger has to be stored as it is, so that its version refuses that request; the gate is left likewise, unless others
    /// need it. What belongs to a session has ended with it.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn withdraw<S: DocumentStore>(
        &self,
        store: &mut S,
        purpose: &Purpose,
        ledger: &Ledger,
    ) -> Result<bool, StoreError> {
        let Purpose::Release(claim) = purpose else { return Ok(false) };
        if self.lifetime == Some(GateLifetime::Session) || ledger.hold_of(claim).is_some() {
            return Ok(false);
        }
        let gate = Some(identity(&claim.token));
        let is_needed = self.has_left || ledger.holders.iter().any(|holder| holder.gate == gate);
        if self.lifetime.is_some() && !is_needed {
            store.leave_gate(purpose, claim, Duration::ZERO).await?;
        }
        Ok(true)
    }

    /// Passes a gate with a lease for the freeze of a lock that nobody holds, unless somebody is in it: foreign programs are kept
    /// out until the freeze ends. If one of them is faster, it is in the gate; and if the lock was thawed meanwhile, the gate is
    /// left again.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn keep_out<S: DocumentStore>(
        &self,
        store: &mut S,
        name: &LockName,
        ledger: &Ledger,
    ) -> Result<(), StoreError> {
        let is_open = self.lifetime == Some(GateLifetime::Lease)
            && ledger.holders.is_empty()
            && self.occupants.as_ref().is_some_and(Vec::is_empty);
        if let Some((freeze, rest)) = ledger.live_freeze(self.now).filter(|_| is_open) {
            let claim = Claim::new(name.clone(), token_of(freeze), rest.min(LONGEST_PASSAGE));
            let purpose = Purpose::Claim(claim.clone());
            let has_passed = store.pass_gate(&purpose, &claim, GateMode::Exclusive).await?;
            let is_frozen = |ledger: &Ledger| ledger.freeze() == Some(freeze);
            if has_passed
                && !is_frozen(&store.load(name, &Purpose::Operate, &Shortcut::None, None).await?.ledger)
            {
                store.leave_gate(&purpose, &claim, Duration::ZERO).await?;
            }
        }
        Ok(())
    }

    /// Leaves the gate that was passed for a freeze which has ended by itself: its lease may last a little longer.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn let_in_after_end<S: DocumentStore>(
        &self,
        store: &mut S,
        name: &LockName,
        ledger: &Ledger,
    ) -> Result<(), StoreError> {
        match ledger.live_freeze(self.now) {
            None => self.let_in(store, name, ledger, &Ledger::default()).await,
            Some(_) => Ok(()),
        }
    }

    /// Leaves the gate that was passed for a freeze, if this change ends it: before that, which a user must be able to do; and
    /// after it, because until then another client may pass it.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn let_in<S: DocumentStore>(
        &self,
        store: &mut S,
        name: &LockName,
        before: &Ledger,
        after: &Ledger,
    ) -> Result<(), StoreError> {
        let has_lease = self.lifetime == Some(GateLifetime::Lease);
        let ended = before.freeze().filter(|freeze| has_lease && after.freeze() != Some(freeze));
        let Some(freeze) = ended else { return Ok(()) };
        let claim = Claim::new(name.clone(), token_of(freeze), Duration::ZERO);
        store.leave_gate(&Purpose::Claim(claim.clone()), &claim, Duration::ZERO).await.map(drop)
    }

    /// Returns whether no foreign program is known to keep holders of this mode out.
    fn is_open_to(&self, mode: Mode) -> bool {
        let own = GateMode::of(mode);
        self.stranger.as_ref().is_none_or(|(its, _)| [*its, own] == [GateMode::Shared; 2])
    }
}

impl Observed for Observation {
    fn now(&self) -> Now {
        self.now
    }

    fn end_of(&self, span: Duration) -> Duration {
        self.now.clock + self.lag + self.behind + span
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn polled(&self) -> Option<Duration> {
        self.polled
    }

    fn gate(&self) -> Gate {
        self.gate
    }

    fn gate_lifetime(&self) -> Option<GateLifetime> {
        self.lifetime
    }

    fn admits(&self, mode: Mode) -> bool {
        matches!(self.gate, Gate::Passed(_)) || self.is_open_to(mode)
    }

    fn is_gate_replaced(&self, entry: &HolderEntry) -> bool {
        let is_its = |occupant: &Occupant| occupant.identity == entry.gate;
        entry.gate.is_some() && self.occupants.as_ref().is_some_and(|all| !all.iter().any(is_its))
    }

    fn foreign(&self) -> Option<(Mode, Holder)> {
        let (mode, holder) = self.stranger.clone()?;
        let mode = match mode {
            GateMode::Exclusive => Mode::Exclusive,
            GateMode::Shared => Mode::Shared,
        };
        Some((mode, holder))
    }

    fn hint(&self, entry: &HolderEntry) -> Option<String> {
        let is_its = |occupant: &&Occupant| entry.gate.is_some() && occupant.identity == entry.gate;
        self.occupants.iter().flatten().find(is_its)?.holder.hint.clone()
    }

    fn lacks_ledger(&self) -> Option<String> {
        self.lacks_ledger.clone()
    }

    fn loss(&self) -> Option<Loss> {
        self.loss
    }

    fn was_refused(&self) -> bool {
        self.was_refused
    }
}
