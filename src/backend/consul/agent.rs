//! The requests to an agent, and what its replies say.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::clock::Clock;
use super::gate::{Gate, Pair};
use super::location::{Location, Recipe};
use crate::backend::StoreError;
use crate::backend::net::Protocol;
use crate::backend::net::http::{Client, Method, Reply, request};
use crate::clock::Moment;
use crate::lock::LockName;

/// The header of each reply to a query.
const INDEX: &str = "x-consul-index";
/// What is not encoded in a path and a query.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'/');
/// The longest delay of a lock that Consul accepts.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// A client of the HTTP API.
pub(super) struct Agent {
    location: Location,
    http: Client,
    clock: Clock,
}

/// The keys of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// What other programs see of it.
    pub gate: Gate,
    /// The ledger as it is stored; empty if there is none, ...
    pub ledger: Vec<u8>,
    /// ... and its index; 0 if there is none.
    pub version: u64,
    /// What a blocking query for the next change names.
    pub index: u64,
}

/// Which part of a transaction was refused, and why. Nothing of it was carried out.
#[derive(Debug)]
pub(super) struct Refused {
    /// The indices of these operations.
    pub operations: Vec<usize>,
    /// In Consul's words.
    pub why: String,
}

impl Agent {
    /// Returns a client; does not connect.
    pub fn new(location: &Location) -> Agent {
        Agent::with(location.client(), location)
    }

    /// Returns a client with this connection.
    pub fn with(http: Client, location: &Location) -> Agent {
        Agent { location: location.clone(), http, clock: Clock::default() }
    }

    /// Returns the clock, as the last replies have shown it.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Opens the connection, if there is none.
    ///
    /// # Errors
    /// The agent cannot be reached, or the token cannot be read.
    pub async fn connect(&mut self) -> Result<(), StoreError> {
        self.location.security.credentials.password()?;
        self.http.connect().await
    }

