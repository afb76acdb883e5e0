//! The store of one Redis: its location, the route to the server that has a lock, and the connection to it.

use std::cell::RefCell;
use std::time::Duration;

use super::connection::{Connection, RequestOptions, value_of};
use super::keys::Keys;
use super::location::Location;
use super::recipe::Recipe;
use super::reply::{self, LockReply};
use super::route::Route;
use super::script::ScriptRequest;
use crate::backend::StoreError;
use crate::backend::net::Address;
use crate::lock::LockName;

pub struct RedisStore {
    pub(super) location: Location,
    pub(super) route: Route,
    pub(super) connection: Option<Connection>,
    /// The connection whose handshake failed after a request had been sent with it.
    pub(super) misrouted: Option<Connection>,
    /// The server has rejected RESP3.
    pub(super) old_protocol: bool,
    /// The server does not let this user subscribe to a channel.
    pub(super) pubsub_denied: bool,
    /// The server has reported its eviction policy and missing permissions.
    pub(super) examined: bool,
    /// A lock is held, but the server does not notify us of changes to it yet.
    pub(super) untracked: bool,
    /// The server that last confirmed the lock, if the server may change.
    pub(super) held_on: Option<Address>,
    /// The eviction policy of the server, if it evicts keys.
    pub(super) eviction: Option<String>,
    /// How long a fencing counter outlives the last grant, if not the default.
    pub(super) counter_ttl: Option<Duration>,
    /// The keys of the lock of the last request.
    keys: RefCell<Option<(LockName, Keys)>>,
}

/// How long a fencing counter outlives the last grant. A counter is seeded with the server's time, so one that has
/// expired does not restart from zero.
pub(super) const COUNTER_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

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
    pub(super) async fn request(
        &mut self,
        request: &ScriptRequest<'_>,
        options: RequestOptions<'_>,
    ) -> Result<LockReply, StoreError> {
        match self.route {
            Route::Cluster(_) => self.request_in_cluster(request, options).await,
            Route::Fixed(_) | Route::Sentinel(_) => {
                reply::read(&value_of(self.request_here(request, options).await?)?)
            }
        }
    }

    /// Returns the keys of a lock. In a cluster they take some work to compute, and most requests concern the same
    /// lock.
    pub(super) fn keys(&self, name: &LockName) -> Keys {
        let mut last = self.keys.borrow_mut();
        match &*last {
            Some((of, keys)) if of == name => keys.clone(),
            _ => last.insert((name.clone(), self.location.keys(name))).1.clone(),
        }
    }

    /// Returns how long a fencing counter outlives the last grant; zero means forever. A counter that other programs
    /// continue, from one, must not expire.
    pub(super) fn counter_ttl(&self) -> Duration {
        let default = match self.location.recipe {
            Recipe::Redisson => Duration::ZERO,
            Recipe::Plain | Recipe::PythonRedisLock => COUNTER_TTL,
        };
        self.counter_ttl.unwrap_or(default)
    }

    pub(super) fn is_tracking(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_tracking)
    }
}
