//! Whether a server is fit to hold locks: one step after the other over one connection, as a lock would use it.

mod clock;
mod cluster;
mod info;
mod notifications;
mod reachability;
mod rights;
mod scratch;
mod sentinels;

use std::time::Duration;

use redis::{Cmd, Value};

use self::info::{Info, SETTINGS};
pub(super) use self::rights::acl_probe;
use self::rights::{KeyKind, Need, Rights};
use super::answers::text;
use super::connection::{Connection, server_error};
use super::errors::{describe, shortened};
use super::location::{Address, Location};
use super::route::Route;
use super::{RedisStore, stream};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Diagnosis, Finding, p50_and_p99, short};
use crate::clock::{Moment, wall_micros};
use crate::duration::show;
use crate::lock::{LockName, Token};

const PINGS: usize = 100;
/// So many times the server is asked for its time; the quickest answer counts.
const CLOCK_READINGS: usize = 5;
/// The default lease, and at least this many times what a slow answer takes.
const SHORTEST_TTL: Duration = Duration::from_secs(30);
const ANSWERS_A_TTL: u32 = 100;
/// An examination of one server, step by step.
struct Examiner<'a> {
    location: Location,
    address: Address,
    examination: &'a Diagnosis,
    connection: Connection,
    info: Info,
    /// The server said that it refuses what it would do otherwise, and that has been told.
    is_refusing: bool,
}

impl RedisStore {
    /// Examines the server.
    ///
    /// # Errors
    /// A file that was configured cannot be used.
    pub(super) async fn examine_server(&mut self, examination: &Diagnosis) -> Result<(), StoreError> {
        let location = self.location.clone();
        let password = location.password()?;
        // Before the network: nobody is contacted when its files cannot be used.
        let name = scratch::name(location.recipe())?;
        let lock = location.keys(&name).lock;
        let Some(address) = self.examine_way(&location, &lock, examination).await? else { return Ok(()) };
        let session = stream::session(&location, &address)?;
        let is_secret = password.is_some();
        if let Some(finding) = reachability::password_file(&location) {
            examination.found(finding);
        }
        let begun = match reachability::begin(&location, &address, password, session, examination).await {
            Ok(begun) => begun,
            Err(finding) => {
                examination.found(finding);
                return Ok(());
            }
        };
        let (connection, peer) = begun;
        if let Some(finding) = reachability::plain_text(&location, peer, is_secret) {
            examination.found(finding);
        }
        let info = Info::default();
        let mut examiner = Examiner { location, address, examination, connection, info, is_refusing: false };
        if let Err(finding) = examiner.authenticate(is_secret).await {
            examination.found(finding);
            return Ok(());
        }
        // A connection that breaks is told by whoever listens, who knows the step.
        examiner.examine(self, name).await
    }
}

impl RedisStore {
    /// The server to examine; nothing if it cannot be found out, which has been told then.
    async fn examine_way(
        &mut self,
        location: &Location,
        lock: &str,
        examination: &Diagnosis,
    ) -> Result<Option<Address>, StoreError> {
        if let Route::Sentinel(sentinels) = &self.route {
            return sentinels::examine(location, sentinels, examination).await;
        }
        examination.begin("reachability");
        self.server_of(lock).await.map(Some)
    }
}

