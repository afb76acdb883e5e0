//! Redis and Valkey: `SET key token NX PX ttl`, renewal and release by compare, each as one script, so that
//! no step can be half done. Excludes, and is excluded by, every client that locks with a plain string key (redis-py,
//! redsync, node-redlock, ...).
//!
//! What those clients do not know (who holds the lock, the fencing counter) lies in side keys under a reserved prefix.

mod acquiring;
mod answers;
mod asking;
mod certificate;
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
mod route;
mod script;
mod sentinel;
mod stream;
mod tls;

use std::cell::RefCell;
use std::time::Duration;

use redis::Value;

use self::asking::values_of;
use self::connection::{Connection, PushEvent, RequestOptions};
use self::keys::Keys;
use self::location::Address;
pub use self::location::Location;
pub(super) use self::location::{SCHEMES, options};
use self::recipe::Recipe;
pub use self::redlock::RedlockStore;
use self::releasing::{release, text_of};
use self::route::Route;
use self::script::{Operation, Question};
use super::{Attempt, Backend, CLAIM_WITHIN, Change, Hazard, Intent, Release, Renewal, Reply, StoreError};
use crate::lock::{Claim, LockName, Record};

/// The store.
pub struct RedisStore {
    location: Location,
    route: Route,
    connection: Option<Connection>,
    /// One whose greeting failed after a question had been sent with it.
    misrouted: Option<Connection>,
    /// The server has refused RESP3.
    old_protocol: bool,
    /// The server has refused to let us listen on a channel.
    pubsub_denied: bool,
    /// The server has told how it evicts keys, and which rights we lack.
    examined: bool,
    /// A lock is ours, and whoever touches it is not told to us yet.
    untracked: bool,
    /// The server that last said so, where that may change.
    held_on: Option<Address>,
    /// How the server evicts keys, if it does.
    eviction: Option<String>,
    /// How long a fencing counter outlives the last grant, if that is not as always.
    counter_life: Option<Duration>,
    /// Those of the lock that was asked about last.
    keys: RefCell<Option<(LockName, Keys)>>,
}

/// How long a fencing counter outlives the last grant. It is seeded with the server's time, so a counter that has
/// expired does not start anew.
const COUNTER_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);

impl RedisStore {
    /// Names the store; contacts nobody.
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
            counter_life: None,
            keys: RefCell::new(None),
        }
    }

    /// Asks one question, in a cluster the node that has the lock.
    async fn ask(
        &mut self,
        question: &Question<'_>,
        wishes: RequestOptions<'_>,
    ) -> Result<Vec<Value>, StoreError> {
        match self.route {
            Route::Cluster(_) => self.ask_around(question, wishes).await,
            Route::Fixed(_) | Route::Sentinel(_) => values_of(self.ask_here(question, wishes).await?),
        }
    }

    /// The keys of a name. Those in a cluster take some work to find, and mostly the same lock is asked about again.
    fn keys(&self, name: &LockName) -> Keys {
        let mut last = self.keys.borrow_mut();
        match &*last {
            Some((of, keys)) if of == name => keys.clone(),
            _ => last.insert((name.clone(), self.location.keys(name))).1.clone(),
        }
    }

    /// How long a fencing counter outlives the last grant; no time is for ever. What others count on as well, beginning with
    /// one, must not be forgotten.
    fn counter_life(&self) -> Duration {
        let usual = match self.location.recipe() {
            Recipe::Redisson => Duration::ZERO,
            Recipe::Plain | Recipe::PythonRedisLock => COUNTER_LIFE,
        };
        self.counter_life.unwrap_or(usual)
    }

    /// Whether this is because the lock's keys are on their way from one node of a cluster to another.
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
            if self.connection.is_none() || self.route.has_moved() {
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
            let question = Question {
                operation: Operation::Renew,
                keys: &keys,
                token,
                arguments,
                history: &keys.history,
            };
            let answer = match self
                .ask(&question, RequestOptions { tracking: true, ..RequestOptions::default() })
                .await
            {
                Err(error) if self.is_moving(&error) => return self.renew_parts(claim, rest).await,
                answer => answer?,
            };
            self.untracked = false;
            let renewal = answers::renewal(&answer, claim.ttl)?;
            let before = std::mem::replace(&mut self.held_on, self.route.server().cloned());
            let has_moved = before.is_some() && before != self.held_on;
            Ok(if has_moved { renewal.after_fail_over() } else { renewal })
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
            let question = release(&keys, claim, rest, record);
            let release = match self.ask(&question, RequestOptions::default()).await {
                Err(error) if self.is_moving(&error) => self.release_parts(claim, rest, record).await,
                answer => answers::release(&answer?),
            };
            match !self.route.is_confirmed(&self.location).await && self.route.has_moved() {
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
            let question =
                Question { operation: Operation::Record, keys: &keys, token: "", arguments, history };
            self.ask(&question, RequestOptions::default()).await.map(drop)
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
                // To be asked once more, and be told from then on.
                self.untracked = false;
                return Change::Touched;
            }
            if self.learn().await.is_err() {
                return Change::Disconnected;
            }
            let Some(connection) = &mut self.connection else { return std::future::pending().await };
            let word = tokio::select! {
                word = connection.changed() => word,
                () = self.route.leads_elsewhere() => None,
            };
            match word {
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
