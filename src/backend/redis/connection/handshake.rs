//! The handshake: protocol, user and database. It is sent with the first request, and its replies decide whether the
//! reply to that request is valid.

use redis::{Cmd, Value};

use super::{Connection, has_name, server_error};
use crate::backend::StoreError;
use crate::backend::net::Address;
use crate::backend::redis::errors::{describe, is_cluster_disabled, refusal};
use crate::backend::redis::location::Location;
use crate::backend::redis::reply::text;

/// What a connection has to send first, together with the first request.
pub(super) struct Handshake {
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: u32,
    pub(super) hello: bool,
    /// The address of the server, if the handshake is to verify that it is of the kind that the URL says.
    pub(super) verify_kind: Option<Address>,
}

impl Handshake {
    /// Returns the handshake with a server that stores locks, whose kind is not verified.
    pub(super) fn of(location: &Location, password: Option<String>) -> Handshake {
        let (username, database) = (location.username().map(str::to_owned), location.database);
        Handshake { username, password, database, hello: location.resp3, verify_kind: None }
    }
}

impl Connection {
    /// Sends several commands in one write, after the handshake if it is due, and one more that is not waited for.
    /// Returns the replies unchanged, even if they are errors: those to `options`, none if the server has rejected
    /// RESP3, and that to the command.
    ///
    /// # Errors
    /// The handshake was rejected, or the connection is broken.
    pub(super) async fn exchange_greeted(
        &mut self,
        options: &[Cmd],
        command: &Cmd,
        trailing: Option<&Cmd>,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        match self.handshake.take() {
            Some(handshake) => self.handshake_and_request(handshake, options, command, trailing).await,
            None => self.exchange(options, command, trailing).await,
        }
    }

    async fn handshake_and_request(
        &mut self,
        handshake: Handshake,
        options: &[Cmd],
        command: &Cmd,
        trailing: Option<&Cmd>,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        let mut first = Vec::new();
        if handshake.hello {
            first.push(hello(&handshake));
        } else if let Some(auth) = auth(&handshake) {
            first.push(auth);
        }
        if handshake.database != 0 {
            first.push(redis::cmd("SELECT").arg(handshake.database).clone());
        }
        // With RESP3 the reply to HELLO, which needs no permission, contains the kind of the server.
        let checks_membership = !handshake.hello && self.follows_redirects && handshake.verify_kind.is_some();
        if checks_membership {
            first.push(member());
        }
        let own_count = first.len();
        let subscribes = options.iter().any(|option| has_name(option, b"SUBSCRIBE"));
        first.extend_from_slice(options);
        let reply_limit = self.reply_limit.clone();
        let (mut replies, reply) = self.exchange(&first, command, trailing).await?;
        let hello_refused = handshake.hello.then(|| server_error(&replies[0])).flatten();
        if let Some(error) = hello_refused {
            match error.code() {
                "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" | "LOADING" | "BUSY" | "MASTERDOWN" => {
                    return self.fail(refusal(error, true));
                }
                _ => {}
            }
            // A server or proxy that supports only RESP2 rejects HELLO (before Redis 6) or its version 3; the text of
            // the error varies.
            self.pushes = false;
            if subscribes {
                // In RESP2 a connection that has subscribed accepts no other requests.
                self.usable = false;
                self.resp2_required = true;
                return Err(StoreError::unreachable("the server does not speak RESP3"));
            }
            if handshake.password.is_none() {
                self.check(&handshake, &first[1..own_count], &replies[1..own_count])?;
                if let Some(server) = handshake.verify_kind.as_ref().filter(|_| self.follows_redirects) {
                    let (_, member_reply) = self.exchange(&[], &member(), None).await?;
                    self.check_member(server, &member_reply)?;
                }
                return Ok((Vec::new(), reply));
            }
            // The password was sent with HELLO. If the request was executed nevertheless, sending it again changes
            // nothing.
            let plain = Handshake { hello: false, ..handshake };
            // A claim whose reply does not arrive in time has to be released here too.
            self.reply_limit = reply_limit;
            return Box::pin(self.handshake_and_request(plain, &[], command, trailing)).await;
        }
        if let Some(server) = handshake.verify_kind.as_ref().filter(|_| handshake.hello) {
            self.check_mode(server, mode(&replies[0])).await?;
        }
        self.check(&handshake, &first[..own_count], &replies[..own_count])?;
        Ok((replies.split_off(own_count), reply))
    }

