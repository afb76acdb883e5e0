//! The store of one client of dated values.

use std::borrow::Cow;
use std::future::pending;
use std::time::Duration;

use super::{Change, Dated, Found, Noticed, Reading, Written, has_foreign_holder};
use crate::backend::admin::{Listed, Removal};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::leased_gate::{LeasedGate, Passages};
use crate::backend::ledger::document::{DocumentStore, Documents, Occupant, Revision, Seen, Shortcut};
use crate::backend::ledger::observed::{GateLifetime, GateMode};
use crate::backend::ledger::polling::{CLAIM_WITHIN, CLOCK_LAG, Poller, at, back_off};
use crate::backend::ledger::store::{Purpose, Store};
use crate::backend::ledger::value::{Ledger, WaiterEntry};
use crate::backend::{self, Outlook, Reply, StoreError, TryReply};
use crate::clock::Moment;
use crate::lock::{Claim, Holder, LockName};
use crate::random;

/// The most locks that are listed: a hostile server could return pages without end.
const MOST_LISTED: usize = 100_000;
/// What was read longer ago is read again.
const FRESH: Duration = Duration::from_secs(10);

/// Checks how many locks a list has so far.
///
/// # Errors
/// They are too many.
pub fn check_count(listed: usize) -> Result<(), StoreError> {
    if listed <= MOST_LISTED {
        return Ok(());
    }
    Err(StoreError::Config(format!(
        "the store has more than {MOST_LISTED} locks, which is too many to list: name those that are meant"
    )))
}

/// A client of dated values. If it ends without a release, its hold ends with its lease, and its queue position when its turn
/// has passed.
pub struct DatedStore<C: Dated> {
    client: C,
    gate: Option<Passages<C::Gate>>,
    poller: Poller<C::Version>,
    /// What a write has found or made, or a waiter has seen: the next attempt is decided on it.
    unread: Option<(LockName, Reading<C::Version>)>,
    /// How many conflicts there were in this change.
    conflicts: u32,
    /// How long the lease lasts that is held or awaited.
    lease: Duration,
    /// The length of what was read last.
    length: usize,
    /// What was read last for a hold is not a ledger: it has lost its lock, and the value is another program's.
    is_foreign: bool,
}

impl<C: Dated> DatedStore<C> {
    /// Returns the store of a client, with the locks of another program in front of it or without any.
    pub fn new(client: C, gate: Option<C::Gate>) -> DatedStore<C> {
        let (gate, poller) = (gate.map(Passages::new), Poller::default());
        DatedStore {
            client,
            gate,
            poller,
            unread: None,
            conflicts: 0,
            lease: Duration::ZERO,
            length: 0,
            is_foreign: false,
        }
    }

    /// Finds out how an attempt to change a value has ended, if the reply does not say. Returns the value as it is stored; `None`
    /// if another client was faster: what that client has written is not read again.
    async fn settle(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        attempt: &str,
        written: Result<Written<C::Version>, StoreError>,
    ) -> Result<Option<Found<C::Version>>, StoreError> {
        let is_own = |reading: &Reading<_>| reading.found.is_of(attempt);
        let (shown, error) = match written {
            Ok(Written::Stored(found)) => return Ok(Some(found)),
            Ok(Written::Refused(shown)) => (shown, None),
            // The store asks its clients to send less.
            Err(error @ StoreError::Unavailable { outlook: Outlook::Transient, .. }) => return Err(error),
            Err(error @ StoreError::Unavailable { maybe_applied: true, .. }) => (None, Some(error)),
            Err(error) => return Err(error),
        };
        let reading = match shown.filter(|reading| self.conflicts == 0 || is_own(reading)) {
            Some(reading) => reading,
            None => {
                if error.is_none() && matches!(purpose, Purpose::Claim(_)) {
                    // The holder does not wait: its lease goes on.
                    back_off(self.conflicts).await;
                }
                let reading = self.client.read(&self.client.key(name)).await;
                reading.map_err(|later| error.clone().unwrap_or(later))?
            }
        };
        match error {
            // The first reply was lost, or something on the way has sent the request twice.
            _ if is_own(&reading) => Ok(Some(reading.found)),
            Some(error) => Err(error),
            None => {
                self.unread = Some((name.clone(), reading));
                Ok(None)
            }
        }
    }

