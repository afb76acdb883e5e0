//! The store of one client: a Lease for each lock.

use std::borrow::Cow;
use std::time::Duration;

use tokio::time::sleep;

use super::api::{Api, Reading};
use super::lease::{self, Lease};
use super::location::{Location, contains_name, lease_name, name_of};
use super::watch::{Event, Watch};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{DocumentStore, Documents, Revision, Seen, Shortcut};
use crate::backend::ledger::polling::{CLAIM_WITHIN, CLOCK_LAG, PAUSE, at, back_off};
use crate::backend::ledger::waiting::{Waiting, calls};
use crate::backend::ledger::{Contender, Ledger, Now, Purpose, Store, WaiterEntry};
use crate::backend::{Change, Outlook, Reply, StoreError, TryReply};
use crate::clock::Moment;
use crate::lock::LockName;
use crate::random::{self, jitter};

/// A ledger beyond this length, of some 500 waiters, is not made longer: all annotations of an object have 256 KiB.
const LONGEST: usize = 200 << 10;
/// What was read before that is read again.
const FRESH: Duration = Duration::from_secs(10);

/// A client of a namespace. If it ends without a release, its hold ends with its lease, and its queue position when its turn has
/// passed.
pub(super) struct KubernetesStore {
    pub location: Location,
    api: Api,
    waiting: Option<Waiting>,
    watch: Option<Watch>,
    /// The user has no right to watch: the waiter reads the Lease now and then.
    may_not_watch: bool,
    /// What was read after a conflict, or what the watch has shown: the next attempt is decided on it.
    unread: Option<(LockName, Reading)>,
    /// How many conflicts there were in this change.
    conflicts: u32,
    /// The length of what was read last.
    length: usize,
    /// What was read last for a hold is not a lock any more: the hold is lost.
    is_unusable: bool,
    /// The holder of a Lease that is another program, as it was seen last, and when that was by the server's clock.
    foreign: Option<(LockName, String, Duration)>,
}

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: Location) -> Contender<KubernetesStore> {
    let api = Api::new(&location);
    Contender::new(KubernetesStore {
        location,
        api,
        waiting: None,
        watch: None,
        may_not_watch: false,
        unread: None,
        conflicts: 0,
        length: 0,
        is_unusable: false,
        foreign: None,
    })
}

/// Returns whether a foreign program holds the lock, unless its lease has ended.
fn is_foreign(ledger: &Ledger) -> bool {
    ledger.holders.iter().any(|holder| holder.identity().is_none())
}

impl KubernetesStore {
    /// Writes a Lease, and finds out whether it is stored. Returns it as it is then; `None` if another client was faster.
    async fn write(
        &mut self,
        name: &LockName,
        version: Option<&Lease>,
        (before, after): (&Ledger, &Ledger),
        now: Now,
    ) -> Result<Option<Lease>, StoreError> {
        let (key, attempt) = (lease_name(name), random::id());
        let change = lease::Change { before, after, attempt: &attempt, now };
        let body = match version {
            Some(lease) => lease.changed(&change),
            None => Lease::new(&self.location.namespace, &key).changed(&change),
        };
        let error = match self.api.write(&key, version.is_none(), body).await {
            Ok(Some(lease)) => return Ok(Some(lease)),
            Ok(None) => None,
            // The server asks its clients to send less.
            Err(error @ StoreError::Unavailable { outlook: Outlook::Transient, .. }) => return Err(error),
            Err(error @ StoreError::Unavailable { maybe_applied: true, .. }) => Some(error),
            Err(error) => return Err(error),
        };
        // Perhaps it is this very write that has changed the Lease, and its first reply was lost.
        let reading = self.api.read(&key).await.map_err(|later| error.clone().unwrap_or(later))?;
        match (reading.lease.as_ref().filter(|lease| lease.attempt().as_ref() == Some(&attempt)), error) {
            (Some(lease), _) => Ok(Some(lease.clone())),
            (None, Some(error)) => Err(error),
            (None, None) => {
                self.unread = Some((name.clone(), reading));
                Ok(None)
            }
        }
    }

