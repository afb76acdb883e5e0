//! Administration of the locks of a server: listing, inspecting, history, revoking and removing holds.
//!
//! Called by `commands` as a [`LockAdmin`]. What always holds: listing and inspecting change nothing.

mod view;

use std::time::Duration;

use redis::{Cmd, Value};
use serde_json::json;

use self::view::{LookReply, LookRequest, View, record};
use super::connection::{CommandReply, Connection, RequestOptions, value_of};
use super::keys::{HISTORY_LISTS, INDEX, Keys, RECORDED};
use super::reply::{Outcome, freeze as read_freeze, nonsense, read, text};
use super::result::unexpected;
use super::route::replaced;
use super::script::{By, LOOK, Operation, ScriptRequest, json, millis};
use super::store::RedisStore;
use crate::backend::admin::{Frozen, Inspection, Listed, LockAdmin, Raised, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::{Backend, StoreError, TryReply};
use crate::lock::{FencingToken, FreezeRequest, Holder, LockName, NotedRecord, Revocation, Token, Unknown};

/// The number of locks inspected by one run of the script, during which the server executes nothing else. In a cluster
/// each run is for one lock, which determines the node.
const LOCKS_A_STEP: usize = 32;
/// The number of script runs requested in one round trip of a server, and of a cluster.
const STEPS_A_FLIGHT: usize = 16;
const STEPS_A_FLIGHT_OF_CLUSTER: usize = 64;
/// The number of histories requested in one round trip.
const HISTORIES_A_FLIGHT: usize = 32;
/// The number of indexes of a cluster that are read at a time.
const INDEXES_A_FLIGHT: usize = 64;
/// The approximate number of index entries read per request.
const ENTRIES_A_PAGE: usize = 400;
/// Returns the entries of a list of outcomes: at most 20 (`max_outcomes` in script/lock.lua), without those that are longer
/// than dlock stores (`longest` in script/look.lua).
const OUTCOMES: &str = "local found, kept = redis.pcall('LRANGE', KEYS[1], 0, 19), {} \
                        if found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then return found end \
                        for _, text in ipairs(found) do if #text <= 8192 then kept[#kept + 1] = text end end \
                        return kept";
/// The longest time that a freeze with an end lasts, in ms: 1000 years (`forever` in script/lock.lua).
const LONGEST_FREEZE: u64 = 1000 * 365 * 24 * 3600 * 1000;

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
        self.with_connection(request, options, Duration::ZERO).await
    }

    pub(super) async fn request_one(&mut self, key: &str, command: Cmd) -> Result<Value, StoreError> {
        let replies = self.request_each(&[(key.to_owned(), command)], RequestOptions::default()).await;
        value_of(replies?.pop().ok_or_else(nonsense)?)
    }

    /// Returns the names in an index or, in a cluster, in those of all slots.
    async fn index(&mut self, index: &str) -> Result<Vec<LockName>, StoreError> {
        let indexes = match self.location.is_cluster() {
            true => self.indexes_in_use(index).await?,
            false => vec![index.to_owned()],
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
                if let CommandReply::WrongType(_) = reply {
                    return Err(StoreError::Config(format!(
                        "the key {INDEX}, the index of all locks, has another type: name the locks, or delete the key"
                    )));
                }
                let cursor = self.names_on_page(&value_of(reply)?, &mut names)?;
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
    fn names_on_page(&self, page: &Value, names: &mut Vec<LockName>) -> Result<String, StoreError> {
        let Value::Array(page) = page else { return Err(nonsense()) };
        let (Some(next), Some(Value::Array(entries))) = (text(page.first()), page.get(1)) else {
            return Err(nonsense());
        };
        let locks = entries.iter().step_by(2).filter_map(|lock| text(Some(lock)));
        let prefixed = locks.filter_map(|lock| lock.strip_prefix(&*self.location.prefix));
        names.extend(prefixed.filter_map(|name| LockName::new(name).ok()));
        Ok(next.to_owned())
    }

    /// Reads lists of outcomes, each in the order of the list.
    async fn outcomes(&mut self, lists: &[String]) -> Result<Vec<Vec<NotedRecord>>, StoreError> {
        let request =
            |list: &String| (list.clone(), redis::cmd("EVAL").arg(OUTCOMES).arg(1).arg(list).clone());
        let requests: Vec<(String, Cmd)> = lists.iter().map(request).collect();
        let replies = self.request_each(&requests, RequestOptions::default()).await?;
        let outcomes = |reply| match value_of(reply)? {
            Value::Array(entries) => {
                Ok(entries.iter().filter_map(|entry| record(text(Some(entry))?)).collect())
            }
            _ => Err(nonsense()),
        };
        replies.into_iter().map(outcomes).collect()
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
                let locks: Vec<_> = step.iter().map(|view| views[*view].request()).collect();
                let (index, token) = (&views[step[0]].keys.index, token.map(Token::reveal));
                command.arg(json(&LookRequest { index, token, own_type: recipe.key_type(), locks }));
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
                    reply => read::<LookReply>(&value_of(reply)?)?,
                };
                if reply.locks.is_empty() {
                    return Err(nonsense());
                }
                now_ms = now_ms.max(reply.now);
                for (view, state) in step.iter().zip(reply.locks) {
                    views[*view].add(state, reply.now, recipe);
                }
            }
        }
        for view in views.iter_mut().filter(|view| view.is_freeze_elsewhere) {
            // This request is redirected to the node that has the key.
            let frozen = view.keys.side("frozen");
            match self.request_one(&frozen, redis::cmd("GET").arg(&frozen).clone()).await {
                Ok(freeze) => view.set_freeze(text(Some(&freeze))),
                Err(error) => view.set_unknown(error.into()),
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

impl LockAdmin for RedisStore {
    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(async move {
            self.connect().await?;
            self.index(match which {
                Listed::InUse => INDEX,
                Listed::WithHistory => RECORDED,
            })
            .await
        })
    }

    fn inspect<'a>(
        &'a mut self,
        names: &'a [LockName],
        token: Option<&'a Token>,
    ) -> TryReply<'a, Inspection> {
        Box::pin(async move {
            self.connect().await?;
            self.inspect_locks(names, token).await
        })
    }

    fn last_fencing_token<'a>(&'a mut self, name: &'a LockName) -> TryReply<'a, Option<FencingToken>> {
        Box::pin(async move {
            let fencing = self.keys(name).fencing();
            self.connect().await?;
            let last = self.request_one(&fencing, redis::cmd("GET").arg(&fencing).clone()).await?;
            // What is not a number is replaced by the next grant.
            Ok(text(Some(&last)).and_then(|number| FencingToken::new(number.parse().ok()?)))
        })
    }

    fn raise_fencing<'a>(&'a mut self, name: &'a LockName, floor: FencingToken) -> TryReply<'a, Raised> {
        Box::pin(async move {
            let counter_life = millis(self.counter_ttl());
            match self.change(name, Operation::Raise { floor: floor.to_string(), counter_life }).await? {
                Outcome::Raised => Ok(Raised::Done),
                Outcome::Held => Ok(Raised::Held),
                Outcome::Above { fencing } => {
                    let last = fencing.parse().ok().and_then(FencingToken::new);
                    last.map(Raised::Above).ok_or_else(nonsense)
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    fn freeze<'a>(&'a mut self, name: &'a LockName, request: &'a FreezeRequest) -> TryReply<'a, Frozen> {
        Box::pin(async move {
            let FreezeRequest { id, by, reason, lasts } = request;
            // The server does not accept that a key expires at once, or at a time beyond all others.
            let lasts = lasts.map(|lasts| millis(lasts).clamp(1, LONGEST_FREEZE));
            let freeze = json(&json!({ "id": id, "by": by, "reason": reason }));
            match self.change(name, Operation::Freeze { id, freeze, lasts }).await? {
                Outcome::Frozen { freeze, was_there } => {
                    let freeze = read_freeze(&freeze)?;
                    Ok(match (freeze.id == *id, was_there) {
                        (true, false) => Frozen::Done(freeze),
                        (true, true) => Frozen::Kept(freeze),
                        (false, _) => Frozen::Already(freeze),
                    })
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    fn thaw<'a>(&'a mut self, name: &'a LockName, id: &'a str) -> TryReply<'a, bool> {
        Box::pin(async move {
            match self.change(name, Operation::Thaw { id }).await? {
                Outcome::Done => Ok(true),
                Outcome::Gone => Ok(false),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> TryReply<'a, Vec<NotedRecord>> {
        Box::pin(async move {
            let found = self.histories(std::slice::from_ref(name)).await?;
            found.into_iter().next().ok_or_else(nonsense)
        })
    }

    fn histories<'a>(&'a mut self, names: &'a [LockName]) -> TryReply<'a, Vec<Vec<NotedRecord>>> {
        Box::pin(async move {
            self.connect().await?;
            let names = &names[..names.len().min(HISTORIES_A_FLIGHT)];
            let lists = names.iter().map(|name| self.keys(name));
            let of_lock = |keys: Keys| HISTORY_LISTS.map(|kind| keys.side(kind));
            let lists: Vec<String> = lists.flat_map(of_lock).collect();
            let found = self.outcomes(&lists).await?;
            let history = |lists: &[Vec<NotedRecord>]| {
                let mut records = lists.concat();
                records.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
                records
            };
            Ok(found.chunks(HISTORY_LISTS.len()).map(history).collect())
        })
    }

    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
        revocation: &'a Revocation,
    ) -> TryReply<'a, Revoked> {
        Box::pin(async move {
            let Some(fencing) = holder.fencing else { return Ok(Revoked::Gone) };
            let revocation = Some(json(revocation));
            let revoke = Operation::Revoke { fencing: fencing.to_string(), revocation };
            let (notified, ended) = self.end_hold(name, revoke).await?;
            Ok(match (notified, ended) {
                (0, 0) => Revoked::Gone,
                (0, _) => Revoked::Ended,
                (notified, _) => Revoked::Notified(notified),
            })
        })
    }

    fn remove<'a>(&'a mut self, name: &'a LockName, holder: &'a Holder) -> TryReply<'a, Removal> {
        Box::pin(async move {
            let remove = match (holder.fencing, &holder.digest) {
                (Some(fencing), _) => Operation::Revoke { fencing: fencing.to_string(), revocation: None },
                (None, Some(digest)) => Operation::Delete { digest },
                (None, None) => return Ok(Removal::Changed),
            };
            let (_, removed) = self.end_hold(name, remove).await?;
            Ok(if removed == 0 { Removal::Changed } else { Removal::Removed })
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.examine_server(diagnosis))
    }
}

impl RedisStore {
    /// Has a script change a lock for an operator.
    ///
    /// # Errors
    /// The request failed, or the server is not the one to use any more, so that the change may be lost.
    async fn change(&mut self, name: &LockName, operation: Operation<'_>) -> Result<Outcome, StoreError> {
        let keys = self.keys(name);
        let request = ScriptRequest::new(operation, &keys, "");
        self.connect().await?;
        let reply = self.request(&request, RequestOptions::default()).await?;
        match !self.route.confirm_server(&self.location).await && self.route.is_replaced() {
            true => Err(replaced()),
            false => Ok(reply.outcome),
        }
    }

    /// Has a script revoke or remove a hold of another client. Returns how many holders were notified, and how many
    /// holds were removed.
    async fn end_hold(
        &mut self,
        name: &LockName,
        operation: Operation<'_>,
    ) -> Result<(usize, usize), StoreError> {
        match self.change(name, operation).await? {
            Outcome::Ended { notified, removed } => Ok((notified, removed)),
            Outcome::Gone => Ok((0, 0)),
            other => Err(unexpected(&other)),
        }
    }
}