impl Examiner<'_> {
    fn found(&self, finding: Finding) {
        self.examination.found(finding);
    }

    /// Who whoever is asked here is to the server.
    fn user(&self) -> &str {
        self.location.username().unwrap_or("default")
    }

    async fn ask(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.connection.exchange(&[], command).await.map(|(_, answer)| answer)
    }

    /// The greeting, and what it decides.
    async fn authenticate(&mut self, is_secret: bool) -> Result<(), Finding> {
        self.examination.begin("authentication");
        // What it answers to the PING, even that it is not ready, is a matter of the rights.
        let answer = self.connection.greet(&redis::cmd("PING")).await;
        answer.map_err(|error| match error {
            StoreError::Denied(text) if text.starts_with("TLS: ") => reachability::stranger(text),
            StoreError::Denied(text) => Finding::problem(
                "authentication",
                text,
                "no lock can be taken: dlock run ends with 77",
                "give the right username and password: in the URL, by password_file= or REDISCLI_AUTH; ACL LIST tells the \
                 users",
            ),
            StoreError::Config(text) => Finding::problem(
                "database",
                text,
                "no lock can be taken: dlock run ends with 78",
                "name a database that the server has",
            ),
            StoreError::Unavailable { reason, .. } => Finding::problem(
                "protocol",
                reason,
                "no lock can be taken: dlock run ends with 69",
                "see whether it is a Redis server that listens there, with TLS or without, and what its log says",
            ),
        })?;
        let user = self.user();
        let by = if is_secret { "with a password" } else { "the server wants no password" };
        let database = self.location.database();
        self.found(Finding::ok("authentication", format!("user {user}, {by}; database {database}")));
        Ok(())
    }

    async fn examine(&mut self, store: &mut RedisStore, name: LockName) -> Result<(), StoreError> {
        self.latency().await?;
        let mut refused = rights::Refused::default();
        self.info(&mut refused).await?;
        if self.info.is_sentinel() {
            return Ok(());
        }
        if self.location.is_cluster() && !self.cluster(&mut refused).await? {
            return Ok(());
        }
        self.server(store).await?;
        self.clock().await?;
        let keys = self.location.keys(&name);
        if let Some(finding) = self.location.recipe().finding() {
            self.found(finding);
        }
        let token = Token::random().map_err(|error| StoreError::unreachable(error.to_string()))?;
        let mut rights = Rights::of(&keys, token.reveal());
        rights.refused = refused;
        self.notifications(&keys, &token, &mut rights.refused).await?;
        let can_lock = self.rights(&mut rights).await?;
        if can_lock && !self.is_refusing {
            self.lock(store, name, token, &keys).await?;
        }
        Ok(())
    }

    async fn latency(&mut self) -> Result<(), StoreError> {
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            self.examination.begin("latency");
            let begun = Moment::now();
            self.ask(&redis::cmd("PING")).await?;
            times.push(Moment::now() - begun);
        }
        let (p50, p99) = p50_and_p99(times);
        let found = format!("p50 {}, p99 {} of {PINGS} pings", short(p50), short(p99));
        let ttl = recommended_ttl(p99);
        self.examination.recommend_ttl(ttl);
        self.found(match ttl > SHORTEST_TTL {
            false => Finding::ok("latency", found),
            true => Finding::warning(
                "latency",
                found,
                "with a short ttl a few slow answers are enough for a command to be stopped",
                format!("--ttl {}", show(ttl)),
            ),
        });
        Ok(())
    }

    /// What the server says of itself, and the settings that this user may see.
    async fn info(&mut self, refused: &mut rights::Refused) -> Result<(), StoreError> {
        self.examination.begin("information");
        let answer = self.ask(&redis::cmd("INFO")).await?;
        refused.note(Need::Info, "INFO", KeyKind::None, &answer);
        if let Some(error) = server_error(&answer) {
            if !refused.lacks(Need::Info) {
                self.found(Finding::warning(
                    "information",
                    describe(error),
                    "whether the server evicts keys, persists them, or is a replica cannot be seen",
                    "see why the server does not answer INFO",
                ));
            }
            return Ok(());
        }
        self.info = Info::read(whole_text(&answer).unwrap_or_default());
        for setting in SETTINGS {
            let mut get = redis::cmd("CONFIG");
            get.arg("GET").arg(*setting);
            self.examination.begin("information");
            // Few users may do this, and some servers have no such command.
            if let Some(value) = setting_of(&self.ask(&get).await?) {
                self.info.set(setting, value);
            }
        }
        let by_itself = |finding: &Finding| finding.check != "cluster" || !self.location.is_cluster();
        self.info.findings().into_iter().filter(by_itself).for_each(|finding| self.found(finding));
        if let Some(finding) = self.info.too_few_replicas(self.location.wait_replicas()) {
            self.found(finding);
        }
        Ok(())
    }

    /// Whether a second connection ends at the same server.
    async fn server(&mut self, store: &RedisStore) -> Result<(), StoreError> {
        let Some(ours) = self.info.field("run_id").map(str::to_owned) else { return Ok(()) };
        self.examination.begin("one server");
        let mut other =
            Connection::open(&self.location, &self.address, store.old_protocol || !self.connection.pushes())
                .await?;
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let answer = other.greet(&info).await?;
        let theirs = Info::read(whole_text(&answer).unwrap_or_default());
        match theirs.field("run_id") {
            Some(theirs) if theirs != ours => self.found(Finding::problem(
                "one server",
                "two connections have reached two servers",
                "each of two runs may take the same lock, on another server",
                "name one server: no load balancer, and no name with the addresses of several",
            )),
            _ => self.found(Finding::ok("one server", "two connections have reached the same server")),
        }
        Ok(())
    }

    /// The server's clock beside ours. An answer shows the time about half of its way back.
    async fn clock(&mut self) -> Result<(), StoreError> {
        let mut best: Option<(Duration, i128)> = None;
        for _ in 0..CLOCK_READINGS {
            self.examination.begin("clock");
            let (begun, before) = (Moment::now(), wall_micros());
            let answer = self.ask(&redis::cmd("TIME")).await?;
            let took = Moment::now() - begun;
            let Some(theirs) = clock::time_of(&answer) else { return Ok(()) };
            let ours = i128::from(before) + (took / 2).as_micros() as i128;
            if best.is_none_or(|(shortest, _)| took < shortest) {
                best = Some((took, i128::from(theirs) - ours));
            }
        }
        if let Some((_, offset)) = best {
            self.found(clock::finding(offset));
        }
        Ok(())
    }

    /// Tries each right. Returns whether a lock can be taken and given back.
    async fn rights(&mut self, rights: &mut Rights<'_>) -> Result<bool, StoreError> {
        self.examination.begin("rights");
        let prepared = self.all(&rights.preparations()).await?;
        self.examination.begin("rights");
        let answers = self.all(&rights.commands(&prepared)).await?;
        rights.note_all(&prepared, &answers);
        self.all(&rights.removals()).await?;
        for finding in rights.refused.findings(self.location.prefix(), self.user()) {
            self.found(finding);
        }
        if let Some(state) = &rights.refused.state {
            self.is_refusing = true;
            // That a replica is one has been told.
            if self.info.field("role") != Some("slave") {
                self.found(refusing("writing", state));
            }
        }
        Ok(!rights.refused.lacks(Need::Lock) && !rights.refused.lacks(Need::Line))
    }

    async fn all(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, StoreError> {
        let Some((last, first)) = commands.split_last() else { return Ok(Vec::new()) };
        let (mut answers, answer) = self.connection.exchange(first, last).await?;
        answers.push(answer);
        Ok(answers)
    }
}

