//! The store of one client: a lock is what a session has locked, and beside it the key of its ledger.

use std::mem;
use std::time::Duration;

use super::agent::{Agent, Reading, Refused, storing, unexpected};
use super::gate::Gate;
use super::location::{Location, Recipe};
use super::occupants::{add_foreign, keep_expired, occupants, outer_hold};
use super::passage::{Passage, Sessions, State, holds};
use super::watch::Watch;
use crate::backend::admin::Listed;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{DocumentStore, Documents, Revision, Seen, Shortcut};
use crate::backend::ledger::waiting::{Waiting, calls};
use crate::backend::ledger::{Contender, GateLifetime, GateMode, Ledger, Purpose, Store, WaiterEntry};
use crate::backend::{Change, Reply, StoreError, TryReply};
use crate::clock::Moment;
use crate::lock::{Claim, LockName};

/// The longest ledger to which waiters are added: in a transaction it is a third longer, and may have 512 KiB.
const LONGEST: usize = 300 << 10;

/// A client of an agent. If it ends without a release, its locks end with their sessions, and its queue positions with
/// their leases.
pub(super) struct ConsulStore {
    pub agent: Agent,
    sessions: Sessions,
    waiting: Option<Waiting>,
    watch: Option<Watch>,
    /// What was read last.
    last: Reading,
    /// The keys of this version were not replaced although nobody else had changed them, for this reason.
    unstored: Option<((u64, u64), String)>,
}

/// What a change is decided on.
#[derive(Clone)]
pub(super) struct Version {
    /// The index of the last modification of the ledger; 0 if there is none.
    ledger: u64,
    gate: Gate,
}

impl Version {
    fn indices(&self) -> (u64, u64) {
        (self.ledger, self.gate.index)
    }
}

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: &Location) -> Contender<ConsulStore> {
    Contender::new(ConsulStore {
        agent: Agent::new(location),
        sessions: Sessions::default(),
        waiting: None,
        watch: None,
        last: Reading::default(),
        unstored: None,
    })
}

impl ConsulStore {
    /// Returns what has changed for the client, if it is to be told.
    fn notice(&mut self, name: &LockName, reading: Reading) -> Option<Change> {
        let before = mem::replace(&mut self.last, reading);
        let reading = &self.last;
        let is_waiting = |waiting: &&mut Waiting| waiting.name == *name;
        if let Some(waiting) = self.waiting.as_mut().filter(is_waiting) {
            let calls = reading.ledger().map(calls);
            let change = waiting.change(calls.as_deref());
            // A foreign program calls nobody.
            let has_left = |session: &String| !reading.gate.sessions.contains(session);
            let is_left = before.gate.sessions.iter().any(has_left) && reading.gate.has_room();
            return change.or((is_left && waiting.is_next()).then_some(Change::OurTurn));
        }
        let held = self.sessions.holding(name)?;
        let is_lost = !reading.gate.sessions.contains(&held.session);
        let mine = |ledger: &Ledger| {
            ledger.holders.iter().any(|holder| holder.token == held.token && holder.revoked.is_none())
        };
        let was_kept = before.ledger().is_some_and(mine);
        (is_lost || (was_kept && !reading.ledger().is_some_and(mine))).then_some(Change::Touched)
    }
}

impl DocumentStore for ConsulStore {
    type Version = Version;

