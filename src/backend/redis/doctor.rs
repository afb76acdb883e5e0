//! `dlock doctor` for one server: checks, one after another over one connection, whether it is fit to hold locks.
//!
//! Called by `RedisStore` for `dlock doctor`. What always holds: it changes only keys of its own scratch lock.

pub(super) mod answers;
pub(super) mod clock;
mod cluster;
pub(super) mod info;
mod notifications;
mod rights;
mod sentinels;

use std::collections::HashMap;
use std::slice::from_ref;

use redis::{Cmd, ServerError, Value, from_redis_value_ref};

use self::answers::{lease_clock, losses, session_of};
use self::clock::Reading;
use self::info::{Info, SETTINGS};
use self::rights::{NO_INFO, OptionalRights, scratch_name};
use super::connection::{Connection, server_error};
use super::errors::{code_and_text, describe, shortened};
use super::location::Location;
use super::rights::user;
use super::route::Route;
use super::store::RedisStore;
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question, no_lock};
use crate::backend::net::reachability::{self, Remedies, Server, Servers};
use crate::backend::net::{Address, Protocol};
use crate::exit::FailureKind;
use crate::lock::{LockName, Token};

const CLOCK_READINGS: usize = 5;

const REMEDIES: Remedies = Remedies {
    protocol: Protocol::Redis,
    port: "check that the name and port are right, that the server runs and listens there (bind), and that no firewall \
           is in between",
    socket: "check that the server runs and has this socket (unixsocket), and that this user may write to it \
             (unixsocketperm, its group)",
    tls: "renew the server's certificate if it has expired, name its authority by ca_file=, or the name in the certificate \
          by server_name=; for a server without TLS use redis://",
    client_certificate: "name a certificate by cert_file= and its key by key_file=, of an authority that the server knows \
                         (tls-ca-cert-file)",
    plain_text: "use rediss://, or a tunnel",
    login: "give the right username and password: in the URL, by password_file= or REDISCLI_AUTH; ACL LIST shows the users",
    unusable: ("database", "select a database that the server has"),
    unavailable: (
        "protocol",
        "check that a Redis server listens there, with or without TLS, and see its log",
    ),
};

/// The checks of one server.
struct Examiner<'a> {
    location: Location,
    address: Address,
    diagnosis: &'a Diagnosis,
    connection: Connection,
    info: Info,
    optional: OptionalRights,
}

impl RedisStore {
    /// Checks the server, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used.
    pub(super) async fn examine_server(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = self.location.clone();
        let password = location.security.credentials.password()?;
        // The configured files are read first: no server is contacted if they cannot be used.
        let name = scratch_name(location.recipe)?;
        let lock = location.keys(&name).lock;
        let address = match &self.route {
            Route::Sentinel(sentinels) => sentinels::examine(&location, sentinels, diagnosis).await?,
            Route::Fixed(_) | Route::Cluster(_) => {
                diagnosis.begin("reachability");
                Some(self.server_of(&lock).await?)
            }
        };
        let Some(address) = address else { return Ok(()) };
        let is_secret = password.is_some();
        let (addresses, security) = (from_ref(&address), &location.security);
        let servers = Servers { addresses, security, remedies: &REMEDIES, fewer: "" };
        // The login goes over a connection that the other checks use as well.
        let open = async |mut server: Server<'_>| server.open().await;
        let Some((_, stream)) = servers.log_in(diagnosis, open).await?.pop() else { return Ok(()) };
        let connection = Connection::begin(&location, &address, password, stream);
        let info = Info::of(&Value::Nil);
        let optional = OptionalRights::default();
        let mut examiner = Examiner { location, address, diagnosis, connection, info, optional };
        if let Err(finding) = examiner.authenticate(is_secret).await {
            diagnosis.found(finding);
            return Ok(());
        }
        if !examiner.location.has_several_servers() {
            diagnosis.found(Finding::one_server());
        }
        // A broken connection is reported by the listener, which knows the current step.
        examiner.examine(self, name).await
    }
}

