//! The store of one client: an item for each lock that is in use.

use std::collections::HashMap;
use std::time::Duration;

use super::client::{Connection, unexpected};
use super::history;
use super::item::{get, is_foreign, ledger, set, shift};
use super::location::Location;
use super::reply::Line;
use crate::backend::admin::Listed;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{DocumentStore, Documents, Revision, Seen, Shortcut};
use crate::backend::ledger::waiting::{Waiting, calls};
use crate::backend::ledger::{
    AnyReply, Contender, Decide, Done, Ledger, Now, Observed, Purpose, Shape, Store, WaiterEntry,
};
use crate::backend::location::Demand;
use crate::backend::net::closed;
use crate::backend::{Change, Hazard, Location as _, Reply, StoreError, TryReply};
use crate::clock::{Moment, wall_micros};
use crate::lock::{LockName, LockState, NotedRecord};

/// How far the server's clock may be behind the true time: it shows whole seconds, and advances about once a second, now
/// and then by two (`clock_handler` in `memcached.c`; 1.4 s were seen).
const CLOCK_LAG: Duration = Duration::from_secs(2);

/// A client of a Memcached server. If it ends without a release, its entries end with their leases.
pub(super) struct MemcachedStore {
    pub location: Location,
    connection: Option<Connection>,
    /// How many connections there have been.
    connections: u64,
    /// What was read last is the item of another program.
    is_foreign: bool,
    /// The record that belongs to the change has been stored.
    is_noted: bool,
    waiting: Option<Waiting>,
    /// The [mark] of the ledger that the waiter has seen last.
    seen: u64,
    /// When the first of the holders that it has seen ends.
    due: Option<Duration>,
    /// Since when this client has seen the waiters with these tickets called: their time to claim the lock is shorter than
    /// the steps of the server's clock.
    called: HashMap<u64, Moment>,
}

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: Location) -> Contender<MemcachedStore> {
    Contender::new(MemcachedStore {
        location,
        connection: None,
        connections: 0,
        is_foreign: false,
        is_noted: false,
        waiting: None,
        seen: 0,
        due: None,
        called: HashMap::new(),
    })
}

/// The CAS value of an item; 0 if there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    cas: u64,
    /// The connection over which it was read: the values begin again when the server restarts.
    connection: u64,
}

/// Returns whether the entry of a lone holder is the only one, and alive; nothing else in the ledger is at a fixed time.
fn is_alone(seen: &Seen<Version>) -> bool {
    let [holder] = seen.ledger.holders.as_slice() else { return false };
    let is_alive = holder.lease_ends.is_some_and(|ends| seen.now.clock < ends);
    let has_others = !seen.ledger.waiters.is_empty() || seen.ledger.freeze().is_some();
    !has_others && holder.kept_until.is_none() && is_alive
}

/// Returns the time by the server's clock. That shows whole seconds, which is too coarse for ages: within the second, the
/// clock of this host counts.
fn at(clock: Duration) -> Now {
    let second = u64::try_from(clock.as_micros()).unwrap_or(u64::MAX);
    Now { clock, wall: wall_micros().clamp(second, second.saturating_add(1_000_000)) }
}

impl MemcachedStore {
    fn connection(&mut self) -> Result<Connection, StoreError> {
        self.connection.take().ok_or_else(closed)
    }

    /// Sends requests over the open connection. If one fails, or this is dropped halfway, the connection is discarded.
    async fn exchange(&mut self, requests: &str, count: usize) -> Result<Vec<Line>, StoreError> {
        let mut connection = self.connection()?;
        let replies = connection.exchange(requests, count).await?;
        self.connection = Some(connection).filter(|_| !replies.last().is_some_and(Line::is_error));
        Ok(replies)
    }

    /// Likewise, and asks the server for the time. A reply that is an error is one.
    async fn timed(&mut self, requests: &str, count: usize) -> Result<Vec<Line>, StoreError> {
        let mut connection = self.connection()?;
        connection.expect_silence().await?;
        let replies = connection.timed(requests, count).await?;
        self.connection = Some(connection);
        Ok(replies)
    }

    /// Sends one request, likewise.
    async fn ask(&mut self, request: &str) -> Result<Line, StoreError> {
        self.timed(request, 1).await?.pop().ok_or_else(unexpected)
    }

    /// Returns the time as the server's clock shows it, as far as it is known.
    fn clock(&self) -> Duration {
        self.connection.as_ref().map(Connection::clock).unwrap_or_default()
    }

