//! The item of a lock.
//!
//! | attribute | |
//! |---|---|
//! | `ownerName` | the holder |
//! | `leaseDuration` | its lease in milliseconds, as a text |
//! | `recordVersionNumber` | a UUID that each change replaces; that client keeps it in a release. That of a dlock has a [mark](MARK) |
//! | `isReleased` | there once the lock is released; that client may delete the item instead |
//! | `dlockEnds` | when the lease of a dlock ends, in seconds since 1970 by the store's clock |

use std::time::Duration;

use serde_json::{Value, json};

use crate::backend::ledger::document::digest;
use crate::backend::ledger::document::leased_gate::{Identity, identity_in};
use crate::lock::Holder;
use crate::random;

/// What the versions of dlock begin with, and no UUID does: an item of another format may have the same attributes, as that of
/// `cirello.io/dynamolock`, whose lease is `20s`.
const MARK: &str = "dlock";

/// What was found under the key of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No item.
    Nothing,
    /// Another kind of item.
    Other,
    /// The item of a lock.
    Lock(Item),
}

/// The item of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// The name of the holder.
    pub owner: String,
    /// The lease, from the last change of the version on.
    pub lease: Duration,
    /// Each hold, and each renewal, has another one.
    pub version: String,
    /// Nobody holds the lock.
    pub is_released: bool,
    /// When the lease of a dlock ends.
    pub ends: Option<Duration>,
}

impl Found {
    /// Reads an item as it is in a reply.
    pub fn of(item: Option<&Value>) -> Found {
        match item.filter(|item| item.as_object().is_some_and(|item| !item.is_empty())) {
            None => Found::Nothing,
            Some(item) => Item::parse(item).map_or(Found::Other, Found::Lock),
        }
    }

    /// Returns the version of a lock.
    pub fn version(&self) -> Option<&str> {
        match self {
            Found::Lock(item) => Some(&item.version),
            Found::Nothing | Found::Other => None,
        }
    }

    /// Returns the item if this identity holds the lock.
    pub fn held_by(&self, identity: Identity) -> Option<&Item> {
        match self {
            Found::Lock(item) if !item.is_released && identity_in(&item.owner) == Some(identity) => {
                Some(item)
            }
            _ => None,
        }
    }
}

impl Item {
    /// Reads an item as it is in a reply; `None` if it is another kind of item.
    fn parse(item: &Value) -> Option<Item> {
        let text = |name: &str| item[name]["S"].as_str();
        let owner = text("ownerName")?.to_owned();
        // Another program that takes the lock may leave what it does not know.
        let ends = item["dlockEnds"]["S"].as_str().filter(|_| identity_in(&owner).is_some());
        Some(Item {
            owner,
            lease: Duration::from_millis(text("leaseDuration")?.parse().ok()?),
            version: text("recordVersionNumber")?.to_owned(),
            is_released: !item["isReleased"].is_null(),
            ends: ends.and_then(|ends| ends.parse().ok()).map(Duration::from_secs),
        })
    }

    /// Returns the same hold with another lease.
    pub fn extended(&self, lease: Duration, ends: Duration) -> Item {
        let (lease, ends) = (whole_millis(lease), Some(Duration::from_secs(ends.as_secs())));
        Item { lease, ends, version: new_version(), ..self.clone() }
    }

    /// Returns the same hold as it is when it was released.
    pub fn released(&self) -> Item {
        Item { is_released: true, version: new_version(), ..self.clone() }
    }

    /// Returns an item that nobody has held, and that only those can take who know its version.
    pub fn withdrawn() -> Item {
        let (owner, version) = ("dlock".to_owned(), uuid());
        Item { owner, lease: Duration::ZERO, version, is_released: true, ends: None }
    }

    /// Returns the holder, whose version was seen for this long.
    pub fn holder(&self, seen: Duration) -> Holder {
        Holder {
            remaining: Some(self.lease.saturating_sub(seen)),
            lease: Some(self.lease),
            digest: Some(digest_of(&self.owner)),
            hint: Some(format!("owned by {}", self.owner)),
            ..Holder::default()
        }
    }

