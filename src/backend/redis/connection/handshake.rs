//! The greeting: protocol, user and database, said with the first question, and what its answers mean for that question's.

use redis::{Cmd, Value};

use super::{Connection, begins_with, server_error};
use crate::backend::StoreError;
use crate::backend::redis::answers::text;
use crate::backend::redis::errors::{describe, refusal};
use crate::backend::redis::location::Address;

/// What has to be said first; goes with the first question.
pub(super) struct Greeting {
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: u32,
    pub(super) hello: bool,
    /// Where the server is, if it has to be of the kind that the URL says.
    pub(super) of_kind: Option<Address>,
}

impl Connection {
    pub(super) async fn greet_and_ask(
        &mut self,
        greeting: Greeting,
        wishes: Vec<Cmd>,
        command: &Cmd,
        behind: Option<&Cmd>,
    ) -> Result<Value, StoreError> {
        let mut first = Vec::new();
        if greeting.hello {
            first.push(hello(&greeting));
        } else if let Some(auth) = auth(&greeting) {
            first.push(auth);
        }
        if greeting.database != 0 {
            first.push(select(greeting.database));
        }
        // Elsewhere the answer to the HELLO tells, for which nobody needs a right.
        let is_asked = !greeting.hello && self.sends_elsewhere && greeting.of_kind.is_some();
        if is_asked {
            first.push(member());
        }
        let own = first.len();
        let subscribes = wishes.iter().any(|wish| begins_with(wish, b"SUBSCRIBE"));
        first.extend(wishes);
        let (replies, answer) = self.exchange_and_more(&first, command, behind).await?;
        let hello_refused = greeting.hello.then(|| server_error(&replies[0])).flatten();
        if let Some(error) = hello_refused {
            match error.code() {
                "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" | "LOADING" | "BUSY" | "MASTERDOWN" => {
                    return self.spoil(refusal(error, true));
                }
                _ => {}
            }
            // A server or proxy that knows only RESP2 knows no HELLO (before Redis 6), or not version 3; in which words
            // it says so is its own affair.
            self.pushes = false;
            if subscribes {
                // In RESP2 a connection that has subscribed takes no questions any more.
                self.usable = false;
                self.outdated = true;
                return Err(StoreError::unreachable("the server does not speak RESP3"));
            }
            if greeting.password.is_none() {
                self.check(&greeting, &first[1..own], &replies[1..own])?;
                if let Some(server) = greeting.of_kind.as_ref().filter(|_| self.sends_elsewhere) {
                    let (_, said) = self.exchange(&[], &member()).await?;
                    self.check_member(server, &said)?;
                }
                return Ok(answer);
            }
            // The password went with the HELLO. If the question was carried out all the same, asking again changes
            // nothing.
            let plain = Greeting { hello: false, ..greeting };
            return Box::pin(self.greet_and_ask(plain, Vec::new(), command, behind)).await;
        }
        if let Some(server) = greeting.of_kind.as_ref().filter(|_| greeting.hello) {
            self.check_mode(server, mode(&replies[0])).await?;
        }
        self.check(&greeting, &first[..own], &replies[..own])?;
        self.note_wishes(&first[own..], &replies[own..]);
        Ok(answer)
    }

    /// Asks several questions in one flight, with the greeting if that is due. Their answers are given as they are, even
    /// if they are errors. For connections on which nothing is pushed.
    ///
    /// # Errors
    /// The greeting was refused, or the connection is broken.
    pub(in crate::backend::redis) async fn greet_and_ask_all(
        &mut self,
        commands: &[Cmd],
    ) -> Result<Vec<Value>, StoreError> {
        let Some((last, others)) = commands.split_last() else { return Ok(Vec::new()) };
        let greeting = self.greeting.take();
        let mut first: Vec<Cmd> = greeting.as_ref().and_then(auth).into_iter().collect();
        let own = first.len();
        first.extend_from_slice(others);
        let (mut answers, answer) = self.exchange(&first, last).await?;
        if let Some(greeting) = greeting {
            self.check(&greeting, &first[..own], &answers[..own])?;
        }
        answers.drain(..own);
        answers.push(answer);
        Ok(answers)
    }

    /// Whether the answers to the greeting allow the answer to the question to stand.
    fn check(&mut self, greeting: &Greeting, first: &[Cmd], replies: &[Value]) -> Result<(), StoreError> {
        for (asked, reply) in first.iter().zip(replies) {
            match server_error(reply) {
                said if begins_with(asked, b"CLUSTER") => {
                    if let Some((server, _)) = greeting.of_kind.as_ref().zip(said) {
                        self.check_member(server, reply)?;
                    }
                }
                None => {}
                Some(error) if begins_with(asked, b"SELECT") && !error.code().starts_with("NO") => {
                    let text = format!("database {}: {}", greeting.database, describe(error));
                    return self.spoil(StoreError::Config(text));
                }
                Some(error) => return self.spoil(refusal(error, true)),
            }
        }
        Ok(())
    }

    /// Whether the server is what the URL says, by its own word. Servers that are no cluster are each taken for the whole of
    /// it, so that a lock would be held on every one of them.
    async fn check_mode(&mut self, server: &Address, mode: Option<&str>) -> Result<(), StoreError> {
        match mode {
            Some("sentinel") => self.spoil(StoreError::Config(
                "this is a Redis Sentinel: use redis-sentinel:// (rediss-sentinel:// with TLS)".into(),
            )),
            // There are nodes that say so all the same, but they have an identity.
            Some("standalone") if self.sends_elsewhere => {
                match server_error(&self.exchange(&[], &member()).await?.1) {
                    Some(_) => self.spoil(no_node(server)),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// The same by the answer to a question that only a node of a cluster answers, if this user may ask it.
    fn check_member(&mut self, server: &Address, said: &Value) -> Result<(), StoreError> {
        let is_none = |details: &str| details.contains("cluster support disabled");
        match server_error(said).and_then(|error| error.details()).is_some_and(is_none) {
            true => self.spoil(no_node(server)),
            false => Ok(()),
        }
    }

    /// The greeting failed, so the question ran without the rights or the database it was meant for: whatever it did
    /// has to be undone.
    fn spoil<T>(&mut self, error: StoreError) -> Result<T, StoreError> {
        self.usable = false;
        self.misrouted = true;
        Err(error)
    }
}

fn hello(greeting: &Greeting) -> Cmd {
    let mut command = redis::cmd("HELLO");
    command.arg(3);
    if let Some(password) = &greeting.password {
        command.arg("AUTH").arg(greeting.username.as_deref().unwrap_or("default")).arg(password);
    }
    command
}

/// What the answer to a `HELLO` says of the server: `standalone`, `sentinel` or `cluster`.
fn mode(hello: &Value) -> Option<&str> {
    let Value::Map(fields) = hello else { return None };
    let (_, mode) = fields.iter().find(|(name, _)| text(Some(name)) == Some("mode"))?;
    text(Some(mode))
}

fn no_node(server: &Address) -> StoreError {
    StoreError::Config(format!("{server} is no node of a Redis Cluster: use redis:// or redlock://"))
}

/// What only a node of a cluster answers.
fn member() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("MYID");
    command
}

fn auth(greeting: &Greeting) -> Option<Cmd> {
    let password = greeting.password.as_deref()?;
    let mut command = redis::cmd("AUTH");
    if let Some(username) = &greeting.username {
        command.arg(username);
    }
    command.arg(password);
    Some(command)
}

fn select(database: u32) -> Cmd {
    let mut command = redis::cmd("SELECT");
    command.arg(database);
    command
}
