//! Inspection of locks that are spread over the nodes of a cluster: each request is sent to the node that has the
//! lock's slot.

use redis::{Cmd, Value};

use super::super::connection::{CommandReply, RequestOptions};
use super::super::inspect::{ENTRIES_A_PAGE, View, given, not_an_index};
use super::super::keys::indexes;
use super::super::reply::{nonsense, text};
use super::super::route::Route;
use super::super::script::{By, LOOK};
use super::super::slot::slot_of_key;
use super::super::store::RedisStore;
use crate::backend::admin::Inspection;
use crate::backend::net::Address;
use crate::backend::{Backend, StoreError};
use crate::lock::{LockName, Token, Unknown};

impl RedisStore {
    /// Sends each request, about one key, to the node that has the key. A single request is sent over the connection
    /// that is used for notifications, with these options.
    ///
    /// # Errors
    /// A node cannot be queried, or rejects the request.
    pub(in super::super) async fn request_each(
        &mut self,
        requests: &[(String, Cmd)],
        options: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let Route::Cluster(nodes) = &mut self.route else { return Err(nonsense()) };
        let first = nodes.current().clone();
        if let Some(connection) = self.connection.take() {
            nodes.pool.adopt(first.clone(), connection);
        }
        let lock = match requests {
            [(key, _)] => key.clone(),
            _ => String::new(),
        };
        let requests: Vec<(u16, Cmd)> =
            requests.iter().map(|(key, command)| (slot_of_key(key), command.clone())).collect();
        nodes.request_sent();
        let outcomes = nodes.pool.request(&self.location, &first, &requests, &lock, options).await?;
        nodes.reply_received();
        if let [_] = outcomes.as_slice()
            && let Some((node, connection)) = nodes.pool.take_last()
        {
            self.examined &= node == first;
            nodes.prefer(node);
            nodes.set_asking(connection.asking());
            self.connection = Some(connection);
        }
        Ok(outcomes)
    }

    /// Returns the server that has a lock; in a cluster none of whose nodes replies, one of them.
    ///
    /// # Errors
    /// It cannot be determined.
    pub(in super::super) async fn server_of(&mut self, lock: &str) -> Result<Address, StoreError> {
        if !self.location.is_cluster() {
            return self.route.find(&self.location).await;
        }
        let mut exists = redis::cmd("EXISTS");
        exists.arg(lock);
        if self.connect().await.is_ok() {
            let _ = self.request_each(&[(lock.to_owned(), exists)], RequestOptions::default()).await;
        }
        self.connection = None;
        match &self.route {
            Route::Cluster(nodes) => Ok(nodes.current().clone()),
            Route::Fixed(_) | Route::Sentinel(_) => Err(nonsense()),
        }
    }

    /// Returns the names in the indexes of all slots.
    ///
    /// # Errors
    /// A node cannot be queried, or rejects the request.
    pub(in super::super) async fn names_in_all_slots(&mut self) -> Result<Vec<LockName>, StoreError> {
        let Route::Cluster(nodes) = &mut self.route else { return Err(nonsense()) };
        let first = nodes.current().clone();
        match nodes.pool.slots(&self.location, &first).await {
            // Without permission each node redirects for the slots that it does not own.
            Ok(_) | Err(StoreError::Denied(_)) => {}
            Err(error) => return Err(error),
        }
        let indexes = indexes();
        let exists = |index: &String| {
            let mut exists = redis::cmd("EXISTS");
            exists.arg(index);
            (index.clone(), exists)
        };
        let requests: Vec<(String, Cmd)> = indexes.iter().map(exists).collect();
        let outcomes = self.request_each(&requests, RequestOptions::default()).await?;
        let there = |(index, outcome): (String, CommandReply)| match outcome {
            CommandReply::Value(Value::Int(0)) => None,
            _ => Some((index, "0".to_owned())),
        };
        let mut open: Vec<(String, String)> = indexes.into_iter().zip(outcomes).filter_map(there).collect();
        let mut names = Vec::new();
        while !open.is_empty() {
            let scan = |(index, cursor): &(String, String)| {
                let mut scan = redis::cmd("ZSCAN");
                scan.arg(index).arg(cursor).arg("COUNT").arg(ENTRIES_A_PAGE);
                (index.clone(), scan)
            };
            let (now, later) = open.split_at(open.len().min(PAGES_AT_A_TIME));
            let requests: Vec<(String, Cmd)> = now.iter().map(scan).collect();
            let outcomes =
                self.request_each(&requests, RequestOptions::default()).await.map_err(not_an_index)?;
            let mut next = later.to_vec();
            for ((index, _), outcome) in now.iter().zip(outcomes) {
                let CommandReply::Value(Value::Array(page)) = outcome else {
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

    /// Inspects each lock on the node that has it.
    ///
    /// # Errors
    /// A node cannot be queried, or rejects the request.
    pub(in super::super) async fn inspect_in_cluster(
        &mut self,
        names: &[LockName],
        token: Option<&Token>,
    ) -> Result<Inspection, StoreError> {
        let mut views: Vec<View> =
            names.iter().map(|name| View::new(name.clone(), self.keys(name))).collect();
        let recipe = self.location.recipe();
        let mut now_ms = 0;
        let options = RequestOptions { tracking: views.len() == 1, ..RequestOptions::default() };
        // A node that does not have the script cached is sent its text once; which nodes those are turns out.
        let mut is_new = vec![true; views.len().min(1)];
        is_new.resize(views.len(), false);
        loop {
            let open: Vec<usize> = (0..views.len()).filter(|view| !views[*view].is_whole).collect();
            if open.is_empty() {
                break;
            }
            let request = |view: &usize| {
                let lock = &views[*view].keys.lock;
                let mut command = LOOK.command(if is_new[*view] { By::Text } else { By::Digest });
                command.arg(1).arg(lock).arg(given(&[*view], &views, token, recipe));
                (lock.clone(), command)
            };
            let requests: Vec<(String, Cmd)> = open.iter().take(LOCKS_AT_A_TIME).map(request).collect();
            let outcomes = self.request_each(&requests, options).await?;
            for (view, outcome) in open.into_iter().zip(outcomes) {
                is_new[view] = matches!(outcome, CommandReply::NoScript);
                let outcome = match outcome {
                    CommandReply::NoScript => continue,
                    CommandReply::Value(Value::Array(outcome)) => outcome,
                    CommandReply::Resharding(text) => {
                        let why = format!("its keys are being migrated to another node ({text})");
                        views[view].set_unknown(Unknown::Unanswered(why));
                        continue;
                    }
                    _ => return Err(nonsense()),
                };
                let now = text(outcome.first()).and_then(|now| now.parse().ok()).ok_or_else(nonsense)?;
                now_ms = now_ms.max(now);
                views[view].add(outcome.get(1).ok_or_else(nonsense)?, now, recipe)?;
            }
        }
        // Each lock is seen by the clock of its node; the clocks may differ.
        Ok(Inspection { now_ms, locks: views.into_iter().map(|view| view.state).collect() })
    }
}

/// The number of indexes that are read at a time, and of locks that are inspected at a time.
const PAGES_AT_A_TIME: usize = 64;
const LOCKS_AT_A_TIME: usize = 64;
