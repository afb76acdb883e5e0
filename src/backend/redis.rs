//! Redis and Valkey: `SET key token NX PX ttl`, renewal and release by compare, each as one script, so that
//! no step can be half done. Excludes, and is excluded by, every client that locks with a plain string key (redis-py,
//! redsync, node-redlock, ...).
//!
//! What those clients do not know (who holds the lock, the fencing counter) lies in side keys under a reserved prefix.

mod answers;
mod certificate;
mod cluster;
mod connection;
mod errors;
mod examining;
mod keys;
mod location;
mod looking;
mod recipe;
mod redlock;
mod replicas;
mod route;
mod script;
mod sentinel;
mod stream;
mod tls;

use std::cell::RefCell;
use std::time::Duration;

use redis::Value;

use self::connection::{Answer, Asking, Connection, Wishes, Word};
use self::examining::beforehand;
use self::keys::Keys;
use self::location::Address;
pub use self::location::Location;
pub(super) use self::location::{SCHEMES, options};
use self::recipe::Recipe;
pub use self::redlock::RedlockStore;
use self::route::Route;
use self::script::{By, Operation, Question};
use super::{
    Again, Attempt, Backend, Busy, CLAIM_WITHIN, Change, Hazard, Intent, Release, Renewal, Reply, StoreError,
};
use crate::lock::{Claim, LockName, Mode, Record};