    /// Carries out the shortcut if it is one request here. What the value is then, as it was written or as it was found, is
    /// not read again.
    async fn shorten(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
        known: Option<&Seen<Option<C::Version>>>,
    ) -> Result<(), StoreError> {
        let is_taken = C::TAKES && matches!(shortcut, Shortcut::TakeIfIdle(_)) && !self.poller.is_waiting();
        let is_touched = C::TOUCHES && matches!(shortcut, Shortcut::Touch(..));
        if (is_taken || is_touched) && self.client.clock().is_none() {
            self.client.connect().await?;
        }
        let (sent, Some(clock)) = (Moment::now(), self.client.clock()) else { return Ok(()) };
        let (time, key, attempt) = (clock.time(), self.client.key(name), random::id());
        let now = at(time);
        let written = match (shortcut, purpose, known) {
            (Shortcut::TakeIfIdle(holder), Purpose::Claim(_), _) if is_taken => {
                self.client.take(&key, holder, now, &attempt).await
            }
            // A waiter that is alive writes nothing.
            (Shortcut::Touch(token, lease), Purpose::Renew(_), Some(known)) if is_touched => {
                let mut after = known.ledger.clone();
                Shortcut::Touch(token.clone(), *lease + CLOCK_LAG).apply(&mut after, now);
                if after == known.ledger || has_foreign_holder(&after) {
                    return Ok(());
                }
                let (version, before) = (known.version.as_ref(), &known.ledger);
                let change = Change { version, before, ledger: &after, now, attempt: &attempt };
                self.client.write(&key, &change).await
            }
            _ => return Ok(()),
        };
        if let Some(found) = self.settle(name, purpose, &attempt, written).await? {
            // The lease that is written counts from then, even if a later reply has shown that it is.
            self.unread = Some((name.clone(), Reading { found, time, sent }));
        }
        Ok(())
    }

    /// Returns the names of the locks whose ledgers are like this.
    async fn names(&mut self, is_meant: impl Fn(&Ledger) -> bool) -> Result<Vec<LockName>, StoreError> {
        let mut names = Vec::new();
        let visit = |name: Option<LockName>, ledger: Option<Ledger>| {
            // One that cannot be read may be in use: its state says why it is unknown.
            if ledger.as_ref().is_none_or(&is_meant) {
                names.extend(name.or_else(|| ledger?.lock_name()));
            }
        };
        self.client.visit(visit).await?;
        Ok(names)
    }

    /// Waits for a change of what the client waits for, and returns what has changed for it. Never returns for a client that does
    /// not wait.
    async fn look(&mut self) -> Result<Option<backend::Change>, StoreError> {
        // No request waits for that here, and it is given up when the next renewal is due.
        self.client.refresh(self.lease).await;
        let Some((name, pause)) = self.poller.due() else { return pending().await };
        let key = self.client.key(&name);
        let reading = match self.client.next(&key, pause, self.poller.seen()).await? {
            Noticed::Unchanged => return Ok(None),
            Noticed::Unknown => return Ok(Some(backend::Change::OurTurn)),
            Noticed::Changed(reading) => reading,
        };
        let (ledger, version) = (reading.found.ledger.as_ref().ok(), reading.found.version.as_ref());
        let is_left = match ledger {
            Some(ledger) => ledger.holders.is_empty() && self.poller.is_next(),
            // The claim says that it is not a lock any more.
            None => true,
        };
        let mut change = match version {
            Some(version) if self.poller.seen() == Some(version) => None,
            _ => self.poller.change(ledger.zip(version)),
        };
        let is_free = ledger.is_some_and(|ledger| ledger.holders.is_empty());
        if C::IS_SHARED && is_left {
            change = change.or(Some(backend::Change::OurTurn));
        } else if C::IS_SHARED && is_free && self.poller.is_second() {
            // The first waiter may be dead, and has not been called: a claim of the second one calls it.
            change = change.or(Some(backend::Change::Soon(CLAIM_WITHIN)));
        } else if change.is_none()
            && !ledger.is_some_and(|ledger| self.poller.is_behind_call(&name, ledger))
            && let Some(passages) = &mut self.gate
            && passages.gate.is_left(&mut self.client, &name, ledger.unwrap_or(&Ledger::default())).await?
        {
            // The ledger may have changed meanwhile: it is read again.
            return Ok(Some(backend::Change::OurTurn));
        }
        // A ledger that was deleted has forgotten its fencing tokens: the next one depends on the time of a new reply.
        if change == Some(backend::Change::OurTurn) && ledger.is_some() && version.is_some() {
            self.conflicts = 0;
            self.unread = Some((name, *reading));
        }
        Ok(change)
    }
}

impl<C: Dated> DocumentStore for DatedStore<C> {
    /// `None` if there is no value.
    type Version = Option<C::Version>;