    /// Extends the hold of a client in one request, if the Lease is as this client has seen it last. Returns what it is then;
    /// `None` if that is not known.
    async fn touch(
        &mut self,
        name: &LockName,
        shortcut: &Shortcut,
        known: &Seen<Option<Lease>>,
    ) -> Result<Option<Reading>, StoreError> {
        let (sent, Shortcut::Touch(token, lease), Some(time)) = (Moment::now(), shortcut, self.api.time())
        else {
            return Ok(None);
        };
        let (now, mut after) = (at(time), known.ledger.clone());
        Shortcut::Touch(token.clone(), *lease + CLOCK_LAG).apply(&mut after, now);
        if after == known.ledger || is_foreign(&after) {
            return Ok(None);
        }
        let lease = self.write(name, known.version.as_ref(), (&known.ledger, &after), now).await?;
        // The lease that is written counts from then, even if a later reply has shown that it is.
        Ok(lease.map(|lease| Reading { lease: Some(lease), time, sent }))
    }

    /// Returns since when the holder that another program has written is known to be like this, by the server's clock.
    fn seen(&mut self, name: &LockName, lease: &Lease, time: Duration) -> Duration {
        let (holder, renewed) = lease.renewal();
        let shown = format!("{holder} {renewed}");
        match &self.foreign {
            Some((of, known, since)) if of == name && *known == shown => *since,
            _ => {
                self.foreign = Some((name.clone(), shown, time));
                time
            }
        }
    }

    /// Returns the names of the locks whose ledgers are like this.
    async fn names(&mut self, is_meant: impl Fn(&Ledger) -> bool) -> Result<Vec<LockName>, StoreError> {
        let mut names = Vec::new();
        for lease in self.api.list().await? {
            // One that cannot be read may be in use: its state says why it is unknown.
            let ledger = lease.ledger(self.api.time().unwrap_or_default()).ok();
            if ledger.as_ref().is_none_or(&is_meant) {
                names.extend(name_of(lease.name()).or_else(|| ledger?.lock_name()));
            }
        }
        Ok(names)
    }

    /// Returns what a Lease, as the watch has shown it, has changed for the waiter.
    fn notice(&mut self, lease: Option<Lease>) -> Option<Change> {
        let (time, sent) = self.api.past()?;
        let waiting = self.waiting.as_mut()?;
        let name = waiting.name.clone();
        let Some(lease) = lease else { return waiting.change(None) };
        let since = self.seen(&name, &lease, time);
        let Ok(ledger) = lease.ledger(since) else { return Some(Change::OurTurn) };
        if !is_foreign(&ledger) {
            self.foreign = None;
        }
        let waiting = self.waiting.as_mut()?;
        // Its turn may have passed: it joins again. And a foreign program calls nobody.
        let is_out = ledger.waiters.iter().all(|waiter| waiter.ticket != waiting.ticket);
        let is_left = ledger.holders.is_empty() && waiting.is_next();
        let change = match waiting.change(Some(&calls(&ledger))) {
            Some(Change::Soon(_)) => Some(Change::Soon(CLAIM_WITHIN)),
            change => change.or((is_out || is_left).then_some(Change::OurTurn)),
        };
        if change == Some(Change::OurTurn) {
            self.conflicts = 0;
            self.unread = Some((name, Reading { lease: Some(lease), time, sent }));
        }
        change
    }
}

impl DocumentStore for KubernetesStore {
    /// `None` if there is no Lease.
    type Version = Option<Lease>;