    /// Returns the expressions that write the item in the place of another; `None` stands for no item, or one that a dlock has
    /// released, in a table with this key.
    pub fn request(&self, before: Option<&Item>, key: &str) -> Value {
        let text = |text: &str| json!({ "S": text });
        let mut values = json!({
            ":owner": text(&self.owner),
            ":lease": text(&self.lease.as_millis().to_string()),
            ":version": text(&self.version),
        });
        let mut update =
            "SET ownerName = :owner, leaseDuration = :lease, recordVersionNumber = :version".to_owned();
        if let Some(ends) = self.ends {
            // As a number, it could be what a table deletes items by.
            values[":ends"] = text(&ends.as_secs().to_string());
            update += ", dlockEnds = :ends";
        }
        update += if self.is_released { ", isReleased = :one" } else { " REMOVE isReleased" };
        if self.is_released || before.is_none() {
            values[":one"] = text("1");
        }
        let condition = match before {
            None => {
                values[":mark"] = text(MARK);
                "attribute_not_exists(#key) OR (isReleased = :one AND begins_with(recordVersionNumber, :mark))"
            }
            Some(before) => {
                values[":before"] = text(&before.version);
                match before.is_released {
                    true => "recordVersionNumber = :before",
                    false => "recordVersionNumber = :before AND attribute_not_exists(isReleased)",
                }
            }
        };
        let mut request = json!({
            "ConditionExpression": condition,
            "UpdateExpression": update,
            "ExpressionAttributeValues": values,
        });
        if before.is_none() {
            request["ExpressionAttributeNames"] = json!({ "#key": key });
        }
        request
    }
}

fn whole_millis(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

/// Returns a new version, of the length of a UUID.
fn new_version() -> String {
    format!("{MARK}{}", &uuid()[MARK.len()..])
}

fn uuid() -> String {
    let id = random::id();
    [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-")
}

/// Returns what distinguishes the holds of this owner: each instance of that client has a name of its own, unless it is given
/// one.
pub(super) fn digest_of(owner: &str) -> String {
    format!("{:016x}", digest(owner).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_items_of_that_client_are_locks() {
        let lock = json!({
            "key": { "S": "x" },
            "ownerName": { "S": "java" },
            "leaseDuration": { "S": "20000" },
            "recordVersionNumber": { "S": "1-2" },
        });
        let Found::Lock(item) = Found::of(Some(&lock)) else { panic!("a lock") };
        assert_eq!((item.owner.as_str(), item.version.as_str()), ("java", "1-2"));
        assert_eq!((item.lease, item.is_released, item.ends), (Duration::from_secs(20), false, None));
        for (name, value) in [
            ("ownerName", json!(null)),
            ("leaseDuration", json!({ "N": "20000" })),
            ("leaseDuration", json!({ "S": "20s" })),
            ("recordVersionNumber", json!({ "N": "1" })),
        ] {
            let mut other = lock.clone();
            other[name] = value;
            assert_eq!(Found::of(Some(&other)), Found::Other, "{other}");
        }
        assert_eq!(Found::of(Some(&json!({ "ledger": { "S": "{}" } }))), Found::Other);
        assert_eq!([Found::of(None), Found::of(Some(&json!({})))], [Found::Nothing, Found::Nothing]);
    }

    #[test]
    fn another_program_that_takes_the_lock_leaves_no_end() {
        let item = |owner: &str| {
            let item = json!({
                "ownerName": { "S": owner },
                "leaseDuration": { "S": "1" },
                "recordVersionNumber": { "S": "1" },
                "dlockEnds": { "S": "7" },
            });
            Item::parse(&item).expect("a lock").ends
        };
        assert_eq!(item("web-1:7:0123456789abcdef0123456789abcdef"), Some(Duration::from_secs(7)));
        assert_eq!(item("web-1"), None);
    }
}
