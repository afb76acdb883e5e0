//! Administration of the locks of a server: listing, inspecting, history, revoking and removing holds.

mod view;

use redis::{Cmd, Value};

use self::view::{View, record};
use super::connection::{CommandReply, Connection, RequestOptions, list_of, value_of};
use super::keys::INDEX;
use super::recipe::Recipe;
use super::reply::{count, nonsense, number, other_format, text};
use super::script::{By, LOOK, Operation, ScriptRequest};
use super::store::RedisStore;
use crate::backend::admin::{Inspection, LockAdmin, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::{Backend, Reply, StoreError};
use crate::lock::{FencingToken, Holder, LockName, NotedRecord, Revocation, Token, Unknown};

/// The number of locks inspected by one run of the script, during which the server executes nothing else. In a cluster
/// each run is for one lock, which determines the node.
const LOCKS_A_STEP: usize = 32;
/// The number of script runs requested in one round trip of a server, and of a cluster.
const STEPS_A_FLIGHT: usize = 16;
const STEPS_A_FLIGHT_OF_CLUSTER: usize = 64;
/// The number of indexes of a cluster that are read at a time.
const INDEXES_A_FLIGHT: usize = 64;
/// The approximate number of index entries read per request.
const ENTRIES_A_PAGE: usize = 400;

impl RedisStore {
    /// Sends each request, about one key, to the server that has the key. A single request is sent over the connection
    /// that is used for notifications, with these options.
    ///
    /// # Errors
    /// A server cannot be queried, or rejects the request.
    pub(super) async fn request_each(
        &mut self,
        requests: &[(String, Cmd)],
        options: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let lock = match requests {
            [(key, _)] => key,
            _ => "",
        };
        if self.location.is_cluster() {
            return self.request_each_in_cluster(requests, lock, options).await;
        }
        let commands: Vec<Cmd> = requests.iter().map(|(_, command)| command.clone()).collect();
        let request = async |connection: &mut Connection, options: RequestOptions<'_>| {
            connection.request_all(lock, &commands, options).await
        };
        self.with_connection(request, options).await
    }

    /// Sends one request about one key.
    pub(super) async fn request_one(&mut self, key: &str, command: Cmd) -> Result<Value, StoreError> {
        let replies = self.request_each(&[(key.to_owned(), command)], RequestOptions::default()).await;
        value_of(replies?.pop().ok_or_else(nonsense)?)
    }

    /// Returns the names in the index or, in a cluster, in the indexes of all slots.
    async fn index(&mut self) -> Result<Vec<LockName>, StoreError> {
        let indexes = match self.location.is_cluster() {
            true => self.indexes_in_use().await?,
            false => vec![INDEX.to_owned()],
        };
        let mut open: Vec<(String, String)> =
            indexes.into_iter().map(|index| (index, "0".to_owned())).collect();
        let mut names = Vec::new();
        while !open.is_empty() {
            let later = open.split_off(open.len().min(INDEXES_A_FLIGHT));
            let scan = |(index, cursor): &(String, String)| {
                let scan =
                    redis::cmd("ZSCAN").arg(index).arg(cursor).arg("COUNT").arg(ENTRIES_A_PAGE).clone();
                (index.clone(), scan)
            };
            let requests: Vec<(String, Cmd)> = open.iter().map(scan).collect();
            let replies = self.request_each(&requests, RequestOptions::default()).await?;
            let mut next = later;
            for ((index, _), reply) in open.into_iter().zip(replies) {
                let cursor = self.names_on_page(&list_of(not_wrong_type(reply)?)?, &mut names)?;
                if cursor != "0" {
                    next.push((index, cursor));
                }
            }
            open = next;
        }
        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        // ZSCAN may return an entry twice.
        names.dedup();
        Ok(names)
    }

    /// Adds the names in a reply to `ZSCAN`. Returns the next cursor.
    fn names_on_page(&self, page: &[Value], names: &mut Vec<LockName>) -> Result<String, StoreError> {
        let (Some(next), Some(Value::Array(entries))) = (text(page.first()), page.get(1)) else {
            return Err(nonsense());
        };
        let locks = entries.iter().step_by(2).filter_map(|lock| text(Some(lock)));
        let prefixed = locks.filter_map(|lock| lock.strip_prefix(self.location.prefix()));
        names.extend(prefixed.filter_map(|name| LockName::new(name).ok()));
        Ok(next.to_owned())
    }

    /// Reads a list of outcomes, in several steps if it is long.
    async fn outcomes(&mut self, list: &str) -> Result<Vec<NotedRecord>, StoreError> {
        let mut records = Vec::new();
        let mut seen = 0;
        loop {
            let mut command = LOOK.command(By::Text);
            command.arg(1).arg(list).arg(serde_json::json!(["", "", list, seen]).to_string());
            let Value::Array(reply) = self.request_one(list, command).await? else { return Err(nonsense()) };
            let (Some(end), Some(total), Some(Value::Array(outcomes))) =
                (count::<u64>(reply.first()), count(reply.get(1)), reply.get(2))
            else {
                return Err(nonsense());
            };
            records.extend(outcomes.iter().filter_map(record));
            if end >= total || end <= seen {
                return Ok(records);
            }
            seen = end;
        }
    }

    async fn inspect_locks(
        &mut self,
        names: &[LockName],
        token: Option<&Token>,
    ) -> Result<Inspection, StoreError> {
        let is_cluster = self.location.is_cluster();
        let (locks, steps) = match is_cluster {
            true => (1, STEPS_A_FLIGHT_OF_CLUSTER),
            false => (LOCKS_A_STEP, STEPS_A_FLIGHT),
        };
        let mut views: Vec<View> =
            names.iter().map(|name| View::new(name.clone(), self.keys(name))).collect();
        let recipe = self.location.recipe;
        let options = RequestOptions { tracking: views.len() == 1, ..RequestOptions::default() };
        // The first step contains the text of the script. So does one that was sent to a server which does not have the
        // script cached, or on which this user may not run EVALSHA.
        let mut texts = vec![0];
        let mut now_ms = 0;
        loop {
            let incomplete: Vec<usize> = (0..views.len()).filter(|view| !views[*view].is_whole).collect();
            if incomplete.is_empty() {
                break;
            }
            let steps: Vec<&[usize]> = incomplete.chunks(locks).take(steps).collect();
            let request = |step: &&[usize]| {
                let lock = &views[step[0]].keys.lock;
                let mut command = LOOK.command(if texts.contains(&step[0]) { By::Text } else { By::Digest });
                match is_cluster {
                    true => command.arg(1).arg(lock),
                    false => command.arg(0),
                };
                command.arg(given(step, &views, token, recipe));
                (lock.clone(), command)
            };
            let requests: Vec<(String, Cmd)> = steps.iter().map(request).collect();
            let replies = self.request_each(&requests, options).await?;
            texts.clear();
            for (step, reply) in steps.into_iter().zip(replies) {
                let reply = match reply {
                    CommandReply::NoScript => {
                        texts.push(step[0]);
                        continue;
                    }
                    CommandReply::Resharding(text) => {
                        let why = format!("its keys are being migrated to another node ({text})");
                        step.iter()
                            .for_each(|view| views[*view].set_unknown(Unknown::Unanswered(why.clone())));
                        continue;
                    }
                    reply => list_of(reply)?,
                };
                let now = text(reply.first()).and_then(|now| now.parse().ok()).ok_or_else(nonsense)?;
                now_ms = now_ms.max(now);
                if reply.len() < 2 {
                    return Err(nonsense());
                }
                for (view, state) in step.iter().zip(&reply[1..]) {
                    views[*view].add(state, now, recipe)?;
                }
            }
        }
        if !is_cluster {
            // All locks are shown at the same time: the ages must not depend on the step in which a lock was inspected.
            // In a cluster each lock is seen by the clock of its node, and the clocks may differ.
            views.iter_mut().for_each(|view| view.age(now_ms));
        }
        Ok(Inspection { now_ms, locks: views.into_iter().map(|view| view.state).collect() })
    }
}

