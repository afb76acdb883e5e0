//! Looking at locks that are spread over the nodes of a cluster: each question goes to the node that has the lock's slot.

use redis::{Cmd, Value};

use super::super::RedisStore;
use super::super::answers::{nonsense, text};
use super::super::connection::{CommandReply, RequestOptions};
use super::super::inspect::{ENTRIES_A_PAGE, View, given, not_an_index};
use super::super::keys::{indexes, slot_of_key};
use super::super::location::Address;
use super::super::route::Route;
use super::super::script::{By, LOOK};
use crate::backend::admin::Inspection;
use crate::backend::{Backend, StoreError};
use crate::lock::{LockName, LockState, Token};

impl RedisStore {
    /// Asks each of these about one key, wherever that is. A single one is asked over the connection that is listened to,
    /// with these wishes.
    ///
    /// # Errors
    /// A node cannot be asked, or refuses.
    pub(in super::super) async fn ask_each(
        &mut self,
        questions: &[(String, Cmd)],
        wishes: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let Route::Cluster(nodes) = &mut self.route else { return Err(nonsense()) };
        let first = nodes.current().clone();
        if let Some(connection) = self.connection.take() {
            nodes.pool.adopt(first.clone(), connection);
        }
        let lock = match questions {
            [(key, _)] => key.clone(),
            _ => String::new(),
        };
        let questions: Vec<(u16, Cmd)> =
            questions.iter().map(|(key, command)| (slot_of_key(key), command.clone())).collect();
        nodes.begin();
        let answers = nodes.pool.ask(&self.location, &first, &questions, &lock, wishes).await?;
        nodes.has_answered();
        if let [_] = answers.as_slice()
            && let Some((node, connection)) = nodes.pool.give_up_last()
        {
            self.examined &= node == first;
            nodes.prefer(node);
            nodes.set_asking(connection.asking());
            self.connection = Some(connection);
        }
        Ok(answers)
    }

    /// The server that has a lock; in a cluster none of whose nodes answers, one of them.
    ///
    /// # Errors
    /// It cannot be found out.
    pub(in super::super) async fn server_of(&mut self, lock: &str) -> Result<Address, StoreError> {
        if !self.location.is_cluster() {
            return self.route.find(&self.location).await;
        }
        let mut exists = redis::cmd("EXISTS");
        exists.arg(lock);
        if self.connect().await.is_ok() {
            let _ = self.ask_each(&[(lock.to_owned(), exists)], RequestOptions::default()).await;
        }
        self.connection = None;
        match &self.route {
            Route::Cluster(nodes) => Ok(nodes.current().clone()),
            Route::Fixed(_) | Route::Sentinel(_) => Err(nonsense()),
        }
    }

    /// The names in the indexes of all slots.
    ///
    /// # Errors
    /// A node cannot be asked, or refuses.
    pub(in super::super) async fn names_in_all_slots(&mut self) -> Result<Vec<LockName>, StoreError> {
        let Route::Cluster(nodes) = &mut self.route else { return Err(nonsense()) };
        let first = nodes.current().clone();
        match nodes.pool.slots(&self.location, &first).await {
            // Without that right each node tells by itself which slots it has not.
            Ok(_) | Err(StoreError::Denied(_)) => {}
            Err(error) => return Err(error),
        }
        let indexes = indexes();
        let exists = |index: &String| {
            let mut exists = redis::cmd("EXISTS");
            exists.arg(index);
            (index.clone(), exists)
        };
        let questions: Vec<(String, Cmd)> = indexes.iter().map(exists).collect();
        let answers = self.ask_each(&questions, RequestOptions::default()).await?;
        let there = |(index, answer): (String, CommandReply)| match answer {
            CommandReply::Value(Value::Int(0)) => None,
            _ => Some((index, "0".to_owned())),
        };
        let mut open: Vec<(String, String)> = indexes.into_iter().zip(answers).filter_map(there).collect();
        let mut names = Vec::new();
        while !open.is_empty() {
            let scan = |(index, cursor): &(String, String)| {
                let mut scan = redis::cmd("ZSCAN");
                scan.arg(index).arg(cursor).arg("COUNT").arg(ENTRIES_A_PAGE);
                (index.clone(), scan)
            };
            let (now, later) = open.split_at(open.len().min(PAGES_AT_A_TIME));
            let questions: Vec<(String, Cmd)> = now.iter().map(scan).collect();
            let answers = self.ask_each(&questions, RequestOptions::default()).await.map_err(not_an_index)?;
            let mut next = later.to_vec();
            for ((index, _), answer) in now.iter().zip(answers) {
                let CommandReply::Value(Value::Array(page)) = answer else {
                    return Err(StoreError::resharding(
                        "the nodes do not agree yet which of them has a slot",
                    ));
                };
                let cursor = self.names_on_page(&page, &mut names)?;
                if cursor != "0" {
                    next.push((index.clone(), cursor));
                }
            }
            open = next;
        }
        Ok(names)
    }

