//! Who holds what, who waits, what has been, and the end of a hold by somebody else's word.

mod view;

use redis::{Cmd, Value};

pub(super) use self::view::View;
use self::view::noted;
use super::RedisStore;
use super::answers::{nonsense, number, other_format, text};
use super::connection::{CommandReply, RequestOptions};
use super::keys::INDEX;
use super::recipe::Recipe;
use super::script::{By, LOOK, Operation, Question};
use crate::backend::admin::{Inspection, LockAdmin, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::{Backend, Reply, StoreError};
use crate::lock::{FencingToken, Holder, LockName, NotedRecord, Revocation, Token};

/// So many locks are looked at in one step of the server, which does nothing else meanwhile.
const LOCKS_A_STEP: usize = 32;
/// So many steps are asked for at a time.
const STEPS_A_FLIGHT: usize = 16;
/// So many entries of the index, about, are read at a time.
pub(super) const ENTRIES_A_PAGE: usize = 400;

impl RedisStore {
    /// Asks several questions over the connection, which is given up if any answer does not come in full.
    async fn ask_all(
        &mut self,
        lock: &str,
        commands: &[Cmd],
        wishes: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let mut connection =
            self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))?;
        self.route.doubt(&self.location);
        let mut answers = self.route.beside(connection.ask_all(lock, commands, wishes)).await;
        if connection.is_outdated() {
            self.old_protocol = true;
            connection = self.route.open(&self.location, true).await?;
            answers = connection.ask_all(lock, commands, RequestOptions::default()).await;
        }
        if connection.is_usable() && !self.route.leaves(&answers) {
            self.connection = Some(connection);
        }
        answers
    }

    /// Asks one question about one key.
    pub(super) async fn ask_one(&mut self, key: &str, command: Cmd) -> Result<Value, StoreError> {
        let answers = match self.location.is_cluster() {
            true => self.ask_each(&[(key.to_owned(), command)], RequestOptions::default()).await,
            false => self.ask_all("", &[command], RequestOptions::default()).await,
        };
        match answers?.pop() {
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
        // The server may tell some of them twice.
        names.dedup();
        Ok(names)
    }

    async fn names_in(&mut self, index: &str) -> Result<Vec<LockName>, StoreError> {
        let mut names = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("ZSCAN");
            scan.arg(index).arg(&cursor).arg("COUNT").arg(ENTRIES_A_PAGE);
            let answer = self.ask_one(index, scan).await.map_err(not_an_index)?;
            let Value::Array(page) = answer else { return Err(nonsense()) };
            cursor = self.names_on_page(&page, &mut names)?;
            if cursor == "0" {
                return Ok(names);
            }
        }
    }

    /// Takes the names from an answer to `ZSCAN`. Returns where to go on.
    pub(super) fn names_on_page(
        &self,
        page: &[Value],
        names: &mut Vec<LockName>,
    ) -> Result<String, StoreError> {
        let (Some(next), Some(Value::Array(entries))) = (text(page.first()), page.get(1)) else {
            return Err(nonsense());
        };
        let locks = entries.iter().step_by(2).filter_map(|lock| text(Some(lock)));
        let ours = locks.filter_map(|lock| lock.strip_prefix(self.location.prefix()));
        names.extend(ours.filter_map(|name| LockName::new(name).ok()));
        Ok(next.to_owned())
    }

    /// What a list of outcomes says, in as many steps as the length of the answers needs.
    async fn outcomes(&mut self, list: &str) -> Result<Vec<NotedRecord>, StoreError> {
        let mut records = Vec::new();
        let mut seen = 0;
        loop {
            let mut command = LOOK.command(By::Text);
            command.arg(1).arg(list).arg(serde_json::json!(["", "", list, seen]).to_string());
            let Value::Array(answer) = self.ask_one(list, command).await? else { return Err(nonsense()) };
            let count = |index: usize| number(answer.get(index)).and_then(|n| u64::try_from(n).ok());
            let (Some(until), Some(of), Some(Value::Array(outcomes))) = (count(0), count(1), answer.get(2))
            else {
                return Err(nonsense());
            };
            records.extend(outcomes.iter().filter_map(noted));
            if until >= of || until <= seen {
                return Ok(records);
            }
            seen = until;
        }
    }

    async fn look(&mut self, names: &[LockName], token: Option<&Token>) -> Result<Inspection, StoreError> {
        if self.location.is_cluster() {
            return self.look_around(names, token).await;
        }
        let mut views: Vec<View> =
            names.iter().map(|name| View::new(name.clone(), self.keys(name))).collect();
        let recipe = self.location.recipe();
        let mut now_ms = 0;
        let mut by = By::Text;
        let last = views.last().map(|view| view.keys.lock.clone()).unwrap_or_default();
        let wishes = RequestOptions { tracking: views.len() == 1, ..RequestOptions::default() };
        loop {
            let open: Vec<usize> = (0..views.len()).filter(|view| !views[*view].is_whole).collect();
            if open.is_empty() {
                break;
            }
            // A server that sees the script for the first time is asked one thing first.
            let steps = if by == By::Text { 1 } else { STEPS_A_FLIGHT };
            let steps: Vec<&[usize]> = open.chunks(LOCKS_A_STEP).take(steps).collect();
            let commands: Vec<Cmd> =
                steps.iter().map(|step| question(by, step, &views, token, recipe)).collect();
            let answers = self.ask_all(&last, &commands, wishes).await?;
            by = By::Digest;
            for (step, answer) in steps.into_iter().zip(answers) {
                let CommandReply::Value(Value::Array(answer)) = answer else {
                    // It has forgotten the script, or may not be asked by digest.
                    by = By::Text;
                    continue;
                };
                let now = text(answer.first()).and_then(|now| now.parse().ok()).ok_or_else(nonsense)?;
                now_ms = now_ms.max(now);
                if answer.len() < 2 {
                    return Err(nonsense());
                }
                for (view, seen) in step.iter().zip(&answer[1..]) {
                    views[*view].add(seen, now, recipe)?;
                }
            }
        }
        // All as of the same moment: what began when must not depend on which step told of it.
        let locks = views.into_iter().map(|view| view.at(now_ms).state).collect();
        Ok(Inspection { now_ms, locks })
    }
}