/// Returns the reply to a request about an index, unless that is a key of another type.
fn not_wrong_type(reply: CommandReply) -> Result<CommandReply, StoreError> {
    match reply {
        CommandReply::WrongType(_) => Err(StoreError::Config(format!(
            "the key {INDEX}, the index of all locks, has another type: name the locks, or delete the key"
        ))),
        reply => Ok(reply),
    }
}

/// Returns the argument of the script for some locks of the same index.
fn given(step: &[usize], views: &[View], token: Option<&Token>, recipe: Recipe) -> String {
    let index = step.first().map_or(INDEX, |first| &views[*first].keys.index);
    let mut given = vec![
        serde_json::json!(index),
        serde_json::json!(token.map_or("", Token::reveal)),
        serde_json::json!(recipe.key_type()),
    ];
    for view in step.iter().map(|view| &views[*view]) {
        given.extend([
            serde_json::json!(view.keys.lock),
            serde_json::json!(view.keys.tail),
            serde_json::json!(view.holders),
            serde_json::json!(view.waiters),
        ]);
    }
    serde_json::Value::Array(given).to_string()
}

impl LockAdmin for RedisStore {
    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async {
            self.connect().await?;
            self.index().await
        })
    }

    fn inspect<'a>(
        &'a mut self,
        names: &'a [LockName],
        token: Option<&'a Token>,
    ) -> Reply<'a, Result<Inspection, StoreError>> {
        Box::pin(async move {
            self.connect().await?;
            self.inspect_locks(names, token).await
        })
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        Box::pin(async move {
            self.connect().await?;
            let keys = self.keys(name);
            let mut records = self.outcomes(&keys.history).await?;
            records.extend(self.outcomes(&keys.missed).await?);
            records.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            Ok(records)
        })
    }

    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        fencing: FencingToken,
        revocation: &'a Revocation,
    ) -> Reply<'a, Result<Revoked, StoreError>> {
        Box::pin(async move {
            let text = serde_json::to_string(revocation).map_err(|_| nonsense())?;
            let (notified, ended) =
                self.end_hold(name, vec![fencing.to_string(), text, "later".into()]).await?;
            Ok(match (notified, ended) {
                (0, 0) => Revoked::Gone,
                (0, _) => Revoked::Ended,
                (notified, _) => Revoked::Notified(notified),
            })
        })
    }

    fn remove<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(async move {
            let removed = match (holder.fencing, &holder.digest) {
                (Some(fencing), _) => {
                    self.end_hold(name, vec![fencing.to_string(), "{}".into(), "now".into()]).await?.1
                }
                (None, Some(digest)) => {
                    let reply = self.change(name, Operation::Delete, vec![digest.clone()]).await?;
                    usize::from(number(reply.first()) == Some(1))
                }
                (None, None) => 0,
            };
            Ok(if removed == 0 { Removal::Changed } else { Removal::Removed })
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.examine_server(diagnosis))
    }
}

impl RedisStore {
    /// Revokes or removes a hold. Returns how many holders were notified, and how many holds were removed.
    async fn end_hold(
        &mut self,
        name: &LockName,
        arguments: Vec<String>,
    ) -> Result<(usize, usize), StoreError> {
        let reply = self.change(name, Operation::Revoke, arguments).await?;
        count(reply.first()).zip(count(reply.get(1))).ok_or_else(nonsense)
    }

    /// Has the script change a lock that this client does not hold. Fails without a change if the lock is stored in a
    /// format that this version of dlock does not know.
    async fn change(
        &mut self,
        name: &LockName,
        operation: Operation,
        arguments: Vec<String>,
    ) -> Result<Vec<Value>, StoreError> {
        let keys = self.keys(name);
        let request = ScriptRequest::new(operation, &keys, "", arguments);
        self.connect().await?;
        let reply = self.request(&request, RequestOptions::default()).await?;
        match number(reply.first()) {
            Some(-6) => Err(other_format(&reply)),
            _ => Ok(reply),
        }
    }
}