    /// Looks at each lock where it is.
    ///
    /// # Errors
    /// A node cannot be asked, or refuses.
    pub(in super::super) async fn look_around(
        &mut self,
        names: &[LockName],
        token: Option<&Token>,
    ) -> Result<Inspection, StoreError> {
        let mut views: Vec<View> =
            names.iter().map(|name| View::new(name.clone(), self.keys(name))).collect();
        let recipe = self.location.recipe();
        let mut now_ms = 0;
        let wishes = RequestOptions { tracking: views.len() == 1, ..RequestOptions::default() };
        // A node that sees the script for the first time is asked once with its text; which nodes those are turns out.
        let mut is_new = vec![true; views.len().min(1)];
        is_new.resize(views.len(), false);
        loop {
            let open: Vec<usize> = (0..views.len()).filter(|view| !views[*view].is_whole).collect();
            if open.is_empty() {
                break;
            }
            let question = |view: &usize| {
                let lock = &views[*view].keys.lock;
                let mut command = LOOK.command(if is_new[*view] { By::Text } else { By::Digest });
                command.arg(1).arg(lock).arg(given(&[*view], &views, token, recipe));
                (lock.clone(), command)
            };
            let questions: Vec<(String, Cmd)> = open.iter().take(LOOKS_AT_A_TIME).map(question).collect();
            let answers = self.ask_each(&questions, wishes).await?;
            for (view, answer) in open.into_iter().zip(answers) {
                is_new[view] = matches!(answer, CommandReply::NoScript);
                let answer = match answer {
                    CommandReply::NoScript => continue,
                    CommandReply::Value(Value::Array(answer)) => answer,
                    CommandReply::Resharding(_) => {
                        let name = views[view].state.name.clone();
                        views[view].is_seen(self.look_at_parts(&name, token).await?);
                        continue;
                    }
                    _ => return Err(nonsense()),
                };
                let now = text(answer.first()).and_then(|now| now.parse().ok()).ok_or_else(nonsense)?;
                now_ms = now_ms.max(now);
                views[view].add(answer.get(1).ok_or_else(nonsense)?, now, recipe)?;
            }
        }
        // Each as its own node sees it: their clocks need not agree.
        let mut locks: Vec<_> = views.into_iter().map(|view| view.state).collect();
        if token.is_some() {
            // Where its keys are not all in one place, a holder may look like a stranger.
            let is_unproven = |lock: &&mut LockState| lock.holders.iter().all(|holder| !holder.ours);
            for lock in locks.iter_mut().filter(|lock| !lock.holders.is_empty()).filter(is_unproven) {
                let seen = self.look_at_parts(&lock.name, token).await?;
                if seen.holders.iter().any(|holder| holder.ours) {
                    *lock = seen;
                }
            }
        }
        Ok(Inspection { now_ms, locks })
    }
}

/// So many indexes are read, and locks looked at, at a time.
const PAGES_AT_A_TIME: usize = 64;
const LOOKS_AT_A_TIME: usize = 64;
