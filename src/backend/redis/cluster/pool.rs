//! Connections to many nodes, and questions of which each goes to the node that has its slot.

use std::collections::HashMap;

use redis::{Cmd, Value};

use super::super::answers::nonsense;
use super::super::connection::{Asking, CommandReply, Connection, RequestOptions};
use super::super::location::{Address, Location};
use super::nodes::{Range, ranges, slots_command};
use super::{MOST_HOPS, at};
use crate::backend::StoreError;

/// So many questions are asked at a time.
const QUESTIONS_A_FLIGHT: usize = 512;

/// Connections, and what they have told.
#[derive(Default)]
pub(super) struct Pool {
    connections: Vec<(Address, Connection)>,
    owners: HashMap<u16, Address>,
    /// Which was asked last.
    last: Option<Address>,
}

/// One question about a slot, and where it goes next.
#[derive(Clone)]
struct Open {
    question: usize,
    node: Address,
    asking: Asking,
}

impl Pool {
    /// Asks which node has which slots, beginning with this one.
    ///
    /// # Errors
    /// It cannot be asked, or this user may not ask.
    pub(super) async fn slots(
        &mut self,
        location: &Location,
        node: &Address,
    ) -> Result<Vec<Range>, StoreError> {
        let mut connection = self.take(location, node, Asking::No).await?;
        // The greeting first: a long answer is expected of what comes behind it.
        let told = async {
            connection.ask("", &redis::cmd("PING"), RequestOptions::default()).await?;
            connection.exchange_long(&slots_command()).await
        };
        let told = told.await.map_err(|error| at(node, error))?;
        self.put_back(node, connection);
        if let Value::ServerError(error) = &told {
            return Err(super::super::errors::refusal(error, false));
        }
        let told = ranges(&told, node);
        for range in &told {
            let Some(master) = range.nodes.first() else { continue };
            for slot in range.first..=range.last {
                self.owners.insert(slot, master.clone());
            }
        }
        Ok(told)
    }

    /// Asks each question, which is about this slot, where the slot is; as far as is known, or else at `first`. None of
    /// the answers sends us elsewhere.
    ///
    /// # Errors
    /// A node cannot be reached, or refuses.
    pub(super) async fn ask(
        &mut self,
        location: &Location,
        first: &Address,
        questions: &[(u16, Cmd)],
        lock: &str,
        wishes: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let mut answers: Vec<Option<CommandReply>> = questions.iter().map(|_| None).collect();
        let begin = |(question, (slot, _)): (usize, &(u16, Cmd))| {
            let node = self.owners.get(slot).unwrap_or(first).clone();
            Open { question, node, asking: Asking::No }
        };
        let mut open: Vec<Open> = questions.iter().enumerate().map(begin).collect();
        for _ in 0..MOST_HOPS {
            let mut elsewhere = Vec::new();
            while let Some(next) = open.first().cloned() {
                let (here, others): (Vec<Open>, Vec<Open>) =
                    open.into_iter().partition(|one| one.node == next.node && one.asking == next.asking);
                open = others;
                for flight in here.chunks(QUESTIONS_A_FLIGHT) {
                    let commands: Vec<Cmd> =
                        flight.iter().map(|one| questions[one.question].1.clone()).collect();
                    let replies = {
                        let mut connection = self.take(location, &next.node, next.asking).await?;
                        let replies = connection.ask_all(lock, &commands, wishes).await;
                        self.put_back(&next.node, connection);
                        replies.map_err(|error| self.failed(&next.node, error))?
                    };
                    for (one, reply) in flight.iter().zip(replies) {
                        let CommandReply::Elsewhere(redirect) = reply else {
                            answers[one.question] = Some(reply);
                            continue;
                        };
                        let node = redirect.address(&next.node).ok_or_else(nonsense)?;
                        if redirect.asking == Asking::No {
                            self.owners.insert(questions[one.question].0, node.clone());
                        }
                        elsewhere.push(Open { node, asking: redirect.asking, ..*one });
                    }
                }
            }
            open = elsewhere;
        }
        let late =
            || CommandReply::Resharding("the nodes do not agree yet which of them has the slot".to_owned());
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(late)).collect())
    }

    /// A node that cannot be asked may not be the one any more that has those slots.
    fn failed(&mut self, node: &Address, error: StoreError) -> StoreError {
        self.owners.retain(|_, owner| owner != node);
        at(node, error)
    }

    /// Takes over a connection.
    pub(super) fn adopt(&mut self, node: Address, connection: Connection) {
        self.connections.retain(|(address, _)| *address != node);
        self.connections.push((node, connection));
    }

    /// Gives away the connection over which the last question was asked.
    pub(super) fn give_up_last(&mut self) -> Option<(Address, Connection)> {
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
        connection.set_asking(asking);
        Ok(connection)
    }

    fn put_back(&mut self, node: &Address, connection: Connection) {
        self.last = Some(node.clone());
        if connection.is_usable() {
            self.connections.push((node.clone(), connection));
        }
    }
}