    /// Measures the time to claim the lock by the clock of this host.
    fn time_calls(&mut self, ledger: &mut Ledger, now: Duration) {
        let before = std::mem::take(&mut self.called);
        for waiter in ledger.waiters.iter_mut().filter(|waiter| waiter.called.is_some()) {
            let since = before.get(&waiter.ticket).copied().unwrap_or_else(Moment::now);
            waiter.called = Some(now.saturating_sub(Moment::now() - since));
            self.called.insert(waiter.ticket, since);
        }
    }

    /// Removes the records that need not be kept.
    async fn shorten_history(&mut self, key: &str) -> Result<(), StoreError> {
        if let Line::Item(item, _) = self.ask(&get(key)).await? {
            self.ask(&history::shorten(key, item.cas, &item.value)).await?;
        }
        Ok(())
    }
}

impl DocumentStore for MemcachedStore {
    type Version = Version;

    async fn load(
        &mut self,
        name: &LockName,
        _: &Purpose,
        shortcut: &Shortcut,
        known: Option<&Seen<Version>>,
    ) -> Result<Seen<Version>, StoreError> {
        let key = self.location.key(name);
        let known = known.filter(|seen| seen.version.connection == self.connections && is_alone(seen));
        let sent = Moment::now();
        let now = at(self.connection.as_ref().map(Connection::now).unwrap_or_default());
        let first = match shortcut {
            Shortcut::None => None,
            Shortcut::TakeIfIdle(_) => Some((Ledger::default(), "ME".to_owned())),
            Shortcut::Touch(..) => known.map(|seen| (seen.ledger.clone(), format!("C{}", seen.version.cas))),
        };
        let mut requests = String::new();
        let first = first.map(|(mut ledger, flag)| {
            shortcut.apply(&mut ledger, Now { clock: now.clock + CLOCK_LAG, ..now });
            // Only the server knows what its clock shows when it stores this.
            let mut stored = ledger.clone();
            shift(&mut stored, |end| end.saturating_sub(now.clock));
            requests = set(&key, &flag, &stored);
            ledger
        });
        let mut lines = self.timed(&(requests + &get(&key)), 1 + usize::from(first.is_some())).await?;
        let clock = self.clock();
        let item = lines.pop();
        self.is_foreign = false;
        let (ledger, cas, now) = match (first, lines.pop(), item) {
            (Some(ledger), Some(Line::Done(stored)), _) => {
                self.waiting = None;
                (ledger, stored.cas, now)
            }
            (_, None | Some(Line::NotStored | Line::Changed | Line::Missing), Some(Line::Item(item, _))) => {
                let mut ledger = ledger(&item, clock)?;
                self.is_foreign = is_foreign(&item);
                // There is no queue behind another program: a ledger would have to take the place of its item.
                self.waiting = self.waiting.take().filter(|_| !self.is_foreign);
                self.time_calls(&mut ledger, clock);
                (ledger, item.cas, at(clock))
            }
            (_, None | Some(Line::NotStored | Line::Changed | Line::Missing), Some(Line::Missing)) => {
                (Ledger::default(), 0, at(clock))
            }
            _ => return Err(unexpected()),
        };
        self.due = ledger.holders.iter().filter_map(|holder| holder.lease_ends.max(holder.kept_until)).min();
        let version = Version { cas, connection: self.connections };
        Ok(Seen { ledger, version, now, sent, occupants: None })
    }

    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.is(name, waiter.ticket))
    }

    fn is_notified(&self) -> bool {
        !self.is_foreign
    }

    async fn swap(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        Version { cas, connection }: Version,
        revision: Revision<'_>,
    ) -> Result<Option<Version>, StoreError> {
        if connection != self.connections {
            return Ok(None);
        }
        if self.is_foreign && matches!(purpose, Purpose::Prepare) {
            let why = "another program has the item in which this would be stored: try again when it is free";
            return Err(StoreError::Denied(why.into()));
        }
        let (key, history_key) = (self.location.key(name), self.location.history_key(name));
        // The history is in an item of its own.
        let noted = revision.ledger.history.iter().filter(|noted| !revision.before.history.contains(noted));
        let noted: Vec<NotedRecord> = noted.cloned().collect();
        let [mut before, mut ledger] = [revision.before.clone(), revision.ledger.clone()];
        (before.history, ledger.history) = Default::default();
        let is_changed = before != ledger;
        let mut requests = match (cas, ledger.is_idle()) {
            // The item of another program is not replaced.
            _ if !is_changed || (self.is_foreign && !ledger.is_idle()) => String::new(),
            (0, true) => String::new(),
            (0, false) => set(&key, "ME", &ledger),
            (cas, true) => format!("md {key} C{cas}\r\n"),
            (cas, false) => set(&key, &format!("C{cas}"), &ledger),
        };
        let mut count = usize::from(!requests.is_empty());
        let is_stored = count == 1;
        if !noted.is_empty() && !self.is_noted {
            let (append, replies) = history::append(&history_key, &noted);
            requests += &append;
            count += replies;
            self.is_noted = true;
        }
        let mut replies = self.exchange(&requests, count).await?.into_iter();
        let stored = match replies.next().filter(|_| is_stored) {
            None => cas,
            Some(Line::Done(item)) => item.cas,
            Some(Line::NotStored | Line::Changed | Line::Missing) => return Ok(None),
            Some(line) => return Err(line.into_error()),
        };
        Waiting::note(&mut self.waiting, name, revision.effect, &calls(&ledger));
        if let Some(Line::Done(item)) = replies.last()
            && item.size > history::LONG
        {
            // The change is made all the same.
            let _ = self.shorten_history(&history_key).await;
        }
        Ok(Some(Version { cas: stored, connection }))
    }

    fn clock_lag(&self) -> Duration {
        CLOCK_LAG
    }

    fn is_read_only(&self) -> bool {
        self.is_foreign
    }
}

