//! The greeting: protocol, user and database, said with the first question, and what its answers mean for that question's.

use redis::{Cmd, Value};

use super::{Connection, begins_with, server_error};
use crate::backend::StoreError;
use crate::backend::redis::errors::{describe, refusal};

/// What has to be said first; goes with the first question.
pub(super) struct Greeting {
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: u32,
    pub(super) hello: bool,
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
                return self.check(&greeting, &first[1..own], &replies[1..own]).map(|()| answer);
            }
            // The password went with the HELLO. If the question was carried out all the same, asking again changes
            // nothing.
            let plain = Greeting { hello: false, ..greeting };
            return Box::pin(self.greet_and_ask(plain, Vec::new(), command, behind)).await;
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

    /// The greeting failed, so the question ran without the rights or the database it was meant for: whatever it did
    /// has to be undone.
    fn spoil<T>(&mut self, error: StoreError) -> Result<T, StoreError> {
        self.usable = false;
        self.spoiled = true;
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