    async fn load(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        _: &Shortcut,
        _: Option<&Seen<Version>>,
    ) -> Result<Seen<Version>, StoreError> {
        self.sessions.renew(&mut self.agent, purpose).await?;
        let (reading, sent) = self.agent.read(name, None).await?;
        // What another program writes into a key that a session of this client holds does not end the hold.
        let own = self.sessions.holding(name).map(|passage| &passage.session);
        let is_own = own.is_some_and(|session| reading.gate.sessions.contains(session));
        if let Err(other) = reading.gate.check(&self.agent.location, name)
            && !is_own
        {
            let is_intended = |one: &Passage| one.name == *name && one.state == State::Intended;
            self.sessions.end(&mut self.agent, is_intended).await;
            return Err(other);
        }
        let version = Version { ledger: reading.version, gate: reading.gate.clone() };
        if let Some((unstored, why)) = self.unstored.take()
            && unstored == version.indices()
        {
            return Err(StoreError::Denied(format!("the ledger cannot be stored: {why}")));
        }
        self.last = reading;
        if !self.last.gate.sessions.is_empty() {
            self.sessions.delayed_until = None;
        }
        let wrong = |why| StoreError::Config(format!("{name}: {why}"));
        let mut ledger = self.last.ledger.clone().transpose().map_err(wrong)?.unwrap_or_default();
        let (recipe, now) = (self.agent.location.recipe, self.agent.clock.now());
        if recipe == Recipe::Semaphore {
            let own = self.sessions.own(name);
            add_foreign(&mut ledger, &version.gate.clone().without(|session| own.contains(&session)), now);
        }
        self.sessions.observe(name, &version.gate, &ledger);
        if matches!(purpose, Purpose::Release(_)) {
            let is_lost = |one: &Passage| purpose.is_of(&one.token) && one.state == State::Lost;
            self.sessions.end(&mut self.agent, is_lost).await;
        }
        if purpose.claim().is_some() {
            Watch::follow(&mut self.watch, &self.agent.location, name, self.last.index);
        }
        let occupants = Some(occupants(recipe, &ledger, &version.gate));
        Ok(Seen { ledger, version, now, sent, occupants })
    }

    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.is(name, waiter.ticket))
    }

    async fn swap(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        version: Version,
        revision: Revision<'_>,
    ) -> Result<Option<Version>, StoreError> {
        let mut ledger = revision.ledger.clone();
        ledger.holders.retain(|holder| holder.identity().is_some());
        let token = token_of(purpose);
        let is_kept = holds(&ledger, token);
        if is_kept && matches!(purpose, Purpose::Release(_)) {
            // It is not over yet, and need not have been loaded.
            self.sessions.renew(&mut self.agent, purpose).await?;
        }
        let passage = self.sessions.of(token);
        if passage.is_some_and(|passage| passage.is_kept_out(&ledger, &version.gate)) {
            self.sessions.end(&mut self.agent, |one| one.token == token).await;
            return Ok(None);
        }
        let (location, now) = (&self.agent.location, revision.now);
        let step = passage.and_then(|passage| passage.step(location, &ledger, &version.gate, now));
        let is_swapped = step.is_some();
        let (mut operations, gate) = step.unwrap_or_else(|| (Vec::new(), version.gate.clone()));
        if !is_swapped && matches!(purpose, Purpose::Release(_)) {
            operations = version.gate.cleared(location, name);
        }
        if location.recipe == Recipe::Semaphore {
            keep_expired(&mut ledger, revision.before, &gate, revision.now);
        }
        operations.push(storing(&location.ledger_key(name), &ledger.to_json(), version.ledger));
        match self.agent.transact(&operations).await? {
            Ok(index) => {
                // The last operation stores the ledger.
                let index = index.ok_or_else(unexpected)?;
                let is_left = self.sessions.note_stored(token, is_kept, is_swapped);
                Waiting::note(&mut self.waiting, name, revision.effect, &calls(&ledger));
                self.sessions.end(&mut self.agent, |one| is_left && one.token == token).await;
                let gate = if is_swapped { gate.stored(self.agent.location.recipe, index) } else { gate };
                Ok(Some(Version { ledger: index, gate }))
            }
            Err(Refused { operations: refused, why }) => {
                let verb = |place: &usize| operations.get(*place)?["KV"]["Verb"].as_str();
                let verbs: Vec<&str> = refused.iter().filter_map(verb).collect();
                let is_lock = verbs.iter().any(|verb| ["lock", "unlock"].contains(verb));
                if refused.contains(&(operations.len() - 1)) {
                    self.unstored = Some((version.indices(), why));
                } else if is_lock && !verbs.iter().any(|verb| verb.starts_with("check-")) {
                    let is_refused = self.sessions.note_refusal(token);
                    self.sessions.end(&mut self.agent, |one| is_refused && one.token == token).await;
                }
                Ok(None)
            }
        }
    }

    fn clock_lag(&self) -> Duration {
        self.agent.clock.uncertainty()
    }

    fn is_read_only(&self) -> bool {
        self.last.length > LONGEST
    }

    /// Consul notifies of the end of a hold, but not of that of a delay.
    fn is_gate_watched(&self) -> bool {
        !self.last.gate.sessions.is_empty()
    }

    fn gate_lifetime(&self) -> Option<GateLifetime> {
        Some(GateLifetime::Session)
    }

    fn passed(&self, purpose: &Purpose) -> Option<(u64, u64)> {
        let passage = self.sessions.of(token_of(purpose))?;
        passage.identity().filter(|_| passage.state != State::Lost)
    }

    fn has_lost_gate(&self, purpose: &Purpose) -> bool {
        self.sessions.of(token_of(purpose)).is_some_and(|passage| passage.state == State::Lost)
    }

    /// The lock is taken when the ledger is stored, in the same step.
    async fn pass_gate(&mut self, purpose: &Purpose, claim: &Claim, _: GateMode) -> Result<bool, StoreError> {
        if self.sessions.is_delayed() {
            return Ok(false);
        }
        let mut sent = Moment::now();
        let outer = if matches!(purpose, Purpose::Renew(_)) { outer_hold(&self.last, claim) } else { None };
        let adopted = match outer.unwrap_or((None, claim.mode)) {
            // The owner of the outer hold has died, and its session is still there.
            (Some((session, ttl)), _) => {
                let is_there = self.agent.renew_session(&session).await?;
                is_there.then_some((session, ttl, State::Held))
            }
            (None, mode) if !self.last.gate.admits(mode) => return Ok(false),
            (None, _) => None,
        };
        let (session, ttl, state) = match adopted {
            Some(adopted) => adopted,
            None => {
                sent = Moment::now();
                (self.agent.create_session(claim.ttl).await?, claim.ttl, State::Intended)
            }
        };
        let (token, name) = (claim.token.reveal().to_owned(), claim.name.clone());
        self.sessions.add(Passage { token, name, session, ttl, renewed: sent, state, is_recorded: false });
        Ok(true)
    }

    fn swaps_gate(&self) -> bool {
        true
    }

    async fn leave_gate(&mut self, _: &Purpose, claim: &Claim, _: Duration) -> Result<bool, StoreError> {
        let token = claim.token.reveal();
        let Some(passage) = self.sessions.of(token) else { return Ok(false) };
        let is_adopted = |ledger: &Ledger| passage.is_adopted(ledger, self.agent.clock.now());
        match passage.state {
            State::Held if passage.is_recorded || self.last.ledger().is_some_and(is_adopted) => {
                return Ok(true);
            }
            State::Held => {
                // Nothing of the hold is in the ledger, so that it may not be stored.
                let location = &self.agent.location;
                let (operations, _) = self.last.gate.left(location, &claim.name, &passage.session);
                let _ = self.agent.transact(&operations).await?;
            }
            State::Intended => {}
            State::Lost => return Ok(false),
        }
        self.sessions.end(&mut self.agent, |one| one.token == token).await;
        Ok(true)
    }
}

