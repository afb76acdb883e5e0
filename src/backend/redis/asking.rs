//! One question to the server that we are connected to.

use redis::Value;

use super::RedisStore;
use super::connection::{CommandReply, Connection, RequestOptions};
use super::doctor::acl_probe;
use super::script::{By, Question};
use crate::backend::StoreError;

impl RedisStore {
    /// Asks one question in one flight, or in two if the server has to be sent the script.
    /// The connection is put back only when the answer has come in full, so that a dropped future, a time-out or a fault
    /// leaves none whose next answer might belong to an earlier question.
    pub(super) async fn ask_here(
        &mut self,
        question: &Question<'_>,
        wishes: RequestOptions<'_>,
    ) -> Result<CommandReply, StoreError> {
        let mut connection =
            self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))?;
        self.route.doubt(&self.location);
        let mut answer = self.route.beside(connection.ask_script(question, wishes)).await;
        if connection.is_outdated() {
            self.old_protocol = true;
            connection = self.route.open(&self.location, true).await?;
            answer = connection.ask_script(question, RequestOptions::default()).await;
        }
        self.pubsub_denied |= !connection.can_listen();
        if connection.is_usable() && !self.route.leaves(&answer) {
            self.connection = Some(connection);
        } else if connection.is_misrouted() {
            self.misrouted = Some(connection);
        }
        self.examined |= matches!(answer, Ok(CommandReply::Value(Value::Array(_))));
        answer.map_err(|error| acl_probe::named(error, &self.location))
    }
}

impl Connection {
    /// Asks one question: the script by its digest, and in a second flight by its text if the server does not know the
    /// digest or this user may not use it (no right to EVALSHA). A question that is answered so has changed nothing.
    ///
    /// The text is larger than a TCP initial window, so it costs a round trip of its own on a new connection; and it is
    /// larger than what a server accepts from a client that has not authenticated yet. So it never travels with a
    /// greeting.
    pub(super) async fn ask_script(
        &mut self,
        question: &Question<'_>,
        wishes: RequestOptions<'_>,
    ) -> Result<CommandReply, StoreError> {
        let (lock, asking) = (&question.keys.lock, self.asking());
        if !self.is_text_due() {
            let patience = self.patience();
            match self.ask(lock, &question.command(By::Digest, asking), wishes).await? {
                CommandReply::NoScript => {}
                answer => return Ok(answer),
            }
            if let Some(patience) = patience {
                // Without it a time-out would leave a claim on its way with nothing behind it that takes it back.
                self.set_patience(patience);
            }
        }
        self.ask(lock, &question.command(By::Text, asking), wishes).await
    }
}

/// The answer to a question, which is a list.
///
/// # Errors
/// It is not.
pub(super) fn values_of(answer: CommandReply) -> Result<Vec<Value>, StoreError> {
    match answer {
        CommandReply::Value(Value::Array(values)) => Ok(values),
        CommandReply::Value(other) => {
            Err(StoreError::unanswered(format!("the server answered a script with {}", kind_of(&other))))
        }
        CommandReply::NoScript => Err(StoreError::unanswered("the server does not take the script")),
        CommandReply::Elsewhere(_) => Err(StoreError::unanswered("the server names another one")),
        CommandReply::Resharding(text) => Err(StoreError::resharding(text)),
    }
}

/// What a reply is, without quoting a server that may be anything.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a text",
        _ => "something else",
    }
}
