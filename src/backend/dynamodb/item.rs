//! What an item has besides its key: attributes in the JSON of DynamoDB.
//!
//! | attribute | |
//! |---|---|
//! | `ledger` | the ledger |
//! | `version` | the number of the attempt that has written the item |
//! | `idle` | the format of the ledger, if it has no entries |
//! | `idle_since` | the second since 1970, with zeros in front, in which `idle` was written |
//! | `taken` | the holder that has taken the idle lock since, and when |

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::location::Recipe;
use crate::backend::ledger::dated::Found;
use crate::backend::ledger::document::Shortcut;
use crate::backend::ledger::polling::CLOCK_LAG;
use crate::backend::ledger::{HolderEntry, Ledger, Now, Unreadable};

/// Whoever takes an idle lock does not know its ledger: it follows from this.
#[derive(Serialize, Deserialize)]
struct Taken {
    /// Its times count from `clock`.
    holder: HolderEntry,
    clock: Duration,
    wall: u64,
}

/// How an item is to be changed.
pub(super) enum Change<'a> {
    /// It gets this ledger if it has this version; `None` stands for no item. It may be idle from this time on.
    Swap { version: Option<&'a str>, ledger: &'a Ledger, idle_since: Option<Duration> },
    /// This holder has it if it is idle, or if there is no item. If it became idle later than this request was made, the request
    /// was held up on its way, and its client has perhaps given up.
    Take(&'a HolderEntry, Now),
}

/// Reads an item as it is in a reply.
pub(super) fn found(item: Option<&Value>) -> Found<String> {
    let Some(item) = item.filter(|item| item.as_object().is_some_and(|item| !item.is_empty())) else {
        return Found::nothing();
    };
    let text = |name: &str| item[name]["S"].as_str();
    let (ledger, taken) = (text("ledger"), text("taken"));
    let version = text("version").filter(|_| ledger.or(taken).is_some()).map(str::to_owned);
    let length = ledger.map_or(0, str::len);
    let read = || {
        version.as_ref().ok_or(Unreadable::Damaged)?;
        let mut ledger = ledger.map_or(Ok(Ledger::default()), |ledger| Ledger::parse(ledger.as_bytes()))?;
        if let Some(taken) = taken {
            let Taken { holder, clock, wall } =
                serde_json::from_str(taken).map_err(|_| Unreadable::Damaged)?;
            Shortcut::TakeIfIdle(Box::new(holder)).apply(&mut ledger, Now { clock, wall });
        }
        Ok(ledger)
    };
    let ledger = read().map_err(|why: Unreadable| why.to_string());
    Found { attempt: version.clone(), version, ledger, length }
}

impl Change<'_> {
    /// Returns the parts of an `UpdateItem` by this attempt, for a table with this key. With the locks of AWS's lock client for
    /// Java, the item is one more released lock to that client, whose lists of all locks fail at any other item.
    pub fn request(&self, recipe: Recipe, key: &str, attempt: &str) -> Value {
        let text = |text: &str| json!({ "S": text });
        // A TTL attribute is a number: no attribute here is one.
        let seconds = |time: Duration| text(&format!("{:012}", time.as_secs()));
        let idle = text(&Ledger::FORMAT.to_string());
        let mut values = json!({ ":version": text(attempt) });
        let mut names =
            json!({ "#version": "version", "#taken": "taken", "#idle": "idle", "#since": "idle_since" });
        let mut set = vec!["#version = :version"];
        if recipe == Recipe::LockClient {
            set.push("ownerName = :owner, leaseDuration = :zero, recordVersionNumber = :version, isReleased = :one");
            for (name, value) in [(":owner", "dlock"), (":zero", "0"), (":one", "1")] {
                values[name] = text(value);
            }
        }
        names["#ledger"] = "ledger".into();
        let (condition, removed) = match self {
            Change::Swap { version, ledger, idle_since } => {
                set.push("#ledger = :ledger");
                values[":ledger"] = text(&String::from_utf8_lossy(&ledger.to_json()));
                let condition = match version {
                    Some(version) => {
                        values[":expected"] = text(version);
                        "#version = :expected"
                    }
                    None => {
                        names["#key"] = key.into();
                        "attribute_not_exists(#key)"
                    }
                };
                match *idle_since {
                    Some(since) => {
                        set.push("#idle = :idle, #since = :since");
                        (values[":idle"], values[":since"]) = (idle, seconds(since));
                        (condition, "#taken")
                    }
                    None => (condition, "#taken, #idle, #since"),
                }
            }
            Change::Take(holder, now) => {
                let later = |span: Option<Duration>| span.map(|span| span + CLOCK_LAG);
                let holder = HolderEntry {
                    kept_until: later(holder.kept_until),
                    lease_ends: later(holder.lease_ends),
                    ..(*holder).clone()
                };
                let taken = Taken { holder, clock: now.clock, wall: now.wall };
                set.push("#taken = :taken");
                values[":taken"] = text(&serde_json::to_string(&taken).expect("texts and numbers are JSON"));
                (values[":idle"], values[":now"]) = (idle, seconds(now.clock + CLOCK_LAG));
                names["#key"] = key.into();
                let condition = "attribute_not_exists(#key) OR (#idle = :idle AND attribute_exists(#ledger) \
                                 AND (attribute_not_exists(#since) OR #since <= :now))";
                (condition, "#idle")
            }
        };
        json!({
            "ConditionExpression": condition,
            "UpdateExpression": format!("SET {} REMOVE {removed}", set.join(", ")),
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A holder whose times are longer than any.
    fn endless() -> String {
        let endless = Some(Duration::MAX);
        let mut holder = Ledger::of_foreign_holder(0).holders.remove(0);
        (holder.kept_until, holder.lease_ends) = (endless, endless);
        let taken = Taken { holder, clock: Duration::from_secs(1), wall: 1 };
        serde_json::to_string(&taken).expect("JSON")
    }

    #[test]
    fn an_item_that_dlock_has_not_written_is_foreign() {
        for (item, is_lock) in [
            (json!({ "version": { "S": "1" }, "taken": { "S": endless() } }), true),
            (
                json!({ "version": { "S": "1" }, "ledger": { "S": "{\"format\":1,\"fencing_token\":1}" } }),
                true,
            ),
            (json!({ "version": { "S": "1" }, "ledger": { "S": "{\"format\":9}" } }), false),
            (json!({ "version": { "S": "1" }, "taken": { "S": "{}" } }), false),
            (json!({ "version": { "S": "1" } }), false),
            (json!({ "ledger": { "S": "{\"format\":1,\"fencing_token\":1}" } }), false),
            (json!({ "key": { "S": "x" }, "ownerName": { "S": "java" } }), false),
        ] {
            assert_eq!(found(Some(&item)).ledger.is_ok(), is_lock, "{item}");
        }
        for nothing in [None, Some(&json!({}))] {
            let Found { version, ledger, .. } = found(nothing);
            assert_eq!((version, ledger), (None, Ok(Ledger::default())));
        }
    }
}
