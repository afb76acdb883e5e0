//! AWS's lock client for Java (<https://github.com/awslabs/amazon-dynamodb-lock-client>), as far as it talks to DynamoDB.

use super::dynamodb::Dynamo;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One client, as an application makes it: its name is unique. It has one lock at a time.
#[derive(Debug)]
pub struct JavaLockClient {
    owner: String,
    lease: Duration,
    /// The record version number of the lock that it holds.
    version: String,
}

/// How a lock is released: by default, its item is deleted (`withDeleteLockOnRelease`).
#[derive(Clone, Copy, Debug)]
pub enum Release {
    Delete,
    Keep,
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

fn text(text: &str) -> Value {
    json!({"S": text})
}

/// A record version number of an item.
pub fn version_of(item: &Value) -> String {
    item["recordVersionNumber"]["S"].as_str().unwrap_or_default().to_owned()
}

impl JavaLockClient {
    /// A client whose locks have this lease.
    pub fn new(lease: Duration) -> Self {
        let owner = format!("java-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Self { owner, lease, version: String::new() }
    }

    /// Its name.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    fn new_version() -> String {
        format!("00000000-0000-4000-8000-{:012x}", NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    /// `acquireLock` at its first look: takes a lock that is free.
    pub fn take(&mut self, server: &Dynamo, key: &str) -> bool {
        let before = server.item(key);
        if before.is_null() {
            self.put(server, key, "attribute_not_exists(#pk)", json!({}))
        } else if before["isReleased"].is_null() {
            false
        } else {
            let condition = "attribute_exists(#pk) AND #ir = :ir";
            self.put(server, key, condition, json!({"#ir": ["isReleased", ":ir", "1"]}))
        }
    }

    /// `acquireLock` at a later look: takes a lock over that has had this version for as long as its lease.
    pub fn take_over(&mut self, server: &Dynamo, key: &str, version: &str) -> bool {
        let condition = "attribute_exists(#pk) AND #rvn = :rvn";
        self.put(server, key, condition, json!({"#rvn": ["recordVersionNumber", ":rvn", version]}))
    }

    /// `PutItem`; the attributes of the condition with their names and values.
    fn put(&mut self, server: &Dynamo, key: &str, condition: &str, attributes: Value) -> bool {
        let partition = server.attribute();
        let version = Self::new_version();
        let mut body = json!({
            "Item": {
                partition.as_str(): text(key),
                "ownerName": text(&self.owner),
                "leaseDuration": text(&self.lease.as_millis().to_string()),
                "recordVersionNumber": text(&version),
            },
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {"#pk": partition},
        });
        for (name, attribute) in attributes.as_object().expect("attributes") {
            body["ExpressionAttributeNames"][name] = attribute[0].clone();
            let value = attribute[1].as_str().expect("the name of a value");
            body["ExpressionAttributeValues"][value] = json!({"S": attribute[2]});
        }
        let is_taken = is_done(&server.ask("PutItem", body));
        if is_taken {
            self.version = version;
        }
        is_taken
    }

    /// A request about the lock that it holds.
    fn own(&self, server: &Dynamo, key: &str) -> Value {
        let partition = server.attribute();
        json!({
            "Key": {partition.as_str(): text(key)},
            "ConditionExpression": "attribute_exists(#pk) AND #rvn = :rvn AND #on = :on",
            "ExpressionAttributeNames": {"#pk": partition, "#rvn": "recordVersionNumber", "#on": "ownerName"},
            "ExpressionAttributeValues": {":rvn": text(&self.version), ":on": text(&self.owner)},
        })
    }

    /// `sendHeartbeat`. False when the lock is not its any more.
    pub fn heartbeat(&mut self, server: &Dynamo, key: &str) -> bool {
        let version = Self::new_version();
        let mut body = self.own(server, key);
        body["UpdateExpression"] = "SET #ld = :ld, #rvn = :newRvn".into();
        body["ExpressionAttributeNames"]["#ld"] = "leaseDuration".into();
        body["ExpressionAttributeValues"][":ld"] = text(&self.lease.as_millis().to_string());
        body["ExpressionAttributeValues"][":newRvn"] = text(&version);
        let is_kept = is_done(&server.ask("UpdateItem", body));
        if is_kept {
            self.version = version;
        }
        is_kept
    }

    /// `releaseLock`. False when the lock is not its any more.
    pub fn release(&mut self, server: &Dynamo, key: &str, how: Release) -> bool {
        let mut body = self.own(server, key);
        is_done(&match how {
            Release::Delete => server.ask("DeleteItem", body),
            Release::Keep => {
                body["UpdateExpression"] = "SET #ir = :ir".into();
                body["ExpressionAttributeNames"]["#ir"] = "isReleased".into();
                body["ExpressionAttributeValues"][":ir"] = text("1");
                server.ask("UpdateItem", body)
            }
        })
    }

    /// Whether it has the lock, and nobody has touched it.
    pub fn has(&self, server: &Dynamo, key: &str) -> bool {
        let item = server.item(key);
        item["isReleased"].is_null()
            && item["ownerName"] == text(&self.owner)
            && version_of(&item) == self.version
    }
}

fn is_done(reply: &Value) -> bool {
    let error = reply["__type"].as_str().unwrap_or_default();
    assert!(error.is_empty() || error.ends_with("ConditionalCheckFailedException"), "{reply}");
    error.is_empty()
}