/// The store.
pub struct RedisStore {
    location: Location,
    route: Route,
    connection: Option<Connection>,
    /// One whose greeting failed after a question had been sent with it.
    spoiled: Option<Connection>,
    /// The server has refused RESP3.
    old_protocol: bool,
    /// The server has refused to let us listen on a channel.
    deaf: bool,
    /// The server has the script.
    known: bool,
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
            spoiled: None,
            old_protocol: false,
            deaf: false,
            known: false,
            untracked: false,
            held_on: None,
            eviction: None,
            counter_life: None,
            keys: RefCell::new(None),
        }
    }

    /// Asks one question, in a cluster the node that has the lock.
    async fn ask(&mut self, question: &Question<'_>, wishes: Wishes<'_>) -> Result<Vec<Value>, StoreError> {
        match self.route {
            Route::Cluster(_) => self.ask_around(question, wishes).await,
            Route::Fixed(_) | Route::Sentinel(_) => values_of(self.ask_here(question, wishes).await?),
        }
    }

    /// Asks one question in one flight; in two when the server has forgotten the script (`SCRIPT FLUSH`, a fail-over).
    /// The connection is put back only when the answer has come in full, so that a dropped future, a time-out or a fault
    /// leaves none whose next answer might belong to an earlier question.
    async fn ask_here(&mut self, question: &Question<'_>, wishes: Wishes<'_>) -> Result<Answer, StoreError> {
        let mut connection =
            self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))?;
        let lock = &question.keys.lock;
        let by = if self.known { By::Digest } else { By::Text };
        self.route.doubt(&self.location);
        let asking = connection.asking();
        let question_of = |by| question.command(by, asking);
        let mut answer = self.route.beside(connection.ask(lock, &question_of(by), wishes)).await;
        if connection.is_outdated() {
            self.old_protocol = true;
            connection = self.route.open(&self.location, true).await?;
            answer = connection.ask(lock, &question_of(By::Text), Wishes::default()).await;
        }
        if matches!(answer, Ok(Answer::NoScript)) {
            answer = connection.ask(lock, &question_of(By::Text), wishes).await;
        }
        self.deaf |= !connection.can_listen();
        if connection.is_usable() && !self.route.leaves(&answer) {
            self.connection = Some(connection);
        } else if connection.is_spoiled() {
            self.spoiled = Some(connection);
        }
        self.known |= matches!(answer, Ok(Answer::Value(Value::Array(_))));
        answer.map_err(|error| beforehand::named(error, &self.location))
    }

    /// Takes a lock back that was granted to the wrong user or in the wrong database.
    async fn undo(&mut self, claim: &Claim) {
        if let Some(connection) = self.spoiled.take() {
            // A refusal here means that the claim was refused too.
            let _ = self.take_back(connection, claim).await;
        }
    }

    /// Takes a lock back over the connection that it was granted over, whoever is the one to ask by now.
    async fn take_back(&self, mut connection: Connection, claim: &Claim) -> Result<(), StoreError> {
        let keys = self.keys(&claim.name);
        let release = release(&keys, claim, Duration::ZERO, None).command(By::Text, Asking::No);
        connection.ask(&keys.lock, &release, Wishes::default()).await.map(drop)
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
        self.location.is_cluster() && error.passes()
    }

    fn is_tracking(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_tracking)
    }

    /// One question for the lock.
    async fn acquire_once(
        &mut self,
        claim: &Claim,
        intent: Intent,
        tracking: bool,
    ) -> Result<Attempt, StoreError> {
        let as_node = AsNode { ticket: String::new(), id: "", mends: false };
        let answer = match self.ask_for(claim, intent, tracking, as_node).await {
            Err(error) if self.is_moving(&error) => {
                return self.find_held(claim).await?.map(Attempt::Busy).ok_or(error);
            }
            answer => answers::attempt(&answer?, self.location.recipe())?,
        };
        if let Attempt::Granted(_) = answer {
            self.await_replicas(claim).await?;
        }
        Ok(answer)
    }

    /// One question for the lock, and the answer as it is; asked again as one who does not hear if that is found out.
    async fn ask_for(
        &mut self,
        claim: &Claim,
        intent: Intent,
        tracking: bool,
        as_node: AsNode<'_>,
    ) -> Result<Vec<Value>, StoreError> {
        let keys = self.keys(&claim.name);
        let identity = serde_json::to_string(&claim.identity)
            .map_err(|error| StoreError::Config(format!("cannot describe the holder: {error}")))?;
        let (mode, slots) = match claim.mode {
            Mode::Exclusive => ("x", 1),
            Mode::Shared => ("s", 1),
            Mode::Slots(slots) => ("c", slots),
        };
        let waits = intent == Intent::WaitInLine;
        let hears = waits && !self.deaf;
        let manner = match (as_node.mends, waits) {
            (true, _) => "mend",
            (false, true) => "wait",
            (false, false) => "now",
        };
        let mut arguments = vec![
            claim.ttl.max(claim.min_hold).as_millis().to_string(),
            identity,
            self.counter_life().as_millis().to_string(),
            mode.to_owned(),
            slots.to_string(),
            manner.to_owned(),
            match (hears, self.location.has_several_servers()) {
                (false, _) => "0",
                (true, false) => "1",
                (true, true) => "2",
            }
            .to_owned(),
            place_life(claim).as_millis().to_string(),
            u8::from(claim.inside).to_string(),
            match (self.known, self.location.has_identity()) {
                (true, _) => "0".to_owned(),
                (false, false) => "1".to_owned(),
                (false, true) => beforehand::trials(),
            },
            as_node.ticket.clone(),
            as_node.id.to_owned(),
        ];
        arguments.extend(claim.outer.iter().map(|token| token.reveal().to_owned()));
        let token = claim.token.reveal();
        let question =
            Question { operation: Operation::Acquire, keys: &keys, token, arguments, history: &keys.history };
        let channel = format!("{}{}", keys.channels, claim.token.reveal());
        let wait = self.wait_for_replicas(claim);
        let wishes = Wishes { tracking, channel: hears.then_some(&channel), behind: wait.as_ref() };
        let answer = self.ask(&question, wishes).await;
        self.undo(claim).await;
        let answer = answer?;
        if let Some(missing) = beforehand::missing(&answer, &keys, &self.location) {
            return Err(missing);
        }
        let of_lock = answers::of_lock(&answer);
        self.eviction = self.eviction.take().or(answers::eviction(of_lock));
        if hears && self.deaf && answers::number(of_lock.first()) == Some(0) {
            // Whoever frees the lock must not think that nobody is there because nobody hears.
            return Box::pin(self.ask_for(claim, intent, tracking, as_node)).await;
        }
        Ok(answer)
    }

    /// When to ask again, as far as this connection can hear.
    fn ask_again(&self, busy: Busy, claim: &Claim) -> Busy {
        let Again::Within(within) = busy.again else { return busy };
        let first = busy.position == Some(1);
        let foreign = busy.holders.iter().any(|holder| holder.identity.is_none());
        // Only the server itself can tell what a foreign client does.
        let told = !foreign || !first || self.is_tracking();
        let again = match (busy.position, told && !self.deaf) {
            (Some(_), false) => Again::Poll,
            _ => Again::Within(within.min(claim.ttl)),
        };
        Busy { again, ..busy }
    }
}

