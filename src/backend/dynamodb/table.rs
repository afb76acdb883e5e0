//! The requests to a table, and what its replies say.

use std::time::Duration;

use serde_json::{Value, json};

use super::item::{Change, found};
use super::location::Location;
use crate::backend::ledger::dated::{Reading, Written, check_count};
use crate::backend::ledger::polling::Shown;
use crate::backend::net::aws::{Place, Signed, expired, lacks_right, skewed, throttled};
use crate::backend::net::http::{Client, Method, Reply, request, shown};
use crate::backend::{Outlook, StoreError};
use crate::clock::wall_micros;
use crate::lock::LockName;

/// A key that was refused for one of these reasons may have been replaced at its source.
const REPLACED: [&str; 3] = ["ExpiredTokenException", "UnrecognizedClientException", "InvalidClientTokenId"];
/// A signature is refused if the clocks differ by more: AWS says five minutes.
const TOLERATED: Duration = Duration::from_secs(4 * 60);
const CONDITION: &str = "ConditionalCheckFailedException";
const NO_TABLE: &str = "ResourceNotFoundException";

/// A client of a table.
pub(super) struct Table {
    /// Where it is.
    pub location: Location,
    /// Its requests.
    pub client: Signed,
    /// The attribute that is its partition key, once that is known.
    key: Option<String>,
    /// What the store's clock has shown last.
    pub clock: Option<Shown>,
}

/// What `UpdateItem` has made of an item.
pub(super) struct Updated {
    /// The condition held, so that the item is changed.
    pub is_met: bool,
    /// The item as it is then, if the store says so.
    pub item: Option<Value>,
    /// The reply.
    pub reply: Reply,
}

/// What the store makes of a request.
pub(super) enum Answer {
    /// The reply.
    Done(Value, Reply),
    /// The error that it has named, with its details.
    Refused(String, Value, Reply),
}

impl Table {
    /// Returns a client with this connection.
    pub fn with(http: Client, location: &Location) -> Table {
        let client = Signed::with(http, &location.place, "dynamodb");
        Table { location: location.clone(), client, key: None, clock: None }
    }

    /// Returns a client with the same credentials and a connection of its own.
    pub fn twin(&self) -> Table {
        let (location, client) = (self.location.clone(), self.client.twin());
        Table { location, client, key: self.key.clone(), clock: self.clock }
    }

    /// Opens the connection, if there is none, finds the credentials, and reads the description of the table, once.
    ///
    /// # Errors
    /// The store cannot be reached, or there are no credentials, or the table is not fit for locks.
    pub async fn open(&mut self) -> Result<(), StoreError> {
        if self.key.is_some() {
            return self.client.connect().await;
        }
        let table = self.describe().await?;
        let table = table.ok_or_else(|| self.missing())?;
        self.use_as(&table)
    }

    /// Returns the description of the table; `None` if there is no such table.
    ///
    /// # Errors
    /// The store cannot be reached, or refuses.
    pub async fn describe(&mut self) -> Result<Option<Value>, StoreError> {
        let body = json!({ "TableName": self.location.place.name });
        let description = match self.ask("DescribeTable", &body).await? {
            Answer::Done(value, _) if value["Table"].is_object() => Some(value["Table"].clone()),
            Answer::Refused(error, ..) if error == NO_TABLE => None,
            other => return Err(self.failure("DescribeTable", other).await),
        };
        self.location.place.route.recognize();
        Ok(description)
    }

    /// Returns the error for a table that does not exist.
    fn missing(&self) -> StoreError {
        let Place { name: table, region, .. } = &self.location.place;
        StoreError::Config(format!(
            "there is no table {table} in {region}: create it with dlock doctor --init, or check its name, region= and endpoint="
        ))
    }

