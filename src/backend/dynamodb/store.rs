//! The store of one client: an item for each lock.

use std::time::Duration;

use super::item::{Change as ItemChange, Content};
use super::location::{Location, Recipe};
use super::lock_client::LockClient;
use super::table::{Reading, Table, Written};
use crate::backend::admin::Removal;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{DocumentStore, Documents, Revision, Seen, Shortcut};
use crate::backend::ledger::polling::{CLAIM_WITHIN, CLOCK_LAG, Poller, at, back_off};
use crate::backend::ledger::{
    Contender, GateLifetime, GateMode, Ledger, Occupant, Purpose, Store, WaiterEntry,
};
use crate::backend::{Change, Outlook, Reply, StoreError, TryReply};
use crate::clock::Moment;
use crate::lock::{Claim, Holder, LockName};
use crate::random;

/// A ledger beyond this length, of some 700 waiters, is not made longer: an item has 400 KB.
const LONGEST: usize = 300 << 10;

/// A client of a table. If it ends without a release, its hold ends with its lease, and its queue position when its turn has
/// passed.
pub(super) struct DynamoStore {
    pub location: Location,
    pub table: Table,
    /// The locks of AWS's lock client, if the recipe is that.
    gate: Option<LockClient>,
    poller: Poller,
    /// What a write that has failed has found: the next attempt is decided on it.
    unread: Option<(LockName, Reading)>,
    /// How many conflicts there were in this change.
    conflicts: u32,
    /// The length of what was read last.
    length: usize,
    /// What was read last for a hold is not a ledger: it has lost its lock, and the item is another program's.
    is_foreign: bool,
}

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: Location) -> Contender<DynamoStore> {
    let table = Table::new(&location);
    let gate = (location.recipe == Recipe::LockClient).then(LockClient::default);
    Contender::new(DynamoStore {
        location,
        table,
        gate,
        poller: Poller::default(),
        unread: None,
        conflicts: 0,
        length: 0,
        is_foreign: false,
    })
}

impl DynamoStore {
    /// Changes an item, and finds out whether it is changed, if the reply does not say.
    async fn write(&mut self, name: &LockName, change: &ItemChange<'_>) -> Result<Written, StoreError> {
        let (key, attempt) = (self.location.key(name), random::id());
        let error = match self.table.write(&key, change, &attempt).await {
            Ok(written) => return Ok(written),
            // The store asks its clients to send less.
            Err(error @ StoreError::Unavailable { outlook: Outlook::Transient, .. }) => return Err(error),
            Err(error @ StoreError::Unavailable { maybe_applied: true, .. }) => error,
            Err(error) => return Err(error),
        };
        match self.table.read(&key).await {
            Ok(reading) if reading.content.version() == Some(attempt.as_str()) => {
                Ok(Written::Stored(reading))
            }
            _ => Err(error),
        }
    }

    /// Carries out the shortcut, and returns what the item is then: as it was written, or as it was found. `None` if there is
    /// nothing to write, or the reply does not say.
    async fn shorten(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
        known: Option<&Seen<Option<String>>>,
    ) -> Result<Option<Reading>, StoreError> {
        if self.table.time().is_none() {
            self.table.connect().await?;
        }
        let (sent, Some(time)) = (Moment::now(), self.table.time()) else { return Ok(None) };
        let now = at(time);
        let written = match (shortcut, purpose) {
            (Shortcut::TakeIfIdle(holder), Purpose::Claim(_)) if !self.poller.is_waiting() => {
                self.write(name, &ItemChange::Take(holder, now)).await?
            }
            // A waiter that is alive writes nothing.
            (Shortcut::Touch(token, lease), Purpose::Renew(_)) => {
                let Some(Seen { ledger, version, .. }) = known else { return Ok(None) };
                let mut after = ledger.clone();
                Shortcut::Touch(token.clone(), *lease + CLOCK_LAG).apply(&mut after, now);
                if after == *ledger {
                    return Ok(None);
                }
                self.write(name, &ItemChange::Swap(version.as_deref(), &after)).await?
            }
            _ => return Ok(None),
        };
        Ok(match written {
            // The lease that is written counts from then, even if a later reply has shown that it is.
            Written::Stored(Reading { content, .. }) => Some(Reading { content, date: time, sent }),
            Written::Changed(found) => found,
        })
    }

    /// Returns the names of the locks whose ledgers are like this.
    async fn names(&mut self, is_meant: impl Fn(&Ledger) -> bool) -> Result<Vec<LockName>, StoreError> {
        let locks = self.table.list().await?.into_iter();
        // One that cannot be read may be in use: its state says why it is unknown.
        let locks = locks.filter(|(_, content)| match content {
            Content::Lock(ledger, ..) => is_meant(ledger),
            _ => true,
        });
        Ok(locks.map(|(name, _)| name).collect())
    }