    async fn load(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
        known: Option<&Seen<Self::Version>>,
    ) -> Result<Seen<Self::Version>, StoreError> {
        let is_fresh = |of: &LockName, reading: &Reading| of == name && Moment::now() - reading.sent < FRESH;
        let found = match (self.unread.take().filter(|(of, reading)| is_fresh(of, reading)), known) {
            (Some((_, reading)), _) => Some(reading),
            // A waiter that is alive writes nothing.
            (None, Some(known)) if matches!(purpose, Purpose::Renew(_)) => {
                self.touch(name, shortcut, known).await?
            }
            _ => None,
        };
        let Reading { lease, time, sent } = match found.or_else(|| Some(self.unread.take()?.1)) {
            Some(reading) => reading,
            None => {
                self.conflicts = 0;
                self.api.read(&lease_name(name)).await?
            }
        };
        let now = at(time);
        (self.length, self.is_unusable) = (0, false);
        let ledger = match &lease {
            None => Ledger::default(),
            Some(lease) => {
                self.length = lease.annotation().map_or(0, str::len);
                let since = self.seen(name, lease, time);
                match (lease.ledger(since), purpose) {
                    (Ok(ledger), _) => ledger,
                    (Err(_), Purpose::Renew(_) | Purpose::Release(_)) => {
                        self.is_unusable = true;
                        Ledger::of_foreign_holder(0)
                    }
                    (Err(why), _) => {
                        let namespace = &self.location.namespace;
                        let lease = lease.name();
                        return Err(StoreError::Config(format!(
                            "the Lease {lease} in the namespace {namespace} is not a lock of this dlock: {why}"
                        )));
                    }
                }
            }
        };
        if !is_foreign(&ledger) {
            self.foreign = None;
        }
        if self.waiting.as_ref().is_some_and(|waiting| waiting.name == *name) {
            self.follow(name, lease.as_ref());
        }
        Ok(Seen { ledger, version: lease, now, sent, occupants: None })
    }

    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.is(name, waiter.ticket))
    }

    async fn swap(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        version: Self::Version,
        revision: Revision<'_>,
    ) -> Result<Option<Self::Version>, StoreError> {
        if self.is_unusable {
            self.waiting = None;
            return Ok(Some(version));
        }
        let ledger = match contains_name(name) {
            true => Cow::Borrowed(revision.ledger),
            false => Cow::Owned(revision.ledger.with_name(name)),
        };
        let both = (revision.before, &*ledger);
        let Some(lease) = self.write(name, version.as_ref(), both, revision.now).await? else {
            if matches!(purpose, Purpose::Claim(_)) {
                // The holder does not wait: its lease goes on.
                back_off(self.conflicts).await;
            }
            self.conflicts += 1;
            return Ok(None);
        };
        Waiting::note(&mut self.waiting, name, revision.effect, &calls(&ledger));
        match &self.waiting {
            Some(waiting) if waiting.name == *name => {
                // What has happened before it joined does not concern it.
                self.watch = None;
                self.follow(name, Some(&lease));
            }
            Some(_) => {}
            None => self.watch = None,
        }
        Ok(Some(Some(lease)))
    }

    fn shown(&self) -> Option<Duration> {
        self.api.date()
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
}

impl KubernetesStore {
    /// Watches a lock from now on, if it is not watched yet.
    fn follow(&mut self, name: &LockName, lease: Option<&Lease>) {
        if self.watch.as_ref().is_none_or(|watch| watch.name != *name) {
            let version = lease.map(Lease::version).unwrap_or_default();
            self.watch = Some(Watch::new(&self.location, name, version));
        }
    }
}

impl Store for KubernetesStore {
    type Shape = Documents<Option<Lease>>;

    fn display(&self) -> &str {
        &self.location.display
    }

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(self.api.connect())
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
                let is_awaited = self.waiting.is_some();
                let Some(watch) = self.watch.as_mut().filter(|_| is_awaited) else {
                    return std::future::pending().await;
                };
                if self.may_not_watch {
                    sleep(PAUSE + jitter(PAUSE)).await;
                    return Change::OurTurn;
                }
                let event = watch.next().await;
                if !matches!(event, Ok(Event::Changed(_))) {
                    self.watch = None;
                }
                match event {
                    Ok(Event::Changed(lease)) => {
                        if let Some(change) = self.notice(lease) {
                            return change;
                        }
                    }
                    Ok(Event::Expired) => return Change::OurTurn,
                    Err(StoreError::Denied(_)) => {
                        self.may_not_watch = true;
                        return Change::OurTurn;
                    }
                    Err(_) => return Change::Disconnected,
                }
            }
        })
    }

    fn explained(&self, late: StoreError) -> StoreError {
        let cluster = self.location.cluster().ok();
        if let Some(plugin) = cluster.and_then(|cluster| cluster.awaited_plugin()) {
            let why = format!("{plugin} has not printed credentials yet: raise --connect-timeout");
            return late.map_text(|text| format!("{text}: {why}"));
        }
        match cluster.and_then(|cluster| cluster.proxy.as_ref()) {
            Some(proxy) => late.map_text(|text| format!("{text} through {proxy}")),
            None => late,
        }
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.examine_cluster(diagnosis))
    }
}
