//! Redis and Valkey: `SET key token NX PX ttl`, and renewal and release that compare the token, each as one script, so
//! that no step can be half done. Interoperates with every client that locks with a plain string key (redis-py,
//! redsync, node-redlock, ...): each excludes the other.
//!
//! What those clients do not know (the holder, the fencing counter) is stored in side keys under a reserved prefix.

mod acquiring;
mod answers;
mod asking;
mod cluster;
mod connection;
mod doctor;
mod errors;
mod inspect;
mod keys;
mod location;
mod recipe;
mod redlock;
mod releasing;
mod replicas;
mod rights;
mod route;
mod script;
mod sentinel;

use std::cell::RefCell;
use std::time::Duration;

use redis::Value;

use self::asking::list_of;
use self::connection::{Connection, PushEvent, RequestOptions};
use self::keys::Keys;
pub use self::location::Location;
use self::recipe::Recipe;
use self::redlock::RedlockStore;
use self::releasing::{release, text_of};
use self::route::Route;
use self::script::{Operation, ScriptRequest};
use super::admin::LockAdmin;
use super::net::Address;
use super::url::UrlError;
use super::{Attempt, Backend, CLAIM_WITHIN, Change, Hazard, Intent, Release, Renewal, Reply, StoreError};
use crate::lock::{Claim, LockName, Mode, Record};

/// The store.
pub struct RedisStore {
    location: Location,
    route: Route,
    connection: Option<Connection>,
    /// The connection whose handshake failed after a request had been sent with it.
    misrouted: Option<Connection>,
    /// The server has rejected RESP3.
    old_protocol: bool,
    /// The server does not let this user subscribe to a channel.
    pubsub_denied: bool,
    /// The server has reported its eviction policy and missing permissions.
    examined: bool,
    /// A lock is held, but the server does not notify us of changes to it yet.
    untracked: bool,
    /// The server that last confirmed the lock, if the server may change.
    held_on: Option<Address>,
    /// The eviction policy of the server, if it evicts keys.
    eviction: Option<String>,
    /// How long a fencing counter outlives the last grant, if not the default.
    counter_ttl: Option<Duration>,
    /// The keys of the lock of the last request.
    keys: RefCell<Option<(LockName, Keys)>>,
}

/// How long a fencing counter outlives the last grant. A counter is seeded with the server's time, so one that has
/// expired does not restart from zero.
const COUNTER_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

impl RedisStore {
    /// Returns the store of a location; does not connect.
    pub fn new(location: Location) -> RedisStore {
        RedisStore {
            route: Route::new(&location),
            location,
            connection: None,
            misrouted: None,
            old_protocol: false,
            pubsub_denied: false,
            examined: false,
            untracked: false,
            held_on: None,
            eviction: None,
            counter_ttl: None,
            keys: RefCell::new(None),
        }
    }

    /// Runs the script with one request; in a cluster on the node that has the lock.
    async fn request(
        &mut self,
        request: &ScriptRequest<'_>,
        options: RequestOptions<'_>,
    ) -> Result<Vec<Value>, StoreError> {
        match self.route {
            Route::Cluster(_) => self.request_in_cluster(request, options).await,
            Route::Fixed(_) | Route::Sentinel(_) => list_of(self.request_here(request, options).await?),
        }
    }

    /// Returns the keys of a lock. In a cluster they take some work to compute, and most requests concern the same
    /// lock.
    fn keys(&self, name: &LockName) -> Keys {
        let mut last = self.keys.borrow_mut();
        match &*last {
            Some((of, keys)) if of == name => keys.clone(),
            _ => last.insert((name.clone(), self.location.keys(name))).1.clone(),
        }
    }

    /// Returns how long a fencing counter outlives the last grant; zero means forever. A counter that other programs
    /// continue, from one, must not expire.
    fn counter_ttl(&self) -> Duration {
        let default = match self.location.recipe() {
            Recipe::Redisson => Duration::ZERO,
            Recipe::Plain | Recipe::PythonRedisLock => COUNTER_TTL,
        };
        self.counter_ttl.unwrap_or(default)
    }

    /// Whether the error is due to the lock's keys being migrated between nodes of a cluster.
    fn is_moving(&self, error: &StoreError) -> bool {
        self.location.is_cluster() && error.is_transient()
    }