    /// Reads the item for the waiter, and returns what has changed for it.
    async fn look(&mut self, name: &LockName) -> Result<Option<Change>, StoreError> {
        let key = self.location.key(name);
        let (change, ledger) = match self.table.read(&key).await?.content {
            Content::Lock(ledger, _, version) if self.poller.seen() == Some(version.as_str()) => {
                (None, ledger)
            }
            Content::Lock(ledger, _, version) => (self.poller.change(Some((&ledger, version))), ledger),
            Content::Missing | Content::Foreign(_) => (self.poller.change(None), Box::default()),
        };
        if change.is_none()
            && let Some(gate) = &mut self.gate
            && gate.is_left(&mut self.table, name, &ledger).await?
        {
            return Ok(Some(Change::OurTurn));
        }
        Ok(change)
    }
}

impl DocumentStore for DynamoStore {
    /// `None` if there is no item.
    type Version = Option<String>;

    async fn load(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
        known: Option<&Seen<Self::Version>>,
    ) -> Result<Seen<Self::Version>, StoreError> {
        let key = self.location.key(name);
        let found = match self.unread.take().filter(|(of, _)| of == name) {
            Some((_, reading)) => Some(reading),
            None => {
                self.conflicts = 0;
                self.shorten(name, purpose, shortcut, known).await?
            }
        };
        let Reading { content, date, sent } = match found {
            Some(reading) => reading,
            None => self.table.read(&key).await?,
        };
        let now = at(date);
        (self.length, self.is_foreign) = (0, false);
        let (ledger, version) = match (content, purpose) {
            (Content::Missing, _) => (Ledger::default(), None),
            (Content::Lock(ledger, length, version), _) => {
                self.length = length;
                (*ledger, Some(version))
            }
            (Content::Foreign(_), Purpose::Renew(_) | Purpose::Release(_)) => {
                self.is_foreign = true;
                (Ledger::of_foreign_holder(0), None)
            }
            (Content::Foreign(why), _) => {
                let table = &self.location.table;
                return Err(StoreError::Config(format!(
                    "the item {key} of the table {table} is not a lock of this dlock: {why}"
                )));
            }
        };
        self.poller.note_position(name, &ledger);
        Ok(Seen { ledger, version, now, sent, occupants: None })
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
        let ledger = revision.ledger;
        if let Some(gate) = &mut self.gate {
            gate.end_others(&mut self.table, name, purpose, revision.before, ledger).await?;
        }
        let reading = match self.write(name, &ItemChange::Swap(version.as_deref(), ledger)).await? {
            Written::Stored(reading) => reading,
            Written::Changed(found) => {
                let found = match found.filter(|_| self.conflicts == 0) {
                    Some(reading) => reading,
                    None => {
                        if matches!(purpose, Purpose::Claim(_)) {
                            // The holder does not wait: its lease goes on.
                            back_off(self.conflicts).await;
                        }
                        self.table.read(&self.location.key(name)).await?
                    }
                };
                self.conflicts += 1;
                self.unread = Some((name.clone(), found));
                return Ok(None);
            }
        };
        let version = reading.content.version().map(str::to_owned);
        self.poller.note(name, revision.effect, ledger, version.as_deref());
        Ok(Some(version))
    }

    fn shown(&self) -> Option<Duration> {
        self.table.date()
    }

    fn clock_lag(&self) -> Duration {
        CLOCK_LAG
    }

    fn is_read_only(&self) -> bool {
        self.length > LONGEST
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
            Some(gate) => gate.observe(&mut self.table, name, purpose, ledger).await,
            None => Ok(Vec::new()),
        }
    }

    async fn pass_gate(&mut self, purpose: &Purpose, claim: &Claim, _: GateMode) -> Result<bool, StoreError> {
        match &mut self.gate {
            Some(gate) => gate.pass(&mut self.table, purpose, claim).await,
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
            Some(gate) => gate.leave(&mut self.table, purpose, claim, rest).await,
            None => Ok(true),
        }
    }
}

impl Store for DynamoStore {
    type Shape = Documents<Option<String>>;

    fn display(&self) -> &str {
        &self.location.display
    }

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(self.table.connect())
    }

    fn list(&mut self) -> TryReply<'_, Vec<LockName>> {
        Box::pin(self.names(|ledger| !ledger.is_idle()))
    }

    fn list_with_history(&mut self) -> TryReply<'_, Vec<LockName>> {
        Box::pin(self.names(|ledger| !ledger.history.is_empty()))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            loop {
                let name = self.poller.due().await;
                match self.look(&name).await {
                    Ok(None) => {}
                    Ok(Some(change)) => return change,
                    Err(_) => return Change::Disconnected,
                }
            }
        })
    }

    fn end_foreign<'a>(&'a mut self, name: &'a LockName, shown: &'a Holder) -> TryReply<'a, Removal> {
        Box::pin(async move {
            match &mut self.gate {
                Some(gate) => gate.end_shown(&mut self.table, name, shown).await,
                None => Ok(Removal::Impossible),
            }
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.examine_table(diagnosis))
    }
}
