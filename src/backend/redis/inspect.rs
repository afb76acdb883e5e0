//! Administration of the locks of a server: listing, inspecting, history, revoking and removing holds.

mod view;

use redis::{Cmd, Value};

pub(super) use self::view::View;
use self::view::record;
use super::connection::{CommandReply, RequestOptions};
use super::keys::INDEX;
use super::recipe::Recipe;
use super::reply::{nonsense, number, other_format, text};
use super::script::{By, LOOK, Operation, ScriptRequest};
use super::store::RedisStore;
use crate::backend::admin::{Inspection, LockAdmin, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::{Backend, Reply, StoreError};
use crate::lock::{FencingToken, Holder, LockName, NotedRecord, Revocation, Token};

/// The number of locks inspected by one run of the script, during which the server executes nothing else.
const LOCKS_A_STEP: usize = 32;
/// The number of script runs requested in one round trip.
const STEPS_A_FLIGHT: usize = 16;
/// The approximate number of index entries read per request.
pub(super) const ENTRIES_A_PAGE: usize = 400;

impl RedisStore {
    /// Sends several requests over the connection. The connection is closed if any reply is incomplete.
    async fn request_all(
        &mut self,
        lock: &str,
        commands: &[Cmd],
        options: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let mut connection =
            self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))?;
        self.route.verify_server(&self.location);
        let mut replies = self.route.unless_replaced(connection.request_all(lock, commands, options)).await;
        if connection.requires_resp2() {
            self.old_protocol = true;
            connection = self.route.open(&self.location, true).await?;
            replies = connection.request_all(lock, commands, RequestOptions::default()).await;
        }
        if connection.is_usable() && !self.route.must_reconnect(&replies) {
            self.connection = Some(connection);
        }
        replies
    }

    /// Sends one request about one key.
    pub(super) async fn request_one(&mut self, key: &str, command: Cmd) -> Result<Value, StoreError> {
        let replies = match self.location.is_cluster() {
            true => self.request_each(&[(key.to_owned(), command)], RequestOptions::default()).await,
            false => self.request_all("", &[command], RequestOptions::default()).await,
        };
        match replies?.pop() {
            Some(CommandReply::Value(value)) => Ok(value),
            Some(CommandReply::Resharding(text)) => Err(StoreError::resharding(text)),
            _ => Err(nonsense()),
        }
    }

    async fn index(&mut self) -> Result<Vec<LockName>, StoreError> {
        let mut names = match self.location.is_cluster() {
            true => self.names_in_all_slots().await?,
            false => self.names_in(INDEX).await?,
        };
        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        // ZSCAN may return an entry twice.
        names.dedup();
        Ok(names)
    }

    async fn names_in(&mut self, index: &str) -> Result<Vec<LockName>, StoreError> {
        let mut names = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("ZSCAN");
            scan.arg(index).arg(&cursor).arg("COUNT").arg(ENTRIES_A_PAGE);
            let reply = self.request_one(index, scan).await.map_err(not_an_index)?;
            let Value::Array(page) = reply else { return Err(nonsense()) };
            cursor = self.names_on_page(&page, &mut names)?;
            if cursor == "0" {
                return Ok(names);
            }
        }
    }

    /// Adds the names in a reply to `ZSCAN`. Returns the next cursor.
    pub(super) fn names_on_page(
        &self,
        page: &[Value],
        names: &mut Vec<LockName>,
    ) -> Result<String, StoreError> {
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
            let count = |index: usize| number(reply.get(index)).and_then(|n| u64::try_from(n).ok());
            let (Some(end), Some(total), Some(Value::Array(outcomes))) = (count(0), count(1), reply.get(2))
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
        if self.location.is_cluster() {
            return self.inspect_in_cluster(names, token).await;
        }
        let mut views: Vec<View> =
            names.iter().map(|name| View::new(name.clone(), self.keys(name))).collect();
        let recipe = self.location.recipe();
        let mut now_ms = 0;
        let mut by = By::Text;
        let last = views.last().map(|view| view.keys.lock.clone()).unwrap_or_default();
        let options = RequestOptions { tracking: views.len() == 1, ..RequestOptions::default() };
        loop {
            let incomplete: Vec<usize> = (0..views.len()).filter(|view| !views[*view].is_whole).collect();
            if incomplete.is_empty() {
                break;
            }
            // The first request contains the script's text, so it consists of a single step.
            let steps = if by == By::Text { 1 } else { STEPS_A_FLIGHT };
            let steps: Vec<&[usize]> = incomplete.chunks(LOCKS_A_STEP).take(steps).collect();
            let commands: Vec<Cmd> =
                steps.iter().map(|step| request(by, step, &views, token, recipe)).collect();
            let replies = self.request_all(&last, &commands, options).await?;
            by = By::Digest;
            for (step, reply) in steps.into_iter().zip(replies) {
                let CommandReply::Value(Value::Array(reply)) = reply else {
                    // The script is no longer cached, or this user may not run EVALSHA.
                    by = By::Text;
                    continue;
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
        // All locks are shown at the same time: the ages must not depend on the step in which a lock was inspected.
        let locks = views.into_iter().map(|view| view.at(now_ms).state).collect();
        Ok(Inspection { now_ms, locks })
    }
}

pub(super) fn not_an_index(error: StoreError) -> StoreError {
    match error.to_string().contains("WRONGTYPE") {
        true => StoreError::Config(format!(
            "the key {INDEX}, the index of all locks, has another type: name the locks, or delete the key"
        )),
        false => error,
    }
}

fn request(by: By, step: &[usize], views: &[View], token: Option<&Token>, recipe: Recipe) -> Cmd {
    let mut command = LOOK.command(by);
    command.arg(0).arg(given(step, views, token, recipe));
    command
}

/// Returns the argument of the script for some locks of the same index.
pub(super) fn given(step: &[usize], views: &[View], token: Option<&Token>, recipe: Recipe) -> String {
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
        let count = |index: usize| number(reply.get(index)).and_then(|n| usize::try_from(n).ok());
        count(0).zip(count(1)).ok_or_else(nonsense)
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
        let question = ScriptRequest { operation, keys: &keys, token: "", arguments, history: &keys.history };
        self.connect().await?;
        let reply = self.request(&question, RequestOptions::default()).await?;
        match number(reply.first()) {
            Some(-6) => Err(other_format(&reply)),
            _ => Ok(reply),
        }
    }
}
