//! The store of one client.

use std::time::Duration;

use super::client::{Connection, unexpected};
use super::hold::{Hold, Left};
use super::location::Location;
use super::reply::{Item, Line};
use crate::backend::location::Demand;
use crate::backend::{
    Again, Attempt, Backend, Busy, Change, Ending, Hazard, Intent, Location as _, Loss, Outlook, Refusal,
    Release, Renewal, Reply, StoreError,
};
use crate::lock::{Claim, Grant, LockName, Record, Token};

/// How much longer than a lease its item is kept. The server's clock is in whole seconds and advances about once a
/// second, now and then by two: an item lives up to two seconds less than was asked (`clock_handler` in `memcached.c`;
/// 1.4 s less were seen).
const EARLY: Duration = Duration::from_secs(2);
/// A longer time would be taken for a time since 1970.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often a change is tried anew before it is reported as a transient failure.
const MAX_CONFLICTS: usize = 100;

/// A client of a Memcached server.
pub(super) struct MemcachedStore {
    pub location: Location,
    connection: Option<Connection>,
    /// The item that was written last over this connection: CAS values begin again when the server restarts.
    written: Option<Written>,
}

struct Written {
    name: LockName,
    cas: u64,
    hold: Hold,
}

/// The item of a lock, as it was read or written last.
pub(super) struct Known {
    pub cas: u64,
    pub hold: Option<Hold>,
    /// The time in seconds until it expires; 0 if it does not, or if this client alone holds the lock.
    pub remaining: u64,
}

/// What a decision makes of an item, with the reply to the request.
pub(super) enum Step<T> {
    Leave(T),
    Delete(T),
    /// With this lifetime in seconds.
    Store(Hold, u64, T),
}

impl MemcachedStore {
    /// Returns a client of a location; does not connect.
    pub fn new(location: Location) -> MemcachedStore {
        MemcachedStore { location, connection: None, written: None }
    }

    /// Sends requests over the open connection. If this fails, or is dropped halfway, the connection is discarded.
    async fn exchange(&mut self, requests: &str, count: usize) -> Result<Vec<Line>, StoreError> {
        let closed = || StoreError::unanswered("the server closed the connection");
        let mut connection = self.connection.take().ok_or_else(closed)?;
        let replies = connection.exchange(requests.as_bytes(), count).await?;
        self.connection = Some(connection);
        Ok(replies)
    }

    /// Reads the item of a lock.
    pub(super) async fn read(&mut self, key: &str) -> Result<Option<Known>, StoreError> {
        match self.exchange(&get(key), 1).await?.pop() {
            Some(Line::Item(item, _)) => known(&item).map(Some),
            Some(Line::Missing) => Ok(None),
            _ => Err(unexpected()),
        }
    }

    /// Decides on the item of a lock as it is read, and changes it if it is still that. If this client is the only member
    /// of the hold that it wrote last, that is the first to be decided on.
    pub(super) async fn change<T>(
        &mut self,
        name: &LockName,
        token: Option<&Token>,
        decide: impl Fn(Option<Known>) -> Step<T>,
    ) -> Result<T, StoreError> {
        self.connect().await?;
        let key = self.location.key(name);
        let is_own = |last: &Written| last.name == *name && token.is_some_and(|token| last.hold.is_of(token));
        let mut written = self.written.take().filter(is_own);
        for _ in 0..MAX_CONFLICTS {
            let known = match written.take() {
                Some(Written { cas, hold, .. }) => Some(Known { cas, hold: Some(hold), remaining: 0 }),
                None => self.read(&key).await?,
            };
            let cas = known.as_ref().map_or(0, |known| known.cas);
            let (is_done, reply) = match decide(known) {
                Step::Leave(reply) => return Ok(reply),
                Step::Delete(reply) => (self.delete(&key, cas).await?, reply),
                Step::Store(hold, lifetime, reply) => (self.swap(name, cas, hold, lifetime).await?, reply),
            };
            if is_done {
                return Ok(reply);
            }
        }
        Err(disputed(name))
    }

    /// Stores a hold if the item is still that with this CAS value, and returns whether it was.
    async fn swap(
        &mut self,
        name: &LockName,
        cas: u64,
        hold: Hold,
        lifetime: u64,
    ) -> Result<bool, StoreError> {
        let request = set(&self.location.key(name), &format!("C{cas}"), &hold, lifetime);
        match self.exchange(&request, 1).await?.pop() {
            Some(Line::Done(Some(cas))) => {
                self.written = Some(Written { name: name.clone(), cas, hold });
                Ok(true)
            }
            Some(Line::Changed | Line::Missing) => Ok(false),
            _ => Err(unexpected()),
        }
    }