/// Returns the token of the claim that a request is for; no claim has an empty one.
fn token_of(purpose: &Purpose) -> &str {
    purpose.claim().map(|claim| claim.token.reveal()).unwrap_or_default()
}

impl Store for ConsulStore {
    type Shape = Documents<Version>;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(self.agent.connect())
    }

    /// The agent restarts, or the servers elect another leader.
    fn fails_over(&self) -> bool {
        true
    }

    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(async move {
            let mut names = Vec::new();
            for name in self.agent.names().await? {
                let (reading, _) = self.agent.read(&name, None).await?;
                let is_held = which == Listed::InUse && !reading.gate.sessions.is_empty();
                // One that cannot be read may be in use: its state says why it is unknown.
                if is_held || reading.ledger().is_none_or(|ledger| ledger.is_listed(which)) {
                    names.push(name);
                }
            }
            Ok(names)
        })
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            loop {
                let Some(watch) = self.watch.as_mut().filter(|watch| {
                    let is_awaited = self.waiting.as_ref().is_some_and(|waiting| waiting.name == watch.name);
                    is_awaited || self.sessions.holding(&watch.name).is_some()
                }) else {
                    return std::future::pending().await;
                };
                let Ok(reading) = watch.changed().await else {
                    self.watch = None;
                    return Change::Disconnected;
                };
                let name = watch.name.clone();
                if let Some(change) = self.notice(&name, reading) {
                    return change;
                }
            }
        })
    }

    fn explained(&self, late: StoreError) -> StoreError {
        self.agent.location.route.explained(late)
    }

    fn unfrozen(&self) -> Option<&str> {
        Some("consul lock")
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.examine_agent(diagnosis))
    }
}