    async fn load(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
        known: Option<&Seen<Self::Version>>,
    ) -> Result<Seen<Self::Version>, StoreError> {
        if let Purpose::Claim(claim) | Purpose::Renew(claim) = purpose {
            self.lease = claim.ttl;
        }
        let is_usable = |of: &LockName, sent| of == name && Moment::now() - sent < FRESH;
        self.unread = self.unread.take().filter(|(of, reading)| is_usable(of, reading.sent));
        if self.unread.is_none() {
            self.conflicts = 0;
            self.shorten(name, purpose, shortcut, known).await?;
        }
        let key = self.client.key(name);
        let Reading { found, time, sent } = match self.unread.take() {
            Some((_, reading)) => reading,
            None => self.client.read(&key).await?,
        };
        let now = at(time);
        self.length = found.length;
        self.is_foreign = found.ledger.is_err() && matches!(purpose, Purpose::Renew(_) | Purpose::Release(_));
        let ledger = match found.ledger {
            Err(_) if self.is_foreign => Ledger::of_foreign_holder(0),
            Err(why) => {
                let value = self.client.described(&key);
                return Err(StoreError::Config(format!("{value} is not a lock of this dlock: {why}")));
            }
            Ok(ledger) => ledger,
        };
        self.poller.note_position(name, &ledger);
        if self.poller.is_waiting_for(name) {
            self.client.follow(&key, found.version.as_ref());
        }
        Ok(Seen { ledger, version: found.version, now, sent, occupants: None })
    }

    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        self.poller.is_subscribed(name, waiter)
    }

    async fn swap(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        version: Self::Version,
        revision: Revision<'_>,
    ) -> Result<Option<Self::Version>, StoreError> {
        if self.is_foreign {
            self.poller.stop();
            return Ok(Some(version));
        }
        if let Some(gate) = &mut self.gate {
            gate.end_others(&mut self.client, name, purpose, revision.before, revision.ledger).await?;
        }
        let ledger = match self.client.contains_name(name) {
            true => Cow::Borrowed(revision.ledger),
            false => Cow::Owned(revision.ledger.with_name(name)),
        };
        let (key, attempt) = (self.client.key(name), random::id());
        let (version, before, now) = (version.as_ref(), revision.before, revision.now);
        let change = Change { version, before, ledger: &ledger, now, attempt: &attempt };
        let written = self.client.write(&key, &change).await;
        let Some(found) = self.settle(name, purpose, &attempt, written).await? else {
            self.conflicts += 1;
            return Ok(None);
        };
        self.poller.note(name, revision.effect, &ledger, found.version.as_ref());
        if self.poller.is_waiting_for(name) {
            // What has happened before it joined does not concern it.
            self.client.unfollow();
            self.client.follow(&key, found.version.as_ref());
        } else if !self.poller.is_waiting() {
            self.client.unfollow();
        }
        Ok(Some(found.version))
    }

    fn shown(&self) -> Option<Duration> {
        self.client.clock().map(|clock| clock.date)
    }

    fn clock_lag(&self) -> Duration {
        CLOCK_LAG
    }

    fn is_read_only(&self) -> bool {
        self.length > C::LONGEST
    }

    fn polled(&self) -> Option<Duration> {
        Some(CLAIM_WITHIN)
    }

    fn is_gate_watched(&self) -> bool {
        self.gate.is_some()
    }

    fn gate_lifetime(&self) -> Option<GateLifetime> {
        self.gate.as_ref().map(|_| GateLifetime::Lease)
    }

    fn passed(&self, purpose: &Purpose) -> Option<(u64, u64)> {
        self.gate.as_ref()?.passed(purpose)
    }

    async fn observe_gate(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        ledger: &Ledger,
    ) -> Result<Vec<Occupant>, StoreError> {
        match &mut self.gate {
            Some(gate) => gate.observe(&mut self.client, name, purpose, ledger).await,
            None => Ok(Vec::new()),
        }
    }

    async fn pass_gate(&mut self, purpose: &Purpose, claim: &Claim, _: GateMode) -> Result<bool, StoreError> {
        match &mut self.gate {
            Some(gate) => gate.pass(&mut self.client, purpose, claim).await,
            None => Ok(true),
        }
    }

    async fn leave_gate(
        &mut self,
        purpose: &Purpose,
        claim: &Claim,
        rest: Duration,
    ) -> Result<bool, StoreError> {
        match &mut self.gate {
            Some(gate) => gate.leave(&mut self.client, purpose, claim, rest).await,
            None => Ok(true),
        }
    }
}

impl<C: Dated> Store for DatedStore<C> {
    type Shape = Documents<Option<C::Version>>;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(self.client.connect())
    }

    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(self.names(move |ledger| ledger.is_listed(which)))
    }

    /// Such a service has many servers, or is reached by a front end that restarts.
    fn fails_over(&self) -> bool {
        true
    }

    fn changed(&mut self) -> Reply<'_, backend::Change> {
        Box::pin(async {
            loop {
                match self.look().await {
                    Ok(None) => {}
                    Ok(Some(change)) => return change,
                    Err(_) => return backend::Change::Disconnected,
                }
            }
        })
    }

    fn explained(&self, late: StoreError) -> StoreError {
        self.client.explained(late)
    }

    fn end_foreign<'a>(&'a mut self, name: &'a LockName, shown: &'a Holder) -> TryReply<'a, Removal> {
        Box::pin(async move {
            match &mut self.gate {
                Some(passages) => passages.gate.end_shown(&mut self.client, name, shown).await,
                None => Ok(Removal::Impossible),
            }
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.client.examine(diagnosis))
    }
}