    fn is_tracking(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_tracking)
    }
}

impl Backend for RedisStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async {
            if self.connection.is_none() || self.route.is_replaced() {
                self.connection = None;
                self.connection = Some(self.route.open(&self.location, self.old_protocol).await?);
            }
            Ok(())
        })
    }

    fn try_acquire<'a>(
        &'a mut self,
        claim: &'a Claim,
        intent: Intent,
    ) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(self.acquire(claim, intent))
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> Reply<'a, Result<Renewal, StoreError>> {
        Box::pin(async move {
            let keys = self.keys(&claim.name);
            let arguments = vec![claim.ttl.max(rest).as_millis().to_string()];
            let token = claim.token.reveal();
            let request = ScriptRequest {
                operation: Operation::Renew,
                keys: &keys,
                token,
                arguments,
                history: &keys.history,
            };
            let reply = match self
                .request(&request, RequestOptions { tracking: true, ..RequestOptions::default() })
                .await
            {
                Err(error) if claim.mode == Mode::Exclusive && self.is_moving(&error) => {
                    return self.renew_by_key(claim, claim.ttl.max(rest)).await;
                }
                reply => reply?,
            };
            self.untracked = false;
            let renewal = answers::renewal(&reply, claim.ttl)?;
            let last_server = std::mem::replace(&mut self.held_on, self.route.server().cloned());
            let is_replaced = last_server.is_some() && last_server != self.held_on;
            Ok(if is_replaced { renewal.after_fail_over() } else { renewal })
        })
    }

    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        record: Option<&'a Record>,
    ) -> Reply<'a, Result<Release, StoreError>> {
        Box::pin(async move {
            let keys = self.keys(&claim.name);
            let request = release(&keys, claim, rest, record);
            let release = answers::release(&self.request(&request, RequestOptions::default()).await?);
            match !self.route.confirm_server(&self.location).await && self.route.is_replaced() {
                true => Err(route::replaced()),
                false => release,
            }
        })
    }

    fn record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let keys = self.keys(name);
            let arguments = vec![text_of(record)];
            let history = if record.has_held() { &keys.history } else { &keys.missed };
            let request =
                ScriptRequest { operation: Operation::Record, keys: &keys, token: "", arguments, history };
            self.request(&request, RequestOptions::default()).await.map(drop)
        })
    }

    fn hazard(&self) -> Option<Hazard> {
        self.eviction.clone().map(Hazard::Eviction)
    }

    fn fails_over(&self) -> bool {
        self.route.fails_over()
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            if self.untracked {
                // One more renewal enables the notifications.
                self.untracked = false;
                return Change::Touched;
            }
            if self.discover_nodes().await.is_err() {
                return Change::Disconnected;
            }
            let Some(connection) = &mut self.connection else { return std::future::pending().await };
            let event = tokio::select! {
                event = connection.changed() => event,
                () = self.route.wait_until_replaced() => None,
            };
            match event {
                Some(PushEvent::Called) => Change::OurTurn,
                Some(PushEvent::Next) => Change::Soon(CLAIM_WITHIN),
                Some(PushEvent::Look) => Change::Soon(CLAIM_WITHIN * 4),
                Some(PushEvent::Touched) => Change::Touched,
                None => {
                    self.connection = None;
                    Change::Disconnected
                }
            }
        })
    }
}

impl super::Location for Location {
    fn display(&self) -> &str {
        self.display()
    }

    fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        self.check_name(name)
    }

    fn keeps_leases(&self) -> bool {
        true
    }

    fn refuses(&self, mode: Mode) -> Option<&'static str> {
        (self.is_redlock() && matches!(mode, Mode::Slots(_))).then_some(
            "a majority of nodes cannot count slots: of 5 nodes with 2 slots each, 3 holders have a majority; use one \
             server, or --slots 1",
        )
    }

    fn warning(&self) -> Option<String> {
        self.warning()
    }

    fn insecure(&self) -> Option<&'static str> {
        self.security.warning()
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        match self.is_redlock() {
            true => Box::new(RedlockStore::new(self.clone())),
            false => Box::new(RedisStore::new(self.clone())),
        }
    }
}
