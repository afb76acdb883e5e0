//! Runs inside the hold of another dlock are recorded in its node, which does not end with their sessions. Each has an
//! ephemeral node of its own elsewhere, so that the outer one does not wait for a run that was killed.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use super::{BATCH, ZooKeeperStore};
use crate::backend::StoreError;
use crate::backend::ledger::Purpose;
use crate::backend::ledger::entries::{Entry, METADATA, Write};
use crate::backend::zookeeper::connection::Reply;
use crate::backend::zookeeper::errors::Code;
use crate::backend::zookeeper::location::INSIDE_NODE;
use crate::backend::zookeeper::message::{Kind, Request};
use crate::hex;

impl ZooKeeperStore {
    /// Returns the request to create the node of this run, if these writes note it in the node of another one.
    pub(super) fn enter(&self, purpose: &Purpose, writes: &[Write]) -> Option<Request> {
        let token = purpose.claim()?.token.reveal();
        let enters = writes.iter().any(|write| match write {
            Write::Swap { order, value, .. } if *order != METADATA => {
                let node = self.node_of(*order);
                let has_own = value.holders.iter().any(|holder| holder.token == token);
                has_own && node != self.own_name() && node != self.held_in.as_deref()
            }
            _ => false,
        });
        enters.then(|| Request::Create {
            path: self.path_inside(token),
            data: Vec::new(),
            kind: Kind::Ephemeral,
        })
    }

    /// Removes the runs inside a hold that have ended without leaving it.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn remove_ended(&mut self, entries: &mut [Entry]) -> Result<(), StoreError> {
        // The owner of an entry is stored without a ticket.
        let holders = entries.iter().flat_map(|entry| &entry.value.holders);
        let inside = holders.filter(|holder| holder.ticket != 0).map(|holder| holder.token.clone());
        let mut ended = HashSet::new();
        for batch in inside.collect::<Vec<_>>().chunks(BATCH) {
            let paths: Vec<String> = batch.iter().map(|token| self.path_inside(token)).collect();
            let replies = self.exchange_for(&paths, |path| Request::Exists { path }).await?;
            let is_gone = |reply: &Reply| reply.code == Code::NO_NODE;
            let batch = batch.iter().zip(replies).filter(|(_, reply)| is_gone(reply));
            ended.extend(batch.map(|(token, _)| token.clone()));
        }
        if !ended.is_empty() {
            let holders = entries.iter_mut().map(|entry| &mut entry.value.holders);
            holders.for_each(|holders| holders.retain(|holder| !ended.contains(&holder.token)));
        }
        Ok(())
    }

    /// Returns the path of the node of a nested run. It does not reveal the token.
    fn path_inside(&self, token: &str) -> String {
        let digest = Sha256::digest(token.as_bytes());
        format!("{}{INSIDE_NODE}/{}", self.location().directory, hex::encode(&digest))
    }
}