    /// Sends a request, and returns the reply, of whatever status.
    ///
    /// # Errors
    /// The agent cannot be reached or does not reply, or the token cannot be read.
    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        query: &str,
        body: Vec<u8>,
    ) -> Result<Reply, StoreError> {
        let mut uri = format!("/v1/{}?{query}", encoded(path));
        for (name, value) in &self.location.parameters {
            uri.push_str(&format!("&{name}={}", encoded(value)));
        }
        let mut request = request(method, &uri, &[], body)?;
        if let Some(token) = self.location.security.credentials.password()?.filter(|token| !token.is_empty())
        {
            let unusable = |_| StoreError::Config("the token has a character that no header can have".into());
            let mut token = HeaderValue::try_from(token).map_err(unusable)?;
            token.set_sensitive(true);
            request.headers_mut().insert("x-consul-token", token);
        }
        let reply = self.http.send(request).await?;
        self.clock.note(&reply);
        Ok(reply)
    }

    /// Sends a request, and returns its reply if it has succeeded.
    ///
    /// # Errors
    /// As of [`ask`](Agent::ask), or the agent has refused the request.
    pub async fn succeed(
        &mut self,
        method: Method,
        path: &str,
        query: &str,
        body: Vec<u8>,
    ) -> Result<Reply, StoreError> {
        let reply = self.ask(method, path, query, body).await?;
        if reply.status.is_success() { Ok(reply) } else { Err(failure(&reply)) }
    }

    /// Reads the keys of a lock: at once, or when they have changed since this index.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed).
    pub async fn read(
        &mut self,
        name: &LockName,
        change: Option<(u64, Duration)>,
    ) -> Result<(Reading, Moment), StoreError> {
        let (keys, ledger) = (self.location.common_key(name), self.location.ledger_key(name));
        let blocking = change.map(|(index, wait)| format!("&index={index}&wait={}s", wait.as_secs()));
        let query = format!("recurse&consistent{}", blocking.unwrap_or_default());
        let reply = self.ask(Method::GET, &format!("kv/{keys}"), &query, Vec::new()).await?;
        // An index that is not positive would not block.
        let index = reply.header(INDEX).and_then(|index| index.parse().ok()).unwrap_or(1).max(1);
        let mut pairs = self.listed::<Pair>(&reply).await?;
        let mut reading = Reading { index, ..Reading::default() };
        if let Some(place) = pairs.iter().position(|pair| pair.key == ledger) {
            let pair = pairs.swap_remove(place);
            reading.ledger = pair.value().ok_or_else(unexpected)?;
            reading.version = pair.modify_index;
        }
        reading.gate = Gate::read(&self.location, name, &pairs);
        Ok((reading, reply.sent))
    }

    /// Returns the list in a reply to a query, which is empty if there is nothing.
    async fn listed<T: DeserializeOwned>(&self, reply: &Reply) -> Result<Vec<T>, StoreError> {
        let (agent, security) = (&self.location.agent, &self.location.security);
        match (reply.status.as_u16(), reply.header(INDEX)) {
            // Any web server may reply so.
            (200 | 404, None) => Err(match &self.location.proxy {
                None => Protocol::Http.mismatch(agent).await.unwrap_or_else(unexpected),
                Some(_) => unexpected(),
            }),
            (404, _) => {
                security.recognize(agent);
                Ok(Vec::new())
            }
            (200, _) => {
                security.recognize(agent);
                parsed(&reply.body)
            }
            _ => Err(failure(reply)),
        }
    }

    /// Returns the names of all locks that have a ledger.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed).
    pub async fn names(&mut self) -> Result<Vec<LockName>, StoreError> {
        let path = format!("kv/{}", self.location.prefix);
        let reply = self.ask(Method::GET, &path, "keys&consistent", Vec::new()).await?;
        let keys: Vec<String> = self.listed(&reply).await?;
        Ok(keys.iter().filter_map(|key| self.location.name_of(key)).collect())
    }

    /// Creates a session that ends when it was not renewed for this long, or for up to twice as long. It does not depend on
    /// the health of its node.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed).
    pub async fn create_session(&mut self, ttl: Duration) -> Result<String, StoreError> {
        #[derive(Deserialize)]
        struct Created {
            #[serde(rename = "ID")]
            id: String,
        }
        let body = json!({
            "Name": "dlock",
            "TTL": format!("{}ms", ttl.as_millis()),
            "LockDelay": format!("{}ms", lock_delay(ttl).as_millis()),
            "Behavior": match self.location.recipe {
                Recipe::Lock => "release",
                Recipe::Semaphore => "delete",
            },
            "NodeChecks": [],
        });
        let reply = self.succeed(Method::PUT, "session/create", "", body.to_string().into_bytes()).await?;
        let Created { id } = parsed(&reply.body)?;
        if identity(&id).is_some() { Ok(id) } else { Err(unexpected()) }
    }

    /// Renews a session. Returns false if it has ended.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed).
    pub async fn renew_session(&mut self, session: &str) -> Result<bool, StoreError> {
        let reply = self.ask(Method::PUT, &format!("session/renew/{session}"), "", Vec::new()).await?;
        match reply.status.as_u16() {
            200 => Ok(true),
            404 if String::from_utf8_lossy(&reply.body).contains(session) => Ok(false),
            // Of a proxy that finds no agent.
            404 => Err(StoreError::unanswered("the server replies 404 to the renewal of a session")),
            _ => Err(failure(&reply)),
        }
    }

    /// Ends a session.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed).
    pub async fn destroy_session(&mut self, session: &str) -> Result<(), StoreError> {
        let path = format!("session/destroy/{session}");
        self.succeed(Method::PUT, &path, "", Vec::new()).await.map(drop)
    }

    /// Carries out all of these operations, or none. Returns the index that what they have stored has then.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed).
    pub async fn transact(&mut self, operations: &[Value]) -> Result<Result<u64, Refused>, StoreError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Outcome {
            #[serde(default)]
            results: Option<Vec<Applied>>,
            #[serde(default)]
            errors: Option<Vec<Fault>>,
        }
        #[derive(Deserialize)]
        struct Applied {
            #[serde(rename = "KV")]
            pair: Stored,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Stored {
            modify_index: u64,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Fault {
            op_index: usize,
            what: String,
        }
        let body = serde_json::to_vec(operations).expect("texts and numbers are JSON");
        let reply = self.ask(Method::PUT, "txn", "", body).await?;
        match reply.status.as_u16() {
            200 => {
                let outcome: Outcome = parsed(&reply.body)?;
                let applied = outcome.results.unwrap_or_default();
                let stored = operations.iter().filter(|operation| has_result(operation)).count();
                let index = applied.last().map_or(0, |applied| applied.pair.modify_index);
                if applied.len() == stored { Ok(Ok(index)) } else { Err(unexpected()) }
            }
            409 => {
                let outcome: Outcome = parsed(&reply.body)?;
                let faults = outcome.errors.filter(|faults| !faults.is_empty()).ok_or_else(unexpected)?;
                let why = faults.iter().map(|fault| fault.what.as_str()).collect::<Vec<_>>().join("; ");
                let operations = faults.iter().map(|fault| fault.op_index).collect();
                Ok(Err(Refused { operations, why: crate::secret::scrubbed(&why).into_owned() }))
            }
            413 => Err(StoreError::Config(
                "the record of the lock is longer than a value in Consul may be (kv_max_value_size, txn_max_req_len)"
                    .into(),
            )),
            _ => Err(failure(&reply)),
        }
    }

    /// Removes the keys of a lock.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed).
    pub async fn forget(&mut self, name: &LockName) -> Result<(), StoreError> {
        let path = format!("kv/{}", self.location.lock_key(name));
        self.succeed(Method::DELETE, &path, "recurse", Vec::new()).await.map(drop)
    }
}