impl Examiner<'_> {
    fn found(&self, finding: Finding) {
        self.diagnosis.found(finding);
    }

    async fn request(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.connection.request_raw(command).await
    }

    async fn authenticate(&mut self, is_secret: bool) -> Result<(), Finding> {
        self.diagnosis.begin("authentication");
        // An error reply to the PING, even that the server is not ready, is left to the check of the rights.
        let reply = self.request(&redis::cmd("PING")).await;
        reply.map_err(|error| match error {
            StoreError::Denied(text) if self.connection.is_tls_refused() => {
                reachability::client_certificate(text, &REMEDIES)
            }
            StoreError::Config(text) if self.connection.is_tls_refused() => {
                Finding::problem("tls", text, no_lock(FailureKind::Config), "change the scheme of the URL")
            }
            error => REMEDIES.refusal(&error),
        })?;
        let user = user(&self.location);
        let method = if is_secret { "with a password" } else { "no password required" };
        let database = self.location.database;
        self.found(Finding::ok("authentication", format!("user {user}, {method}; database {database}")));
        Ok(())
    }

    async fn examine(&mut self, store: &RedisStore, name: LockName) -> Result<(), StoreError> {
        let diagnosis = self.diagnosis;
        diagnosis
            .measure_latency("pings", async || self.request(&redis::cmd("PING")).await.map(drop))
            .await?;
        self.info().await?;
        if self.info.is_sentinel() {
            return Ok(());
        }
        if self.location.is_cluster() && !self.cluster().await? {
            return Ok(());
        }
        self.server(store).await?;
        self.clock().await?;
        let keys = self.location.keys(&name);
        if let Some(finding) = self.location.recipe.finding() {
            self.found(finding);
        }
        let token = Token::random();
        self.notifications(&keys, &token).await?;
        if self.rights(&keys, &token).await? {
            self.lock(store, &name, &keys).await?;
        }
        Ok(())
    }

    /// Reads `INFO`, and the settings that this user may see.
    async fn info(&mut self) -> Result<(), StoreError> {
        self.diagnosis.begin("information");
        let reply = self.request(&redis::cmd("INFO")).await?;
        let is_missing = self.optional.note("INFO", "", NO_INFO, &reply);
        if let Some(error) = server_error(&reply) {
            if !is_missing {
                self.found(Finding::warning(
                    "information",
                    describe(error),
                    "whether the server evicts keys, persists them, or is a replica is unknown",
                    "check why the server refuses INFO",
                ));
            }
            return Ok(());
        }
        self.info = Info::of(&reply);
        for setting in SETTINGS {
            let get = redis::cmd("CONFIG").arg("GET").arg(*setting).clone();
            self.diagnosis.begin("information");
            // Few users may run CONFIG, and some servers do not have it.
            if let Some(value) = setting_of(&self.request(&get).await?) {
                self.info.set(setting, value);
            }
        }
        let applies = |finding: &Finding| finding.check != "cluster" || !self.location.is_cluster();
        self.info.findings().into_iter().filter(applies).for_each(|finding| self.found(finding));
        if let Some(finding) = self.info.too_few_replicas(self.location.wait_replicas) {
            self.found(finding);
        }
        self.diagnosis.answer(Question::Loss, losses(&self.info));
        Ok(())
    }

    /// Checks that a session stays at one server: a second connection reaches the same server, and each connection has
    /// an identifier of its own that does not change.
    async fn server(&mut self, store: &RedisStore) -> Result<(), StoreError> {
        self.diagnosis.begin("one server");
        // Without arguments it only reports; every user may run it.
        let hello = redis::cmd("HELLO");
        let session = session_of(&self.request(&hello).await?);
        let old_protocol = store.old_protocol || !self.connection.pushes;
        let mut other = Connection::open(&self.location, &self.address, old_protocol).await?;
        let other_session = session_of(&other.request_raw(&hello).await?);
        let info = redis::cmd("INFO").arg("server").clone();
        let other_info = Info::of(&other.request_raw(&info).await?);
        let has_changed = session.is_some() && session_of(&self.request(&hello).await?) != session;
        let runs = self.info.field("run_id").zip(other_info.field("run_id"));
        let problem = if runs.is_some_and(|(run, other)| run != other) {
            "two connections have reached two servers"
        } else if has_changed {
            "two requests of one connection have reached two sessions"
        } else if session.is_some() && session == other_session && runs.is_some() {
            "two connections have reached the same session"
        } else {
            let (answer, found) = match runs {
                Some(_) => ("yes", "two connections have reached the same server"),
                None => ("unknown", "the server does not report its run_id (INFO)"),
            };
            self.diagnosis.answer(Question::OneServer, Answer::new(answer, found));
            if runs.is_some() {
                self.found(Finding::ok("one server", found));
            }
            return Ok(());
        };
        self.diagnosis.answer(Question::OneServer, Answer::new("no", problem));
        self.found(Finding::problem(
            "one server",
            problem,
            "two runs may take the same lock at the same time, or are not notified of their turn",
            "name one server: no load balancer, no proxy that shares connections, and no host name with the addresses of \
             several servers",
        ));
        Ok(())
    }

    /// Compares the server's clock with that of this host; the fastest reply counts.
    async fn clock(&mut self) -> Result<(), StoreError> {
        let mut best: Option<Reading> = None;
        for _ in 0..CLOCK_READINGS {
            self.diagnosis.begin("clock");
            let Some(reading) = clock::read(self.request(&redis::cmd("TIME"))).await? else {
                return Ok(());
            };
            if best.as_ref().is_none_or(|best| reading.took < best.took) {
                best = Some(reading);
            }
        }
        if let Some(best) = best {
            self.found(clock::finding(best.offset));
        }
        self.diagnosis.answer(Question::LeaseClock, Answer::new("server", lease_clock()));
        Ok(())
    }
}

/// Returns the finding for a server that refuses commands because of its state, if the error is about that.
fn refusing(error: &ServerError) -> Option<Finding> {
    let remedy = match code_and_text(error).0 {
        "OOM" => "raise maxmemory, or remove what is not needed",
        "NOREPLICAS" => "start its replicas, or set min-replicas-to-write lower",
        "MISCONF" => "free space on the server's disk, and see its log",
        "READONLY" => "name the master",
        "LOADING" => "wait until the server has loaded its data",
        "MASTERDOWN" => "check why it has lost its master, or name the master",
        "BUSY" => "end the script that blocks it (SCRIPT KILL)",
        "CLUSTERDOWN" => "see CLUSTER INFO and CLUSTER NODES",
        "TRYAGAIN" => "wait until the slot has been migrated",
        "MOVED" | "ASK" => "use redis-cluster://",
        _ => return None,
    };
    let consequence = format!("until this ends, {}", no_lock(FailureKind::Unavailable));
    Some(Finding::problem("writing", format!("the server refuses: {}", describe(error)), consequence, remedy))
}

/// Returns the value in the reply to `CONFIG GET` of one name.
fn setting_of(reply: &Value) -> Option<String> {
    let settings: HashMap<String, String> = from_redis_value_ref(reply).ok()?;
    settings.into_values().next().map(|value| shortened(&value))
}
