//! The meaning of a reply for the caller, independent of the request.

use redis::Value;

use super::{Connection, server_error};
use crate::backend::StoreError;
use crate::backend::redis::errors::{DependentRole, Lack, describe, is_no_script, is_resharding, refusal};
use crate::backend::redis::redirect::Redirect;

/// The outcome of a request.
#[derive(Debug)]
pub enum CommandReply {
    /// The server's reply.
    Value(Value),
    /// The server does not have the script cached, or this user may not use EVALSHA.
    NoScript,
    /// The request has to be sent to another node of the cluster.
    Elsewhere(Redirect),
    /// The key has another type than the command is for. Contains the message of the server.
    WrongType(String),
    /// The slot is migrating from one node to another, and not all keys are on this one. Contains the message of the
    /// server.
    Resharding(String),
}

impl Connection {
    /// Returns the outcome of a request with this reply; `with_handshake` if the handshake was sent with it.
    ///
    /// # Errors
    /// The server has rejected the request.
    pub(super) fn interpret(
        &mut self,
        reply: Value,
        with_handshake: bool,
    ) -> Result<CommandReply, StoreError> {
        self.role = server_error(&reply).and_then(DependentRole::of);
        self.lacks_key = server_error(&reply).and_then(Lack::of) == Some(Lack::Key);
        let Value::ServerError(error) = reply else { return Ok(CommandReply::Value(reply)) };
        if is_no_script(&error) {
            self.accepts_evalsha &= error.code() == "NOSCRIPT";
            return Ok(CommandReply::NoScript);
        }
        if self.follows_redirects && is_resharding(&error) {
            return Ok(CommandReply::Resharding(describe(&error)));
        }
        if error.code() == "WRONGTYPE" {
            return Ok(CommandReply::WrongType(describe(&error)));
        }
        match Redirect::read(&error).filter(|_| self.follows_redirects) {
            Some(redirect) => Ok(CommandReply::Elsewhere(redirect)),
            None => Err(refusal(&error, with_handshake)),
        }
    }
}

/// Returns the reply of the server.
///
/// # Errors
/// There is none: the request was rejected.
pub fn value_of(reply: CommandReply) -> Result<Value, StoreError> {
    match reply {
        CommandReply::Value(value) => Ok(value),
        CommandReply::NoScript => Err(StoreError::unanswered("the server does not accept the script")),
        CommandReply::Elsewhere(_) => Err(StoreError::unanswered("the server redirects to another one")),
        CommandReply::WrongType(text) => Err(StoreError::unanswered(text)),
        CommandReply::Resharding(text) => Err(StoreError::resharding(text)),
    }
}