/// A server that refuses what it would do in another state.
fn refusing(check: &'static str, text: &str) -> Finding {
    let remedy = match text.split(' ').next() {
        Some("OOM") => "raise maxmemory, or remove what is not needed",
        Some("NOREPLICAS") => "start its replicas, or set min-replicas-to-write lower",
        Some("MISCONF") => "make room on the server's disk, see its log",
        Some("READONLY") => "name the master",
        Some("LOADING") => "wait until it has read its memory back",
        Some("MASTERDOWN") => "see why it has lost its master, or name the master",
        Some("BUSY") => "end the script that holds it up (SCRIPT KILL)",
        Some("CLUSTERDOWN") => "see CLUSTER INFO and CLUSTER NODES",
        Some("TRYAGAIN") => "wait until the slot has moved",
        Some("MOVED" | "ASK") => "use redis-cluster://",
        _ => "see what the server says, and its log",
    };
    let consequence =
        "no lock can be taken as long as this is so: dlock run ends with 69, or keeps trying with --retry";
    Finding::problem(check, format!("the server refuses: {text}"), consequence, remedy)
}

fn recommended_ttl(p99: Duration) -> Duration {
    let seconds = (p99 * ANSWERS_A_TTL).as_secs_f64().ceil();
    SHORTEST_TTL.max(Duration::from_secs(seconds as u64))
}

/// A text however it is sent.
fn whole_text(value: &Value) -> Option<&str> {
    match value {
        Value::VerbatimString { text, .. } => Some(text),
        other => text(Some(other)),
    }
}

/// The value in the answer to `CONFIG GET` of one name.
fn setting_of(answer: &Value) -> Option<String> {
    let value = match answer {
        Value::Map(pairs) => &pairs.first()?.1,
        Value::Array(values) => values.get(1)?,
        _ => return None,
    };
    text(Some(value)).map(shortened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_wants_a_long_lease() {
        for (ms, seconds) in [(0, 30), (300, 30), (301, 31), (2_000, 200)] {
            assert_eq!(recommended_ttl(Duration::from_millis(ms)), Duration::from_secs(seconds));
        }
    }
}
