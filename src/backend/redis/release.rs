//! Releasing a lock over the connection that it was granted on.

use std::time::Duration;

use super::connection::{Connection, RequestOptions};
use super::keys::Keys;
use super::redirect::Asking;
use super::script::{Operation, ScriptRequest, millis};
use super::store::RedisStore;
use crate::backend::StoreError;
use crate::lock::{Claim, Record};

impl RedisStore {
    /// Releases a lock over the connection that it was granted on, even if another server has become the one to use.
    pub(super) async fn take_back(
        &self,
        mut connection: Connection,
        claim: &Claim,
    ) -> Result<(), StoreError> {
        let keys = self.keys(&claim.name);
        connection.asking = Asking::No;
        let release = release(&keys, claim, Duration::ZERO, None);
        connection.run_script(&release, RequestOptions::default()).await.map(drop)
    }
}

/// Returns the request that releases a lock and stores the record, if there is one; the lock is kept without its owner
/// for the `rest`.
pub(super) fn release<'a>(
    keys: &'a Keys,
    claim: &'a Claim,
    rest: Duration,
    record: Option<&Record>,
) -> ScriptRequest<'a> {
    let release = Operation::Release { rest: millis(rest), record: record.map(text_of) };
    ScriptRequest::new(release, keys, claim.token.reveal())
}

/// A record as it is stored; an empty string if it cannot be written as JSON, which is not known to happen.
pub(super) fn text_of(record: &Record) -> String {
    serde_json::to_string(record).unwrap_or_default()
}
