//! One question to the server that we are connected to.

use redis::Value;

use super::RedisStore;
use super::connection::{Answer, Wishes};
use super::examining::beforehand;
use super::script::{By, Question};
use crate::backend::StoreError;

impl RedisStore {
    /// Asks one question in one flight; in two when the server has forgotten the script (`SCRIPT FLUSH`, a fail-over).
    /// The connection is put back only when the answer has come in full, so that a dropped future, a time-out or a fault
    /// leaves none whose next answer might belong to an earlier question.
    pub(super) async fn ask_here(
        &mut self,
        question: &Question<'_>,
        wishes: Wishes<'_>,
    ) -> Result<Answer, StoreError> {
        let mut connection =
            self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))?;
        let lock = &question.keys.lock;
        let by = if self.known { By::Digest } else { By::Text };
        self.route.doubt(&self.location);
        let asking = connection.asking();
        let question_of = |by| question.command(by, asking);
        let mut answer = self.route.beside(connection.ask(lock, &question_of(by), wishes)).await;
        if connection.is_outdated() {
            self.old_protocol = true;
            connection = self.route.open(&self.location, true).await?;
            answer = connection.ask(lock, &question_of(By::Text), Wishes::default()).await;
        }
        if matches!(answer, Ok(Answer::NoScript)) {
            answer = connection.ask(lock, &question_of(By::Text), wishes).await;
        }
        self.deaf |= !connection.can_listen();
        if connection.is_usable() && !self.route.leaves(&answer) {
            self.connection = Some(connection);
        } else if connection.is_spoiled() {
            self.spoiled = Some(connection);
        }
        self.known |= matches!(answer, Ok(Answer::Value(Value::Array(_))));
        answer.map_err(|error| beforehand::named(error, &self.location))
    }
}

/// The answer to a question, which is a list.
///
/// # Errors
/// It is not.
pub(super) fn values_of(answer: Answer) -> Result<Vec<Value>, StoreError> {
    match answer {
        Answer::Value(Value::Array(values)) => Ok(values),
        Answer::Value(other) => {
            Err(StoreError::unanswered(format!("the server answered a script with {}", kind_of(&other))))
        }
        Answer::NoScript => Err(StoreError::unanswered("the server does not take the script")),
        Answer::Elsewhere(_) => Err(StoreError::unanswered("the server names another one")),
        Answer::Between(text) => Err(StoreError::between(text)),
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
