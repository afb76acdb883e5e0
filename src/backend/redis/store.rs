//! The store of one Redis: its location, the route to the server that has a lock, and the connection to it.

use std::cell::RefCell;
use std::time::Duration;

use redis::Value;

use super::connection::{CommandReply, Connection, RequestOptions, value_of};
use super::keys::Keys;
use super::location::Location;
use super::recipe::Recipe;
use super::reply::{self, LockReply};
use super::rights::user;
use super::route::Route;
use super::script::{By, Operation, ScriptRequest};
use crate::backend::StoreError;
use crate::backend::net::Address;
use crate::lock::LockName;

/// How long a master that was replaced may take to reply to a claim.
const LAST_REPLY: Duration = Duration::from_millis(500);

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
    /// The last attempt to claim a lock.
    pub(super) attempt: Option<u64>,
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
            attempt: None,
            keys: RefCell::new(None),
        }
    }

    /// Runs a script with one request; in a cluster on the node that has the lock.
    pub(super) async fn request(
        &mut self,
        request: &ScriptRequest<'_>,
        options: RequestOptions<'_>,
    ) -> Result<LockReply, StoreError> {
        // On the heap: without optimization the stack, which may be small, would have a copy of it for each of the futures that
        // it is a part of.
        match self.route {
            Route::Cluster(_) => Box::pin(self.request_in_cluster(request, options)).await,
            Route::Fixed(_) | Route::Sentinel(_) => {
                let reply = Box::pin(self.request_here(request, options)).await?;
                reply::read(&value_of(reply)?)
            }
        }
    }

    /// Sends one request and waits for its reply: one round trip, or two if the server has to be sent the script.
    ///
    /// The connection is put back only after the reply has been read in full. So a dropped future, a time-out or an
    /// error leaves no connection whose next reply might belong to an earlier request.
    pub(super) async fn request_here(
        &mut self,
        request: &ScriptRequest<'_>,
        options: RequestOptions<'_>,
    ) -> Result<CommandReply, StoreError> {
        let run = async |connection: &mut Connection, options: RequestOptions<'_>| {
            connection.run_script(request, options).await
        };
        // A former master may still grant a claim, which has to be known to take it back.
        let grace = match request.operation {
            Operation::Acquire(_) => LAST_REPLY,
            _ => Duration::ZERO,
        };
        let reply = self.with_connection(run, options, grace).await;
        self.examined |= matches!(reply, Ok(CommandReply::Value(Value::BulkString(_))));
        let lacks_key = self.connection.as_ref().is_some_and(|connection| connection.lacks_key);
        reply.map_err(|error| match lacks_key {
            // Servers do not name the key. A script declares only that of the lock.
            true => {
                let (user, prefix) = (user(&self.location), &*self.location.prefix);
                error.map_text(|text| format!("{user} has no access to {prefix}*: {text}"))
            }
            false => error,
        })
    }

    /// Sends a request over the connection, which is put back if it can be used again. Sends it over another connection,
    /// without options, if the server turns out not to support RESP3. A server that is replaced meanwhile has `grace` to
    /// reply.
    pub(super) async fn with_connection<T>(
        &mut self,
        request: impl AsyncFn(&mut Connection, RequestOptions<'_>) -> Result<T, StoreError>,
        options: RequestOptions<'_>,
        grace: Duration,
    ) -> Result<T, StoreError> {
        let mut connection = self.take_connection()?;
        self.route.verify_server(&self.location);
        let mut reply = self.route.unless_replaced(request(&mut connection, options), grace).await;
        if connection.resp2_required {
            self.old_protocol = true;
            // Boxed, because it is rare: the future of each request would have room for it.
            let repeated = async {
                connection = self.route.open(&self.location, true).await?;
                Ok::<_, StoreError>(request(&mut connection, RequestOptions::default()).await)
            };
            reply = Box::pin(repeated).await?;
        }
        self.pubsub_denied |= !connection.can_listen();
        if connection.usable && !self.route.must_reconnect(&reply) {
            self.connection = Some(connection);
        } else if connection.misrouted {
            self.misrouted = Some(connection);
        }
        reply
    }

    /// Takes the connection out, so that it is closed unless it is put back.
    pub(super) fn take_connection(&mut self) -> Result<Connection, StoreError> {
        self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))
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

impl Connection {
    /// Runs a script by its digest, and in a second round trip by its text if the server does not have it cached or
    /// this user may not use digests (no right to EVALSHA). A request that is rejected in this way has changed nothing.
    /// A server that lacks one script probably lacks the others: these are sent by their texts at once. Otherwise a release
    /// whose reply is not awaited would be lost.
    ///
    /// The text is larger than the initial window of TCP, so it costs an additional round trip on a new connection, and
    /// it is larger than what a server accepts from a client that has not authenticated yet. So it is never sent with
    /// the handshake.
    pub(super) async fn run_script(
        &mut self,
        request: &ScriptRequest<'_>,
        options: RequestOptions<'_>,
    ) -> Result<CommandReply, StoreError> {
        let (lock, asking) = (&request.keys.lock, self.asking);
        let digest = request.digest();
        let was_sent = self.sent_as_text.contains(&digest);
        if self.accepts_evalsha && (was_sent || self.sent_as_text.is_empty()) {
            let reply_limit = self.reply_limit.clone();
            match self.request(lock, &request.command(By::Digest, asking), options).await? {
                CommandReply::NoScript => {}
                reply => return Ok(reply),
            }
            // Without it a time-out would leave a claim behind with no release sent after it.
            self.reply_limit = reply_limit;
        }
        if !was_sent {
            self.sent_as_text.push(digest);
        }
        self.request(lock, &request.command(By::Text, asking), options).await
    }
}
