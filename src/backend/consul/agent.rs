//! The requests to an agent, and what its replies say.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::clock::Clock;
use super::gate::{Gate, Pair};
use super::location::{Location, Recipe};
use crate::backend::StoreError;
use crate::backend::ledger::{Ledger, Unreadable};
use crate::backend::net::http::{Client, Method, Reply, request, shown};
use crate::clock::Moment;
use crate::lock::LockName;

/// The header of each reply to a query.
const INDEX: &str = "x-consul-index";
/// What is not encoded in a path and a query.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'/');
/// What Consul says of a session whose node is not registered in its datacenter (`ErrMissingNode` in
/// `agent/consul/state/state_store.go`; hashicorp/consul#6828).
const NO_NODE: &str = "Missing node registration";
/// The longest delay of a lock that Consul accepts.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// A client of the HTTP API.
pub(super) struct Agent {
    pub location: Location,
    http: Client,
    /// The clock, as the last replies have shown it.
    pub clock: Clock,
}

/// The keys of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// What other programs see of it.
    pub gate: Gate,
    /// The ledger, or why it cannot be read; `None` if there is none, ...
    pub ledger: Option<Result<Ledger, Unreadable>>,
    /// ... its length, as it is stored, ...
    pub length: usize,
    /// ... and its index; 0 if there is none.
    pub version: u64,
    /// What a blocking query for the next change names.
    pub index: u64,
}