/// What a node of a Redlock is asked besides.
struct AsNode<'a> {
    /// The number in the line that the nodes have agreed on, or of the hold that is mended; empty if there is none.
    ticket: String,
    /// Who it is from now on if it does not know that yet; empty for a server that is no node.
    id: &'a str,
    /// It has forgotten a hold that is ours.
    mends: bool,
}

/// How long a place in the line lives without word from its owner, who asks every ttl.
fn place_life(claim: &Claim) -> Duration {
    claim.ttl + claim.ttl / 2
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

    /// One flight; two for one that finds itself at the head of the line, who from then on hears of everybody that
    /// touches the lock. The others must not, or each change would be told to all of them.
    fn try_acquire<'a>(
        &'a mut self,
        claim: &'a Claim,
        intent: Intent,
    ) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(async move {
            let mut tracking = intent == Intent::TakeNow || self.is_tracking();
            loop {
                match self.acquire_once(claim, intent, tracking).await? {
                    Attempt::Busy(busy) if busy.position == Some(1) && !tracking && !self.deaf => {
                        tracking = true
                    }
                    Attempt::Busy(busy) => {
                        return Ok(Attempt::Busy(self.ask_again(busy, claim)));
                    }
                    Attempt::Granted(_) if !self.route.is_confirmed(&self.location).await => {
                        // By a master that may be none any more. Which one is it now?
                        if let Some(connection) = self.connection.take() {
                            let _ = self.take_back(connection, claim).await;
                        }
                        self.connect().await?;
                    }
                    Attempt::Granted(grant) => {
                        self.untracked = !tracking && !self.deaf;
                        self.held_on = self.route.server().cloned();
                        return Ok(Attempt::Granted(grant));
                    }
                    refused => return Ok(refused),
                }
            }
        })
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
            let answer = match self.ask(&question, Wishes { tracking: true, ..Wishes::default() }).await {
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
            let release = match self.ask(&question, Wishes::default()).await {
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
            self.ask(&question, Wishes::default()).await.map(drop)
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
                Some(Word::Called) => Change::OurTurn,
                Some(Word::Next) => Change::Soon(CLAIM_WITHIN),
                Some(Word::Look) => Change::Soon(CLAIM_WITHIN * 4),
                Some(Word::Touched) => Change::Touched,
                None => {
                    self.connection = None;
                    Change::Disconnected
                }
            }
        })
    }
}

fn release<'a>(keys: &'a Keys, claim: &'a Claim, rest: Duration, record: Option<&Record>) -> Question<'a> {
    let arguments = vec![rest.as_millis().to_string(), record.map(text_of).unwrap_or_default()];
    Question {
        operation: Operation::Release,
        keys,
        token: claim.token.reveal(),
        arguments,
        history: &keys.history,
    }
}

/// A record as it is stored; nothing if it could not be written as JSON, which no record is known to be.
fn text_of(record: &Record) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

/// The answer to a question, which is a list.
///
/// # Errors
/// It is not.
fn values_of(answer: Answer) -> Result<Vec<Value>, StoreError> {
    match answer {
        Answer::Value(Value::Array(values)) => Ok(values),
        Answer::Value(other) => {
            Err(StoreError::unanswered(format!("the server answered a script with {}", kind_of(&other))))
        }
        Answer::NoScript => Err(StoreError::unanswered("the server does not take the script")),
        Answer::Elsewhere(_) => Err(StoreError::unanswered("the server names another one")),
        Answer::Between(text) => Err(StoreError::between(text)),
    }
}

/// What a reply is, without quoting a server that may be anything.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a text",
        _ => "something else",
    }
}