/// The operation that stores a value if its key still has this index, or does not exist, for index 0.
pub(super) fn storing(key: &str, value: &[u8], index: u64) -> Value {
    json!({"KV": {"Verb": "cas", "Key": key, "Value": STANDARD.encode(value), "Index": index}})
}

fn verb(operation: &Value) -> &str {
    operation["KV"]["Verb"].as_str().unwrap_or_default()
}

/// Returns whether an operation locks a key, or unlocks it.
pub(super) fn is_locking(operation: &Value) -> bool {
    ["lock", "unlock"].contains(&verb(operation))
}

/// Returns whether an operation checks that a key is as it was read.
pub(super) fn is_check(operation: &Value) -> bool {
    verb(operation).starts_with("check-")
}

/// Returns whether an operation is none of those that have no result.
fn has_result(operation: &Value) -> bool {
    !verb(operation).starts_with("delete") && verb(operation) != "check-not-exists"
}

/// Returns how long Consul refuses a lock to everybody after its session has ended without an unlock: long enough for the command
/// of a holder that cannot be notified to be dead. The session may have been renewed just before it ended.
pub(super) fn lock_delay(ttl: Duration) -> Duration {
    ttl.min(LONGEST_DELAY)
}

/// Returns a session as the ledger records it; `None` if it cannot be one.
pub(super) fn identity(session: &str) -> Option<(u64, u64)> {
    let digits: String = session.chars().filter(|character| *character != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| session.len() == 36)?;
    Some(((number >> 64) as u64, number as u64))
}

/// Returns the error of a request that was refused.
fn failure(reply: &Reply) -> StoreError {
    match reply.failure() {
        StoreError::Denied(text) => {
            StoreError::Denied(format!("{text} (see dlock doctor --policy for the rights of the token)"))
        }
        error => error,
    }
}

/// The error for a reply that Consul does not send.
fn unexpected() -> StoreError {
    StoreError::Config("the server does not reply as Consul does: check the host and the port".into())
}

/// Returns what a reply says.
pub(super) fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(body).map_err(|_| unexpected())
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}
