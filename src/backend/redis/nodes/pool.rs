//! Connections to many nodes, and requests each of which is sent to the node that has its slot.

use std::collections::HashMap;

use redis::{Cmd, Value};

use super::super::connection::{CommandReply, Connection, RequestOptions};
use super::super::errors::refusal;
use super::super::location::Location;
use super::super::redirect::Asking;
use super::super::reply::nonsense;
use super::{MAX_REDIRECTIONS, Range, at, ranges, slots_command};
use crate::backend::StoreError;
use crate::backend::net::Address;

const REQUESTS_PER_WRITE: usize = 512;

/// Connections, and the owners of slots that are known through them.
#[derive(Default)]
pub struct Pool {
    connections: Vec<(Address, Connection)>,
    owners: HashMap<u16, Address>,
    last: Option<Address>,
}

/// A request about a slot that has no reply yet, and the node to send it to.
#[derive(Clone)]
struct PendingRequest {
    request: usize,
    node: Address,
    asking: Asking,
}

impl Pool {
    /// Queries this node for the owners of all slots.
    ///
    /// # Errors
    /// It cannot be queried, or this user has no permission.
    pub async fn slots(&mut self, location: &Location, node: &Address) -> Result<Vec<Range>, StoreError> {
        let mut connection = self.take(location, node, Asking::No).await?;
        // The handshake is completed first, because the limit for long replies applies to what follows.
        let ranges_reply = async {
            connection.request("", &redis::cmd("TIME"), RequestOptions::default()).await?;
            connection.exchange_long(&slots_command()).await
        };
        let ranges_reply = ranges_reply.await.map_err(|error| at(node, error))?;
        self.put_back(node, connection);
        if let Value::ServerError(error) = &ranges_reply {
            return Err(refusal(error, false));
        }
        let ranges_reply = ranges(&ranges_reply, node);
        for range in &ranges_reply {
            let Some(master) = range.nodes.first() else { continue };
            for slot in range.first..=range.last {
                self.owners.insert(slot, master.clone());
            }
        }
        Ok(ranges_reply)
    }

    /// Sends each request to the owner of its slot, or to `first` if the owner is not known. No outcome is a
    /// redirection.
    ///
    /// # Errors
    /// A node cannot be reached, or rejects a request.
    pub async fn request(
        &mut self,
        location: &Location,
        first: &Address,
        requests: &[(u16, Cmd)],
        lock: &str,
        options: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let mut outcomes: Vec<Option<CommandReply>> = requests.iter().map(|_| None).collect();
        let begin = |(request, (slot, _)): (usize, &(u16, Cmd))| {
            let node = self.owners.get(slot).unwrap_or(first).clone();
            PendingRequest { request, node, asking: Asking::No }
        };
        let mut unsent: Vec<PendingRequest> = requests.iter().enumerate().map(begin).collect();
        for _ in 0..MAX_REDIRECTIONS {
            let mut redirected = Vec::new();
            while let Some(next) = unsent.first().cloned() {
                let (for_node, others): (Vec<PendingRequest>, Vec<PendingRequest>) =
                    unsent.into_iter().partition(|one| one.node == next.node && one.asking == next.asking);
                unsent = others;
                for batch in for_node.chunks(REQUESTS_PER_WRITE) {
                    let commands: Vec<Cmd> =
                        batch.iter().map(|one| as_asking(&requests[one.request].1, one.asking)).collect();
                    let replies = {
                        let mut connection = self.take(location, &next.node, next.asking).await?;
                        let replies = connection.request_all(lock, &commands, options).await;
                        self.put_back(&next.node, connection);
                        replies.map_err(|error| self.failed(&next.node, error))?
                    };
                    for (one, reply) in batch.iter().zip(replies) {
                        let CommandReply::Elsewhere(redirect) = reply else {
                            outcomes[one.request] = Some(reply);
                            continue;
                        };
                        let node = redirect.address(&next.node).ok_or_else(nonsense)?;
                        if redirect.asking == Asking::No {
                            self.owners.insert(requests[one.request].0, node.clone());
                        }
                        redirected.push(PendingRequest { node, asking: redirect.asking, ..*one });
                    }
                }
            }
            unsent = redirected;
        }
        let unresolved =
            || CommandReply::Resharding("the nodes do not agree yet which of them has the slot".to_owned());
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unresolved)).collect())
    }

    /// Forgets a node that failed: it may not own its slots any more.
    fn failed(&mut self, node: &Address, error: StoreError) -> StoreError {
        self.owners.retain(|_, owner| owner != node);
        at(node, error)
    }

    pub fn adopt(&mut self, node: Address, connection: Connection) {
        self.connections.retain(|(address, _)| *address != node);
        self.connections.push((node, connection));
    }

    pub fn take_last(&mut self) -> Option<(Address, Connection)> {
        let last = self.last.take()?;
        let there = self.connections.iter().position(|(address, _)| *address == last)?;
        Some(self.connections.swap_remove(there))
    }

    async fn take(
        &mut self,
        location: &Location,
        node: &Address,
        asking: Asking,
    ) -> Result<Connection, StoreError> {
        let there = self.connections.iter().position(|(address, _)| address == node);
        let mut connection = match there {
            Some(there) => self.connections.swap_remove(there).1,
            None => {
                let opened = Connection::open(location, node, false).await;
                opened.map_err(|error| self.failed(node, error))?
            }
        };
        connection.asking = asking;
        Ok(connection)
    }

    fn put_back(&mut self, node: &Address, connection: Connection) {
        self.last = Some(node.clone());
        if connection.usable {
            self.connections.push((node.clone(), connection));
        }
    }
}

/// Returns the command to send; a script is notified that the slot is still being migrated to the node, so that keys may
/// be missing.
fn as_asking(command: &Cmd, asking: Asking) -> Cmd {
    let mut command = command.clone();
    let is_script = matches!(command.args_iter().next(), Some(redis::Arg::Simple(b"EVAL" | b"EVALSHA")));
    if asking == Asking::Yes && is_script {
        command.arg("asking");
    }
    command
}
