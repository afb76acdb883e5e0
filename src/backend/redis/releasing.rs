//! Giving a lock back, over whichever connection it was granted.

use std::time::Duration;

use super::RedisStore;
use super::connection::{Asking, Connection, RequestOptions};
use super::keys::Keys;
use super::script::{Operation, Question};
use crate::backend::StoreError;
use crate::lock::{Claim, Record};

impl RedisStore {
    /// Takes a lock back that was granted to the wrong user or in the wrong database.
    pub(super) async fn undo(&mut self, claim: &Claim) {
        if let Some(connection) = self.misrouted.take() {
            // A refusal here means that the claim was refused too.
            let _ = self.take_back(connection, claim).await;
        }
    }

    /// Takes a lock back over the connection that it was granted over, whoever is the one to ask by now.
    pub(super) async fn take_back(
        &self,
        mut connection: Connection,
        claim: &Claim,
    ) -> Result<(), StoreError> {
        let keys = self.keys(&claim.name);
        connection.set_asking(Asking::No);
        let release = release(&keys, claim, Duration::ZERO, None);
        connection.ask_script(&release, RequestOptions::default()).await.map(drop)
    }
}

/// Gives a lock back, and leaves the record, if there is one; it is kept without us for the `rest`.
pub(super) fn release<'a>(
    keys: &'a Keys,
    claim: &'a Claim,
    rest: Duration,
    record: Option<&Record>,
) -> Question<'a> {
    let arguments = vec![rest.as_millis().to_string(), record.map(text_of).unwrap_or_default()];
    Question {
        operation: Operation::Release,
        keys,
        token: claim.token.reveal(),
        arguments,
        history: &keys.history,
    }
}

/// A record as it is stored; nothing if it could not be written as JSON, which no record is known to be.
pub(super) fn text_of(record: &Record) -> String {
    serde_json::to_string(record).unwrap_or_default()
}
