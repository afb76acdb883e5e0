//! The store of one client: a Lease for each lock.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;

use super::api::Api;
use super::lease::Lease;
use super::location::{Location, contains_name, lease_name, name_of};
use super::watch::{Event, Watch};
use crate::backend::StoreError;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::dated::{
    Change, Dated, DatedStore, Found, Noticed, Reading, Written, has_foreign_holder,
};
use crate::backend::ledger::polling::{PAUSE, Shown};
use crate::backend::ledger::{Contender, Ledger};
use crate::lock::LockName;
use crate::random::jitter;

/// The Leases of a namespace, as one client sees them.
pub(super) struct Leases {
    pub location: Location,
    pub api: Api,
    watch: Option<Watch>,
    /// The user has no right to watch: the waiter reads the Lease now and then.
    may_not_watch: bool,
    /// The holder of the Lease with this name that is another program, as it was seen last, and when that was by the server's
    /// clock.
    foreign: Option<(String, String, Duration)>,
}

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: &Location) -> Contender<DatedStore<Leases>> {
    Contender::new(DatedStore::new(Leases::of(Api::new(location), location), None))
}

impl Leases {
    /// Returns a client with this client of the API server.
    pub fn of(api: Api, location: &Location) -> Leases {
        Leases { location: location.clone(), api, watch: None, may_not_watch: false, foreign: None }
    }

    /// Returns since when the holder that another program has written is known to be like this, by the server's clock.
    fn seen(&mut self, lease: &Lease, time: Duration) -> Duration {
        let (holder, renewed) = lease.renewal();
        let shown = format!("{holder} {renewed}");
        match &self.foreign {
            Some((of, known, since)) if of == lease.name() && *known == shown => *since,
            _ => {
                self.foreign = Some((lease.name().to_owned(), shown, time));
                time
            }
        }
    }

    /// Returns what a Lease is at this time by the server's clock.
    fn found(&mut self, lease: Option<Lease>, time: Duration) -> Found<Lease> {
        let found = match lease {
            None => Found::nothing(),
            Some(lease) => Found {
                ledger: lease.ledger(self.seen(&lease, time)),
                length: lease.annotation().map_or(0, str::len),
                attempt: lease.mark.attempt.clone(),
                version: Some(lease),
            },
        };
        if found.ledger.as_ref().is_ok_and(|ledger| !has_foreign_holder(ledger)) {
            self.foreign = None;
        }
        found
    }
}

impl Dated for Leases {
    type Version = Lease;
    type Gate = Infallible;

    /// Some 500 waiters: all annotations of an object have 256 KiB.
    const LONGEST: usize = 200 << 10;
    const TOUCHES: bool = true;
    const IS_SHARED: bool = true;

    async fn connect(&mut self) -> Result<(), StoreError> {
        self.api.connect().await
    }

    fn clock(&self) -> Option<Shown> {
        self.api.clock
    }

    fn key(&self, name: &LockName) -> String {
        lease_name(name)
    }

    fn contains_name(&self, name: &LockName) -> bool {
        contains_name(name)
    }

    fn described(&self, key: &str) -> String {
        format!("the Lease {key} in the namespace {}", self.location.namespace)
    }

    async fn read(&mut self, key: &str) -> Result<Reading<Lease>, StoreError> {
        let (lease, time, sent) = self.api.read(key).await?;
        Ok(Reading { found: self.found(lease, time), time, sent })
    }

    async fn write(&mut self, key: &str, change: &Change<'_, Lease>) -> Result<Written<Lease>, StoreError> {
        let (now, clock) = (change.now.clock, self.api.clock);
        let past = clock.map_or(now, |clock| clock.past().0.min(now));
        let body = match change.version {
            Some(lease) => lease.changed(change, past),
            None => Lease::new(&self.location.namespace, key).changed(change, past),
        };
        let lease = self.api.write(key, change.version.is_none(), body).await?;
        Ok(lease.map_or(Written::Refused(None), |lease| Written::Stored(self.found(Some(lease), now))))
    }

    async fn visit(
        &mut self,
        mut visit: impl FnMut(Option<LockName>, Option<Ledger>),
    ) -> Result<(), StoreError> {
        self.api.list(|lease, time| visit(name_of(lease.name()), lease.ledger(time).ok())).await
    }

    fn follow(&mut self, key: &str, version: Option<&Lease>) {
        if self.watch.as_ref().is_none_or(|watch| watch.lease != key) {
            let version = version.map(Lease::version).unwrap_or_default();
            self.watch = Some(Watch::new(&self.location, key, version));
        }
    }

    fn unfollow(&mut self) {
        self.watch = None;
    }

    async fn next(
        &mut self,
        _key: &str,
        _pause: Duration,
        _seen: Option<&Lease>,
    ) -> Result<Noticed<Lease>, StoreError> {
        let Some(watch) = &mut self.watch else { return std::future::pending().await };
        if self.may_not_watch {
            sleep(PAUSE + jitter(PAUSE)).await;
            return Ok(Noticed::Unknown);
        }
        let event = watch.next().await;
        if !matches!(event, Ok(Event::Changed(_))) {
            self.watch = None;
        }
        match event {
            Ok(Event::Changed(lease)) => {
                let Some((time, sent)) = self.api.clock.map(|clock| clock.past()) else {
                    return Ok(Noticed::Unchanged);
                };
                Ok(Noticed::Changed(Box::new(Reading { found: self.found(lease, time), time, sent })))
            }
            Ok(Event::Expired) => Ok(Noticed::Unknown),
            Err(StoreError::Denied(_)) => {
                self.may_not_watch = true;
                Ok(Noticed::Unknown)
            }
            Err(error) => Err(error),
        }
    }

    fn explained(&self, late: StoreError) -> StoreError {
        let Ok(cluster) = self.location.cluster() else { return late };
        match cluster.awaited_plugin() {
            Some(plugin) => {
                let why = format!("{plugin} has not printed credentials yet: raise --connect-timeout");
                late.map_text(|text| format!("{text}: {why}"))
            }
            None => cluster.route.explained(late),
        }
    }

    async fn examine(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        self.examine_cluster(diagnosis).await
    }
}