impl Reading {
    /// Returns the ledger, if there is one that can be read.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()?.as_ref().ok()
    }
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
        Agent::with(location.route.client(), location)
    }

    /// Returns a client with this connection.
    pub fn with(http: Client, location: &Location) -> Agent {
        Agent { location: location.clone(), http, clock: Clock::default() }
    }

    /// Opens the connection, if there is none.
    ///
    /// # Errors
    /// The agent cannot be reached, or the token cannot be read.
    pub async fn connect(&mut self) -> Result<(), StoreError> {
        self.location.route.security.credentials.password()?;
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
        body: String,
    ) -> Result<Reply, StoreError> {
        let mut uri = format!("/v1/{}?{query}", encoded(path));
        for (name, value) in &self.location.parameters {
            uri.push_str(&format!("&{name}={}", encoded(value)));
        }
        let mut request = request(method, &uri, &[], body)?;
        let token = self.location.route.security.credentials.password()?;
        if let Some(token) = token.filter(|token| !token.is_empty()) {
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
        body: String,
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
        let reply = self.ask(Method::GET, &format!("kv/{keys}"), &query, String::new()).await?;
        // An index that is not positive would not block.
        let index = reply.header(INDEX).and_then(|index| index.parse().ok()).unwrap_or(1).max(1);
        let mut pairs = self.listed::<Pair>(&reply).await?;
        let mut reading = Reading { index, ..Reading::default() };
        if let Some(place) = pairs.iter().position(|pair| pair.key == ledger) {
            let pair = pairs.swap_remove(place);
            let text = pair.value().ok_or_else(unexpected)?;
            (reading.length, reading.version) = (text.len(), pair.modify_index);
            reading.ledger = Some(Ledger::parse(&text));
        }
        reading.gate = Gate::read(&self.location, name, &pairs);
        Ok((reading, reply.sent))
    }

    /// Returns the list in a reply to a query, which is empty if there is nothing.
    async fn listed<T: DeserializeOwned>(&self, reply: &Reply) -> Result<Vec<T>, StoreError> {
        let route = &self.location.route;
        match (reply.status.as_u16(), reply.header(INDEX)) {
            // Any web server may reply so.
            (200 | 404, None) => Err(route.mismatch(unexpected()).await),
            (404, _) => {
                route.recognize();
                Ok(Vec::new())
            }
            (200, _) => {
                route.recognize();
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
        let reply = self.ask(Method::GET, &path, "keys&consistent", String::new()).await?;
        let keys: Vec<String> = self.listed(&reply).await?;
        Ok(keys.iter().filter_map(|key| self.location.name_of(key)).collect())
    }

    /// Creates a session that ends when it was not renewed for this long, or for up to twice as long. It does not depend on
    /// the health of its node.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed), or the agent's node is missing in the datacenter that the URL names.
    pub async fn create_session(&mut self, ttl: Duration) -> Result<String, StoreError> {
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
        let reply = self.ask(Method::PUT, "session/create", "", body.to_string()).await?;
        if !reply.status.is_success() {
            return Err(self.no_session(&reply));
        }
        let created: Value = parsed(&reply.body)?;
        let id = created["ID"].as_str().filter(|id| identity(id).is_some());
        id.map(str::to_owned).ok_or_else(unexpected)
    }

    /// Returns the error of a session that is not created. In the agent's own datacenter, which the URL may name as well, its
    /// node is registered soon.
    fn no_session(&self, reply: &Reply) -> StoreError {
        let datacenter = self.location.parameters.iter().find(|(name, _)| *name == "dc");
        match datacenter.filter(|_| String::from_utf8_lossy(&reply.body).contains(NO_NODE)) {
            Some((_, datacenter)) => StoreError::unreachable(format!(
                "the agent's node is not registered in the datacenter {datacenter}; if that is another one than the agent's, name \
                 an agent of it in the URL"
            )),
            None => failure(reply),
        }
    }

    /// Renews a session. Returns false if it has ended.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed).
    pub async fn renew_session(&mut self, session: &str) -> Result<bool, StoreError> {
        let reply = self.ask(Method::PUT, &format!("session/renew/{session}"), "", String::new()).await?;
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
        self.succeed(Method::PUT, &path, "", String::new()).await.map(drop)
    }

    /// Carries out all of these operations, or none. Returns the index of what they have stored last; `None` if they only remove
    /// keys.
    ///
    /// # Errors
    /// As of [`succeed`](Agent::succeed).
    pub async fn transact(
        &mut self,
        operations: &[Value],
    ) -> Result<Result<Option<u64>, Refused>, StoreError> {
        let body = serde_json::to_string(operations).expect("texts and numbers are JSON");
        let reply = self.ask(Method::PUT, "txn", "", body).await?;
        match reply.status.as_u16() {
            200 => {
                let outcome: Value = parsed(&reply.body)?;
                let last = outcome["Results"].as_array().and_then(|results| results.last());
                Ok(Ok(last.and_then(|last| last["KV"]["ModifyIndex"].as_u64())))
            }
            409 => {
                let outcome: Value = parsed(&reply.body)?;
                let faults = outcome["Errors"].as_array().map(Vec::as_slice).unwrap_or_default();
                let place = |fault: &Value| fault["OpIndex"].as_u64()?.try_into().ok();
                let operations: Vec<usize> = faults.iter().filter_map(place).collect();
                if operations.is_empty() {
                    return Err(unexpected());
                }
                Ok(Err(Refused { operations, why: explanation(faults) }))
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
        self.succeed(Method::DELETE, &path, "recurse", String::new()).await.map(drop)
    }
}

/// Returns why parts of a transaction were refused, in Consul's words.
fn explanation(faults: &[Value]) -> String {
    let texts = faults.iter().filter_map(|fault| fault["What"].as_str());
    shown(&texts.collect::<Vec<_>>().join("; "))
}

/// The operation that stores a value if its key still has this index, or does not exist, for index 0.
pub(super) fn storing(key: &str, value: &[u8], index: u64) -> Value {
    json!({"KV": {"Verb": "cas", "Key": key, "Value": STANDARD.encode(value), "Index": index}})
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
pub(super) fn unexpected() -> StoreError {
    StoreError::Config("the server does not reply as Consul does: check the host and the port".into())
}

/// Returns what a reply says.
pub(super) fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(body).map_err(|_| unexpected())
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_of_a_transaction_is_one_short_line() {
        let faults = |what: &str| [json!({"OpIndex": 0, "What": what}), json!({"OpIndex": 1, "What": "b"})];
        assert_eq!(explanation(&faults("a\n\tword")), "a word; b");
        assert_eq!(explanation(&faults(&"x".repeat(1 << 20))).len(), 200);
    }
}