    /// Checks the description of the table, and notes its key.
    ///
    /// # Errors
    /// The table is not fit for locks, or not at the moment.
    pub fn use_as(&mut self, description: &Value) -> Result<(), StoreError> {
        let Location { place: Place { name: table, region, .. }, names_region, .. } = &self.location;
        let unfit =
            |why: String| Err(StoreError::Config(format!("the table {table} cannot hold locks: {why}")));
        match description["TableStatus"].as_str() {
            Some("CREATING") => {
                let reason = format!("the table {table} is being created");
                let outlook = Outlook::Transient;
                return Err(StoreError::Unavailable { reason, maybe_applied: false, outlook });
            }
            Some("ACTIVE" | "UPDATING") => {}
            status => return unfit(format!("its status is {}", shown(status.unwrap_or("unknown")))),
        }
        let list = |name: &str| description[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let [key] = list("KeySchema") else { return unfit("it has a sort key".to_owned()) };
        let key = key["AttributeName"].as_str().unwrap_or_default().to_owned();
        let is_text =
            |attribute: &Value| attribute["AttributeName"] == *key && attribute["AttributeType"] == "S";
        if !list("AttributeDefinitions").iter().any(is_text) {
            return unfit(format!("its partition key {} is not a string", shown(&key)));
        }
        if ["ledger", "version", "idle", "idle_since", "taken"].contains(&key.as_str()) {
            return unfit(format!("its partition key {key} has the name of an attribute of dlock"));
        }
        if !list("Replicas").is_empty() && description["MultiRegionConsistency"] != "STRONG" && !names_region
        {
            return unfit(format!(
                "it is a global table that replicates asynchronously, so that a lock could be held once in each region; if all \
                 programs use one region, say which: region={region}"
            ));
        }
        self.key = Some(key);
        Ok(())
    }

    /// Returns the name of the partition key.
    ///
    /// # Errors
    /// As of [`open`](Table::open).
    pub async fn attribute(&mut self) -> Result<String, StoreError> {
        if self.key.is_none() {
            self.open().await?;
        }
        Ok(self.key.clone().unwrap_or_default())
    }

    /// Reads the attributes of an item; `None` if there is none.
    ///
    /// # Errors
    /// The store cannot be reached, refuses, or does not reply as DynamoDB does.
    pub async fn get(&mut self, key: &str) -> Result<(Option<Value>, Reply), StoreError> {
        let attribute = self.attribute().await?;
        let body = json!({
            "TableName": self.location.place.name,
            "Key": { attribute: { "S": key } },
            "ConsistentRead": true,
        });
        match self.ask("GetItem", &body).await? {
            Answer::Done(mut value, reply) => Ok((value.get_mut("Item").map(Value::take), reply)),
            refused => Err(self.failure("GetItem", refused).await),
        }
    }

    /// Changes an item, if it is as the change expects.
    ///
    /// # Errors
    /// The store cannot be reached or does not reply, so that the item may be written; or it refuses.
    pub async fn change(
        &mut self,
        key: &str,
        change: &Change<'_>,
        attempt: &str,
    ) -> Result<Written<String>, StoreError> {
        let request = change.request(self.location.recipe, &self.attribute().await?, attempt);
        let Updated { is_met, item, reply } = self.update(key, request).await?;
        let reading = |item: &Value| reading(Some(item), &reply);
        match is_met {
            true => Ok(Written::Stored(found(item.as_ref()))),
            false => Ok(Written::Refused(item.as_ref().map(reading).transpose()?)),
        }
    }

    /// Changes an item by these expressions.
    ///
    /// # Errors
    /// As of [`change`](Table::change).
    pub async fn update(&mut self, key: &str, mut request: Value) -> Result<Updated, StoreError> {
        let attribute = self.attribute().await?;
        request["TableName"] = self.location.place.name.as_str().into();
        request["Key"] = json!({ attribute: { "S": key } });
        request["ReturnValues"] = "ALL_NEW".into();
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD".into();
        let (is_met, item, reply) = match self.ask("UpdateItem", &request).await? {
            Answer::Done(mut value, reply) => (true, value.get_mut("Attributes").map(Value::take), reply),
            Answer::Refused(error, mut value, reply) if error == CONDITION => {
                (false, value.get_mut("Item").map(Value::take), reply)
            }
            refused => return Err(self.failure("UpdateItem", refused).await),
        };
        Ok(Updated { is_met, item, reply })
    }

    /// Visits the names and the items of all locks.
    ///
    /// # Errors
    /// As of [`get`](Table::get), or there are too many.
    pub async fn scan(&mut self, mut visit: impl FnMut(LockName, &Value)) -> Result<(), StoreError> {
        let attribute = self.attribute().await?;
        let mut body = json!({ "TableName": self.location.place.name, "ConsistentRead": true });
        let mut count = 0;
        loop {
            let mut page = self.call("Scan", &body).await?;
            for item in page["Items"].as_array().into_iter().flatten() {
                let name = item[&attribute]["S"].as_str().and_then(|key| self.location.name_of(key));
                // An item without a ledger is not one that dlock could have written.
                if let Some(name) = name.filter(|_| !item["version"].is_null()) {
                    count += 1;
                    visit(name, item);
                }
            }
            check_count(count)?;
            match page["LastEvaluatedKey"].take() {
                Value::Null => return Ok(()),
                last if last == body["ExclusiveStartKey"] => return Ok(()),
                last => body["ExclusiveStartKey"] = last,
            }
        }
    }

    /// Sends a request whose refusal is an error, and returns the reply.
    ///
    /// # Errors
    /// As of [`get`](Table::get).
    pub async fn call(&mut self, action: &'static str, body: &Value) -> Result<Value, StoreError> {
        match self.ask(action, body).await? {
            Answer::Done(value, _) => Ok(value),
            refused => Err(self.failure(action, refused).await),
        }
    }

    /// Sends a signed request, and returns the answer.
    ///
    /// # Errors
    /// The store cannot be reached or does not reply, or there are no credentials.
    pub async fn ask(&mut self, action: &'static str, body: &Value) -> Result<Answer, StoreError> {
        let target = format!("DynamoDB_20120810.{action}");
        let headers = [("x-amz-target", target.as_str()), ("content-type", "application/x-amz-json-1.0")];
        let request = request(Method::POST, "/", &headers, body.to_string())?;
        let is_of_key = |reply: &Reply| {
            let is_refused = !reply.status.is_success();
            is_refused && REPLACED.contains(&error_in(&content(reply)))
        };
        let reply = self.client.send(request, is_of_key).await?;
        let value = content(&reply);
        let is_done = reply.status.is_success() && value.is_object();
        // Whatever stands before the service replies with other errors, too.
        if let Some(date) = reply.date().filter(|_| is_done || !error_in(&value).is_empty()) {
            self.clock = Some(Shown { date, sent: reply.sent, received: reply.received });
        }
        match is_done {
            true => Ok(Answer::Done(value, reply)),
            false => Ok(Answer::Refused(error_in(&value).to_owned(), value, reply)),
        }
    }

    /// Returns the error that a refusal of this action means.
    pub async fn failure(&self, action: &str, answer: Answer) -> StoreError {
        let Place { name: table, route, .. } = &self.location.place;
        let (error, value, reply) = match answer {
            Answer::Refused(error, value, reply) => (error, value, reply),
            Answer::Done(_, reply) => (String::new(), Value::Null, reply),
        };
        let said = value["message"].as_str().or(value["Message"].as_str()).map(shown).unwrap_or_default();
        let is_skewed = || {
            let now = Duration::from_micros(wall_micros());
            reply.date().is_some_and(|date| date.abs_diff(now) > TOLERATED)
        };
        match error.as_str() {
            NO_TABLE => self.missing(),
            "InvalidSignatureException" | "RequestExpired" if is_skewed() => skewed(&reply),
            "AccessDeniedException" => lacks_right(&format!("dynamodb:{action} on the table {table}"), &said),
            "ExpiredTokenException" => expired(&error, &said),
            "InvalidSignatureException"
            | "UnrecognizedClientException"
            | "InvalidClientTokenId"
            | "MissingAuthenticationTokenException"
            | "IncompleteSignatureException" => {
                StoreError::Denied(format!("the store replies {error}: {said}"))
            }
            // Two regions have written it at the same time, or a change of the table is under way.
            "ReplicatedWriteConflictException" | "ResourceInUseException" => {
                let reason = format!("the store replies {error}: {said}");
                StoreError::Unavailable { reason, maybe_applied: true, outlook: Outlook::Transient }
            }
            "" if reply.status.is_success() || reply.status.as_u16() == 404 => {
                // Any web server may reply so.
                let text = "the server does not reply as DynamoDB does: check endpoint=";
                route.mismatch(StoreError::Config(text.into())).await
            }
            "" => reply.failure(),
            error => throttled(error, &said)
                .unwrap_or_else(|| reply.failure_saying(format!("{}: {said}", shown(error)))),
        }
    }
}

fn content(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.body).unwrap_or_default()
}

/// Returns the error that a refusal names; empty if it names none.
fn error_in(content: &Value) -> &str {
    content["__type"].as_str().and_then(|error| error.rsplit('#').next()).unwrap_or_default()
}

/// Returns the item in a reply.
pub(super) fn reading(item: Option<&Value>, reply: &Reply) -> Result<Reading<String>, StoreError> {
    Ok(Reading { found: found(item), time: reply.server_time()?, sent: reply.sent })
}
