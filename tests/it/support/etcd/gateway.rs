//! A client of etcd's gateway for JSON over HTTP, which shares nothing with dlock's own.

use serde_json::{Value, json};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A key as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub name: String,
    pub value: String,
    pub create_revision: u64,
    pub mod_revision: u64,
    /// The id of its lease, 0 without one.
    pub lease: i64,
}

/// Makes each request over a connection of its own.
#[derive(Debug, Clone, Copy)]
pub struct Gateway(SocketAddr);

impl Gateway {
    /// A client of the member with this address.
    pub fn to(address: SocketAddr) -> Self {
        Self(address)
    }

    /// Sends one request.
    ///
    /// # Errors
    /// No connection, no reply within 10 s, or a reply other than 200.
    pub fn try_post(&self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        // Version 1.0, so that the reply is neither chunked nor followed by another.
        let head = format!("POST /v3/{path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
        let reply = self.request(&(head + &body))?;
        match reply.split_once("\r\n\r\n") {
            Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(serde_json::from_str(body)?),
            _ => Err(Error::new(ErrorKind::InvalidData, reply)),
        }
    }

    fn request(&self, text: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.0)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(text.as_bytes())?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        Ok(reply)
    }

    /// Sends one request, which must be accepted.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Value {
        self.try_post(path, body).unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    /// The keys that begin with this text, in the order of their creation.
    #[track_caller]
    pub fn keys(&self, prefix: &str) -> Vec<Key> {
        let first = if prefix.is_empty() { "\0" } else { prefix };
        self.try_range(first, &end_of(prefix)).unwrap_or_else(|error| panic!("{prefix}: {error}"))
    }

    /// The keys from one up to another; an empty end stands for the first one alone.
    pub fn try_range(&self, key: &str, end: &str) -> Result<Vec<Key>> {
        let body = json!({"key": base64(key), "range_end": base64(end), "sort_target": "CREATE", "sort_order": "ASCEND"});
        let reply = self.try_post("kv/range", &body)?;
        Ok(reply["kvs"].as_array().into_iter().flatten().map(Key::from_json).collect())
    }

    /// Stores a value, with this lease unless it is 0. Returns the revision.
    #[track_caller]
    pub fn put(&self, key: &str, value: &str, lease: i64) -> u64 {
        let body = json!({"key": base64(key), "value": base64(value), "lease": lease.to_string()});
        number(&self.post("kv/put", &body)["header"]["revision"])
    }

    /// Deletes a key. Returns whether it existed.
    #[track_caller]
    pub fn delete(&self, key: &str) -> bool {
        self.post("kv/deleterange", &json!({"key": base64(key)}))["deleted"] == "1"
    }

    /// Grants a lease of this many seconds, and returns its id.
    #[track_caller]
    pub fn grant(&self, ttl: u64) -> i64 {
        number(&self.post("lease/grant", &json!({"TTL": ttl}))["ID"])
    }

    /// Revokes a lease, with its keys. Returns whether it existed.
    pub fn revoke(&self, lease: i64) -> bool {
        self.try_post("lease/revoke", &json!({"ID": lease.to_string()})).is_ok()
    }

    /// How many messages of clients the member has received.
    #[track_caller]
    pub fn messages(&self) -> u64 {
        let metrics = self.request("GET /metrics HTTP/1.0\r\n\r\n").expect("metrics");
        let received = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
        received
            .map(|line| {
                line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a number")
            })
            .sum()
    }

    /// The ids of all leases.
    pub fn leases(&self) -> Result<Vec<i64>> {
        let reply = self.try_post("lease/leases", &json!({}))?;
        Ok(reply["leases"].as_array().into_iter().flatten().map(|lease| number(&lease["ID"])).collect())
    }

    /// The time in seconds that is left of a lease; negative if it has ended.
    #[track_caller]
    pub fn time_to_live(&self, lease: i64) -> i64 {
        number(&self.post("lease/timetolive", &json!({"ID": lease.to_string()}))["TTL"])
    }

    /// The revision of the store.
    #[track_caller]
    pub fn revision(&self) -> u64 {
        number(&self.post("kv/range", &json!({"key": base64("k")}))["header"]["revision"])
    }

    /// Makes the store forget what was before its current revision.
    #[track_caller]
    pub fn compact(&self) {
        self.post("kv/compaction", &json!({"revision": self.revision().to_string(), "physical": true}));
    }

    /// Whether this member leads.
    pub fn is_leader(&self) -> Result<bool> {
        let status = self.try_post("maintenance/status", &json!({}))?;
        Ok(status["leader"] == status["header"]["member_id"])
    }

    /// Joins the queue for a lock as `concurrency.Mutex` of etcd's Go client does. Returns the lease, and the key.
    #[track_caller]
    pub fn join(&self, prefix: &str, ttl: u64) -> (i64, String) {
        let lease = self.grant(ttl);
        let own = format!("{prefix}/{lease:x}");
        self.put(&own, "", lease);
        (lease, own)
    }

    /// Locks as `concurrency.Mutex` of etcd's Go client does, if that succeeds at once. Returns the lease of the lock.
    #[track_caller]
    pub fn lock(&self, prefix: &str, ttl: u64) -> Option<i64> {
        let (lease, own) = self.join(prefix, ttl);
        let is_first = self.keys(&format!("{prefix}/")).first().is_some_and(|first| first.name == own);
        if !is_first {
            self.revoke(lease);
        }
        is_first.then_some(lease)
    }

    /// Removes all keys and leases.
    pub fn try_wipe(&self) -> Result<()> {
        for lease in self.leases()? {
            // It may have ended meanwhile.
            let _ = self.try_post("lease/revoke", &json!({"ID": lease.to_string()}));
        }
        let everything = base64("\0");
        self.try_post("kv/deleterange", &json!({"key": everything, "range_end": everything}))?;
        Ok(())
    }
}

impl Key {
    fn from_json(json: &Value) -> Self {
        Self {
            name: text(&json["key"]),
            value: text(&json["value"]),
            create_revision: number(&json["create_revision"]),
            mod_revision: number(&json["mod_revision"]),
            lease: number(&json["lease"]),
        }
    }
}

/// The end of the range of keys that begin with a text.
fn end_of(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    match end.pop() {
        None => "\0".to_owned(),
        Some(last) => {
            end.push(char::from_u32(last as u32 + 1).expect("not the last character"));
            end
        }
    }
}

/// A number as the gateway writes it: a string, and no field at all for 0.
fn number<T: std::str::FromStr + Default>(json: &Value) -> T {
    json.as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(text: &str) -> String {
    let mut encoded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = (0..3).fold(0, |bits, index| bits << 8 | usize::from(*chunk.get(index).unwrap_or(&0)));
        for index in 0..4 {
            let is_padding = index > chunk.len();
            encoded.push(if is_padding { '=' } else { ALPHABET[bits >> (18 - 6 * index) & 63].into() });
        }
    }
    encoded
}

fn text(json: &Value) -> String {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in json.as_str().unwrap_or_default().bytes() {
        let Some(value) = ALPHABET.iter().position(|letter| *letter == digit) else { break };
        bits = bits << 6 | u32::try_from(value).expect("six bits");
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 255) as u8);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