/// The driver of items: that of documents, with the history in an item of its own.
#[derive(Default)]
pub(super) struct Items(Documents<Version>);

impl Shape<MemcachedStore> for Items {
    async fn change(
        &mut self,
        store: &mut MemcachedStore,
        name: &LockName,
        purpose: Purpose,
        decide: Decide,
    ) -> Result<Done<AnyReply>, StoreError> {
        store.connect().await?;
        store.is_noted = false;
        self.0.change(store, name, purpose, decide).await
    }

    async fn read(
        &mut self,
        store: &mut MemcachedStore,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        store.connect().await?;
        let (now_ms, mut locks) = self.0.read(store, names, view).await?;
        for holder in locks.iter_mut().flat_map(|lock| &mut lock.holders) {
            holder.immortal = holder.remaining.is_none();
        }
        Ok((now_ms, locks))
    }

    async fn history(
        &mut self,
        store: &mut MemcachedStore,
        name: &LockName,
    ) -> Result<Vec<NotedRecord>, StoreError> {
        store.connect().await?;
        match store.ask(&get(&store.location.history_key(name))).await? {
            Line::Item(item, _) => Ok(history::kept(&item.value).into_iter().rev().collect()),
            Line::Missing => Ok(Vec::new()),
            _ => Err(unexpected()),
        }
    }
}

impl Store for MemcachedStore {
    type Shape = Items;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(async {
            if self.connection.is_none() {
                self.connection = Some(Connection::open(&self.location).await?);
                self.connections += 1;
            }
            Ok(())
        })
    }

    fn list(&mut self, _: Listed) -> TryReply<'_, Vec<LockName>> {
        let why = self.location.refuses(Demand::List).unwrap_or_default();
        Box::pin(async move { Err(StoreError::Config(why.to_owned())) })
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            while let Some(waiting) = &self.waiting {
                waiting.pause().await;
                let (key, is_next) = (self.location.key(&waiting.name), waiting.is_next());
                let reply = self.ask(&format!("mg {key} f\r\n")).await;
                // The clock has steps of a second: how long that will take cannot be told in advance.
                let clock = self.clock();
                if is_next && self.due.take_if(|due| *due <= clock).is_some() {
                    return Change::OurTurn;
                }
                let calls = match reply {
                    Ok(Line::Done(item)) if item.flags == self.seen => continue,
                    Ok(Line::Done(_)) => match self.ask(&get(&key)).await {
                        Ok(Line::Item(item, _)) => {
                            self.seen = item.flags;
                            Ledger::parse(&item.value).ok().map(|ledger| calls(&ledger))
                        }
                        Ok(Line::Missing) => None,
                        _ => return Change::Disconnected,
                    },
                    Ok(Line::Missing) => None,
                    _ => return Change::Disconnected,
                };
                let change = self.waiting.as_mut().and_then(|waiting| waiting.change(calls.as_deref()));
                if let Some(change) = change {
                    return change;
                }
            }
            let Some(connection) = &mut self.connection else { return std::future::pending().await };
            connection.ended().await;
            self.connection = None;
            Change::Disconnected
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.examine_server(diagnosis))
    }

    fn has_fencing_tokens(&self) -> bool {
        false
    }

    fn hazard(&self) -> Option<Hazard> {
        Some(Hazard::Forgetful)
    }
}
