//! Inspection of locks that are spread over the nodes of a cluster: each request is sent to the node that has the
//! lock's slot.

use redis::{Cmd, Value};

use super::super::connection::{CommandReply, RequestOptions};
use super::super::keys::{INDEX, indexes};
use super::super::reply::nonsense;
use super::super::route::Route;
use super::super::slot::slot_of_key;
use super::super::store::RedisStore;
use crate::backend::net::Address;
use crate::backend::{Backend, StoreError};

impl RedisStore {
    /// Sends each request, about one key, to the node that has the key. See [`RedisStore::request_each`].
    ///
    /// # Errors
    /// A node cannot be queried, or rejects the request.
    pub async fn request_each_in_cluster(
        &mut self,
        requests: &[(String, Cmd)],
        lock: &str,
        options: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let Route::Cluster(nodes) = &mut self.route else { return Err(nonsense()) };
        let first = nodes.current().clone();
        if let Some(connection) = self.connection.take() {
            nodes.pool.adopt(first.clone(), connection);
        }
        let requests: Vec<(u16, Cmd)> =
            requests.iter().map(|(key, command)| (slot_of_key(key), command.clone())).collect();
        nodes.is_silent = true;
        let outcomes = nodes.pool.request(&self.location, &first, &requests, lock, options).await?;
        nodes.is_silent = false;
        if let [_] = outcomes.as_slice()
            && let Some((node, connection)) = nodes.pool.take_last()
        {
            self.examined &= node == first;
            nodes.prefer(node);
            nodes.asking = connection.asking;
            self.connection = Some(connection);
        }
        Ok(outcomes)
    }

    /// Returns the server that has a lock; in a cluster none of whose nodes replies, one of them.
    ///
    /// # Errors
    /// It cannot be determined.
    pub async fn server_of(&mut self, lock: &str) -> Result<Address, StoreError> {
        if self.location.is_cluster() {
            let exists = redis::cmd("EXISTS").arg(lock).clone();
            if self.connect().await.is_ok() {
                let _ = self.request_one(lock, exists).await;
            }
            self.connection = None;
        }
        self.route.find(&self.location).await
    }

    /// Returns the indexes of this kind that exist, of all slots.
    ///
    /// # Errors
    /// A node cannot be queried, or rejects the request.
    pub async fn indexes_in_use(&mut self, kind: &str) -> Result<Vec<String>, StoreError> {
        let Route::Cluster(nodes) = &mut self.route else { return Err(nonsense()) };
        let first = nodes.current().clone();
        match nodes.pool.slots(&self.location, &first).await {
            // Without permission each node redirects for the slots that it does not own.
            Ok(_) | Err(StoreError::Denied(_)) => {}
            Err(error) => return Err(error),
        }
        let indexes: Vec<String> =
            indexes().into_iter().map(|index| index.replacen(INDEX, kind, 1)).collect();
        let exists = |index: &String| (index.clone(), redis::cmd("EXISTS").arg(index).clone());
        let requests: Vec<(String, Cmd)> = indexes.iter().map(exists).collect();
        let replies = self.request_each(&requests, RequestOptions::default()).await?;
        let is_there = |reply: &CommandReply| !matches!(reply, CommandReply::Value(Value::Int(0)));
        Ok(indexes
            .into_iter()
            .zip(replies)
            .filter(|(_, reply)| is_there(reply))
            .map(|(index, _)| index)
            .collect())
    }
}