    /// Deletes the item if it is still that with this CAS value, and returns whether it was.
    async fn delete(&mut self, key: &str, cas: u64) -> Result<bool, StoreError> {
        match self.exchange(&format!("md {key} C{cas}\r\n"), 1).await?.pop() {
            Some(Line::Done(_)) => Ok(true),
            Some(Line::Changed | Line::Missing) => Ok(false),
            _ => Err(unexpected()),
        }
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Attempt, StoreError> {
        self.connect().await?;
        let key = self.location.key(&claim.name);
        let lease = claim.ttl.max(claim.min_hold);
        let granted =
            Attempt::Granted(Grant { fencing: None, lease: Some(claim.ttl), slot: None, undated: None });
        for _ in 0..MAX_CONFLICTS {
            let found = match claim.requires_outer_hold {
                true => self.read(&key).await?,
                false => {
                    // The holder is read in the same round trip.
                    let hold = Hold::of(claim);
                    let requests = set(&key, "ME", &hold, lifetime(lease, &hold, 0)) + &get(&key);
                    match self.exchange(&requests, 2).await?.as_slice() {
                        [Line::Done(Some(cas)), _] => {
                            self.written = Some(Written { name: claim.name.clone(), cas: *cas, hold });
                            return Ok(granted);
                        }
                        [Line::NotStored, Line::Item(item, _)] => Some(known(item)?),
                        // It has just expired.
                        [Line::NotStored, Line::Missing] => continue,
                        _ => return Err(unexpected()),
                    }
                }
            };
            match found {
                // The reply to an earlier attempt was lost, or this process runs inside the hold.
                Some(Known { cas, hold: Some(mut hold), remaining })
                    if hold.has(&claim.token) || hold.is_around(claim) =>
                {
                    hold.enter(claim);
                    let lifetime = lifetime(lease, &hold, remaining);
                    if self.swap(&claim.name, cas, hold, lifetime).await? {
                        return Ok(granted);
                    }
                }
                _ if claim.requires_outer_hold => return Ok(Attempt::Refused(Refusal::OuterLost)),
                Some(known) => return Ok(Attempt::Busy(busy(&known))),
                None => {}
            }
        }
        Err(disputed(&claim.name))
    }

    pub(super) fn refused<'a, T: 'a>(&self, demand: Demand) -> Reply<'a, Result<T, StoreError>> {
        let why = self.location.refuses(demand).unwrap_or_default();
        Box::pin(async move { Err(StoreError::Config(why.to_owned())) })
    }
}

fn get(key: &str) -> String {
    format!("mg {key} c t v\r\n")
}

fn set(key: &str, flag: &str, hold: &Hold, lifetime: u64) -> String {
    let value = hold.to_json();
    format!("ms {key} {} {flag} T{lifetime} c\r\n{value}\r\n", value.len())
}

/// Returns the lifetime in seconds of an item that is to last for this long, and no shorter than it does for the others
/// in the hold.
fn lifetime(lease: Duration, hold: &Hold, remaining: u64) -> u64 {
    let own = (lease + EARLY).min(LONGEST).as_millis().div_ceil(1000) as u64;
    if hold.has_others() { own.max(remaining) } else { own }
}

/// Decides on a renewal. A change of the item since is for instance a revocation: the token decides.
fn extend(known: Option<Known>, claim: &Claim, rest: Duration) -> Step<Renewal> {
    let Some(known) = known else { return Step::Leave(Renewal::Lost(Loss::Gone)) };
    let Some(mut hold) = known.hold.filter(|hold| hold.has(&claim.token)) else {
        return Step::Leave(Renewal::Lost(Loss::Taken));
    };
    hold.enter(claim);
    let held = Renewal::Held { lease: Some(claim.ttl), revoked: hold.revoked.clone() };
    let lifetime = lifetime(claim.ttl.max(rest), &hold, known.remaining);
    Step::Store(hold, lifetime, held)
}

/// Decides on a release.
fn give_up(known: Option<Known>, claim: &Claim, rest: Duration) -> Step<Release> {
    let Some(Known { hold: Some(mut hold), remaining, .. }) = known else {
        return Step::Leave(Release::NotHeld);
    };
    if !hold.has(&claim.token) {
        return Step::Leave(Release::NotHeld);
    }
    match hold.leave(&claim.token, rest) {
        Left::Nothing => Step::Delete(Release::Released),
        Left::Others => Step::Store(hold, remaining, Release::Released),
        Left::Rest(left) => {
            let lifetime = lifetime(left, &hold, remaining);
            Step::Store(hold, lifetime, if rest.is_zero() { Release::Released } else { Release::Kept })
        }
    }
}

fn known(item: &Item) -> Result<Known, StoreError> {
    let hold = Hold::parse(&item.value);
    let hold = hold.map_err(|error| StoreError::Config(format!("its item was {error}")))?;
    Ok(Known { cas: item.cas, hold, remaining: item.remaining })
}

fn busy(known: &Known) -> Busy {
    let holders = known.holders(None);
    Busy { holders, more: 0, position: None, promised: false, again: Again::Poll }
}

/// The item is changed too often by others.
fn disputed(name: &LockName) -> StoreError {
    let reason = format!("{name}: too many other clients change the item of this lock at the same time");
    StoreError::Unavailable { reason, maybe_applied: false, outlook: Outlook::Transient }
}

impl Backend for MemcachedStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async {
            if self.connection.is_none() {
                self.written = None;
                self.connection = Some(Connection::open(&self.location).await?);
            }
            Ok(())
        })
    }

    fn try_acquire<'a>(&'a mut self, claim: &'a Claim, _: Intent) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(self.claim(claim))
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> Reply<'a, Result<Renewal, StoreError>> {
        Box::pin(self.change(&claim.name, Some(&claim.token), move |known| extend(known, claim, rest)))
    }

    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        _: Ending<'a>,
    ) -> Reply<'a, Result<Release, StoreError>> {
        Box::pin(self.change(&claim.name, Some(&claim.token), move |known| give_up(known, claim, rest)))
    }

    fn record<'a>(&'a mut self, _: &'a LockName, _: &'a Record) -> Reply<'a, Result<(), StoreError>> {
        self.refused(Demand::History)
    }

    fn hazard(&self) -> Option<Hazard> {
        Some(Hazard::Forgetful)
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            let Some(connection) = &mut self.connection else { return std::future::pending().await };
            connection.ended().await;
            self.connection = None;
            Change::Disconnected
        })
    }
}