    /// Sends several requests in one round trip. See [`Connection::exchange_greeted`]. For connections without pushes.
    ///
    /// # Errors
    /// The handshake was rejected, or the connection is broken.
    pub async fn request_all_raw(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, StoreError> {
        let Some((last, others)) = commands.split_last() else { return Ok(Vec::new()) };
        let (mut replies, reply) = self.exchange_greeted(others, last, None).await?;
        replies.push(reply);
        Ok(replies)
    }

    /// Sends one request in the same way.
    ///
    /// # Errors
    /// The handshake was rejected, or the connection is broken.
    pub async fn request_raw(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.exchange_greeted(&[], command, None).await.map(|(_, reply)| reply)
    }

    /// Checks that the handshake succeeded, so that the reply to the request is valid.
    fn check(&mut self, handshake: &Handshake, first: &[Cmd], replies: &[Value]) -> Result<(), StoreError> {
        for (command, reply) in first.iter().zip(replies) {
            match server_error(reply) {
                member_reply if has_name(command, b"CLUSTER") => {
                    if let Some((server, _)) = handshake.verify_kind.as_ref().zip(member_reply) {
                        self.check_member(server, reply)?;
                    }
                }
                None => {}
                Some(error) if has_name(command, b"SELECT") && error.code() == "ERR" => {
                    let text = format!("database {}: {}", handshake.database, describe(error));
                    return self.fail(StoreError::Config(text));
                }
                Some(error) => return self.fail(refusal(error, true)),
            }
        }
        Ok(())
    }

    /// Checks that the server is of the kind that the URL says, by its own statement. Servers that are not cluster
    /// nodes would each be taken for the whole cluster, so that a lock would be held on every one of them.
    async fn check_mode(&mut self, server: &Address, mode: Option<&str>) -> Result<(), StoreError> {
        match mode {
            Some("sentinel") => self.fail(StoreError::Config(
                "this is a Redis Sentinel: use redis-sentinel:// (rediss-sentinel:// with TLS)".into(),
            )),
            // Some nodes report `standalone` nevertheless, but they have a node id.
            Some("standalone") if self.follows_redirects => {
                match server_error(&self.exchange(&[], &member(), None).await?.1) {
                    Some(_) => self.fail(not_a_node(server)),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// The same by the reply to a command that only cluster nodes support, if this user is permitted to send it.
    fn check_member(&mut self, server: &Address, member_reply: &Value) -> Result<(), StoreError> {
        match server_error(member_reply).is_some_and(is_cluster_disabled) {
            true => self.fail(not_a_node(server)),
            false => Ok(()),
        }
    }

    /// The handshake failed, so the request ran without the user or the database it was meant for: its effects have to
    /// be undone.
    fn fail<T>(&mut self, error: StoreError) -> Result<T, StoreError> {
        self.usable = false;
        self.misrouted = true;
        Err(error)
    }
}

fn hello(handshake: &Handshake) -> Cmd {
    let mut command = redis::cmd("HELLO").arg(3).clone();
    if let Some(password) = &handshake.password {
        command.arg("AUTH").arg(handshake.username.as_deref().unwrap_or("default")).arg(password);
    }
    command
}

/// The mode of the server in the reply to `HELLO`: `standalone`, `sentinel` or `cluster`.
fn mode(hello: &Value) -> Option<&str> {
    let Value::Map(fields) = hello else { return None };
    let (_, mode) = fields.iter().find(|(name, _)| text(Some(name)) == Some("mode"))?;
    text(Some(mode))
}

fn not_a_node(server: &Address) -> StoreError {
    StoreError::Config(format!("{server} is not a node of a Redis Cluster: use redis:// or redlock://"))
}

fn member() -> Cmd {
    redis::cmd("CLUSTER").arg("MYID").clone()
}

fn auth(handshake: &Handshake) -> Option<Cmd> {
    let password = handshake.password.as_deref()?;
    let mut command = redis::cmd("AUTH");
    if let Some(username) = &handshake.username {
        command.arg(username);
    }
    command.arg(password);
    Some(command)
}