pub(super) fn not_an_index(error: StoreError) -> StoreError {
    match error.to_string().contains("WRONGTYPE") {
        true => StoreError::Config(format!(
            "something else is in the key {INDEX}, where all locks are listed: name the locks, or delete it"
        )),
        false => error,
    }
}

fn question(by: By, step: &[usize], views: &[View], token: Option<&Token>, recipe: Recipe) -> Cmd {
    let mut command = LOOK.command(by);
    command.arg(0).arg(given(step, views, token, recipe));
    command
}

/// What the script is given to look at some locks that are listed in the same index.
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
            self.look(names, token).await
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
            let (told, ended) = self.end_hold(name, vec![fencing.to_string(), text, "later".into()]).await?;
            Ok(match (told, ended) {
                (0, 0) => Revoked::Gone,
                (0, _) => Revoked::Ended,
                (told, _) => Revoked::Told(told),
            })
        })
    }

    fn remove<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(async move {
            let gone = match (holder.fencing, &holder.digest) {
                (Some(fencing), _) => {
                    self.end_hold(name, vec![fencing.to_string(), "{}".into(), "now".into()]).await?.1
                }
                (None, Some(digest)) => {
                    let answer = self.tell(name, Operation::Delete, vec![digest.clone()]).await?;
                    usize::from(number(answer.first()) == Some(1))
                }
                (None, None) => 0,
            };
            Ok(if gone == 0 { Removal::Changed } else { Removal::Removed })
        })
    }

    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.examine_server(examination))
    }
}

impl RedisStore {
    /// How many were told, and how many taken out.
    async fn end_hold(
        &mut self,
        name: &LockName,
        arguments: Vec<String>,
    ) -> Result<(usize, usize), StoreError> {
        let answer = self.tell(name, Operation::Revoke, arguments).await?;
        let count = |index: usize| number(answer.get(index)).and_then(|n| usize::try_from(n).ok());
        count(0).zip(count(1)).ok_or_else(nonsense)
    }

    /// Has the script do something to a lock that is none of ours; nothing to one that is noted in a way that this dlock
    /// does not know.
    async fn tell(
        &mut self,
        name: &LockName,
        operation: Operation,
        arguments: Vec<String>,
    ) -> Result<Vec<Value>, StoreError> {
        let keys = self.keys(name);
        let question = Question { operation, keys: &keys, token: "", arguments, history: &keys.history };
        self.connect().await?;
        let answer = self.ask(&question, RequestOptions::default()).await?;
        match number(answer.first()) {
            Some(-6) => Err(other_format(&answer)),
            _ => Ok(answer),
        }
    }
}
