//! What the answer to a question means for the one who asks, whatever the question was.

use redis::Value;

use super::Connection;
use crate::backend::StoreError;
use crate::backend::redis::cluster::Redirect;
use crate::backend::redis::errors::{describe, is_no_script, is_resharding, refusal};

/// What came of a question.
#[derive(Debug)]
pub(in crate::backend::redis) enum CommandReply {
    /// This.
    Value(Value),
    /// The server does not know the script by its digest, or this user may not name it so.
    NoScript,
    /// Another node of the cluster is to be asked.
    Elsewhere(Redirect),
    /// The slot is on its way from one node to another: not all of the keys are here. Tells what the server says.
    Resharding(String),
}

impl Connection {
    /// What came of a question that was answered so; `greeted` if the greeting went with it.
    ///
    /// # Errors
    /// It was refused.
    pub(super) fn understood(&mut self, answer: Value, greeted: bool) -> Result<CommandReply, StoreError> {
        let Value::ServerError(error) = answer else { return Ok(CommandReply::Value(answer)) };
        if is_no_script(&error) {
            self.takes_digests &= error.code() == "NOSCRIPT";
            return Ok(CommandReply::NoScript);
        }
        if self.sends_elsewhere && is_resharding(&error) {
            return Ok(CommandReply::Resharding(describe(&error)));
        }
        match Redirect::read(&error).filter(|_| self.sends_elsewhere) {
            Some(redirect) => Ok(CommandReply::Elsewhere(redirect)),
            None => Err(refusal(&error, greeted)),
        }
    }
}
