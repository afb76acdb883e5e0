//! The store of one client: an object for each lock.

use std::cell::RefCell;
use std::convert::Infallible;
use std::iter;
use std::time::Duration;

use futures_util::future::try_join_all;
use serde::Deserialize;
use tokio::time::sleep;

use super::bucket::{Bucket, NOT_MODIFIED};
use super::location::Location;
use crate::backend::StoreError;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::dated::{Change, Dated, DatedStore, Found, Noticed, Reading, Written};
use crate::backend::ledger::polling::Shown;
use crate::backend::ledger::{Contender, Ledger};
use crate::backend::net::http::Reply;
use crate::lock::LockName;

/// How many connections read the objects of a list at the same time, at most, ...
const READERS: usize = 16;
/// ... and how many objects make another one worth its handshake.
const OBJECTS: usize = 8;

/// What a document has besides its ledger.
#[derive(Default, Deserialize)]
struct Mark {
    /// The number of the attempt that has written it.
    #[serde(default)]
    attempt: Option<String>,
}

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: &Location) -> Contender<DatedStore<Bucket>> {
    Contender::new(DatedStore::new(Bucket::with(location.place.route.client(), location), None))
}

/// Returns a ledger as it is stored by this attempt: no two objects are the same, and so no two entity tags.
fn document(ledger: &Ledger, attempt: &str) -> String {
    let ledger = serde_json::to_string(ledger).expect("texts and numbers are JSON");
    format!("{{\"attempt\":\"{attempt}\",{}", &ledger[1..])
}

/// Reads the object in a reply, or that there is none.
fn reading(reply: &Reply) -> Result<Reading<String>, StoreError> {
    let found = match reply.status.is_success() {
        false => Found::nothing(),
        true => {
            let untagged = "the server does not reply as S3 does: an object without an ETag";
            let tag = reply.header("etag").ok_or_else(|| StoreError::Config(untagged.into()))?;
            Found {
                version: Some(tag.to_owned()),
                ledger: Ledger::parse(&reply.body).map_err(|why| why.to_string()),
                length: reply.body.len(),
                attempt: serde_json::from_slice::<Mark>(&reply.body).unwrap_or_default().attempt,
            }
        }
    };
    Ok(Reading { found, time: reply.server_time()?, sent: reply.sent })
}

impl Dated for Bucket {
    /// The entity tag.
    type Version = String;
    type Gate = Infallible;

    /// Some 2,500 waiters: each change writes all of it.
    const LONGEST: usize = 1 << 20;

    async fn connect(&mut self) -> Result<(), StoreError> {
        self.client.connect().await
    }

    fn clock(&self) -> Option<Shown> {
        self.clock
    }

    fn key(&self, name: &LockName) -> String {
        self.location.key(name)
    }

    fn contains_name(&self, name: &LockName) -> bool {
        self.location.contains_name(name)
    }

    fn described(&self, key: &str) -> String {
        format!("the object {key} in the bucket {}", self.location.place.name)
    }

    async fn read(&mut self, key: &str) -> Result<Reading<String>, StoreError> {
        reading(&self.get(key, None).await?)
    }

    async fn write(&mut self, key: &str, change: &Change<'_, String>) -> Result<Written<String>, StoreError> {
        let text = document(change.ledger, change.attempt);
        let Some(tag) = self.put(key, change.version.map(String::as_str), &text).await? else {
            return Ok(Written::Refused(None));
        };
        Ok(Written::Stored(Found {
            version: Some(tag),
            ledger: Ok(change.ledger.clone()),
            length: text.len(),
            attempt: Some(change.attempt.to_owned()),
        }))
    }

    async fn refresh(&mut self, lease: Duration) {
        self.client.refresh(lease).await;
    }

    async fn visit(&mut self, visit: impl FnMut(Option<LockName>, Option<Ledger>)) -> Result<(), StoreError> {
        let locks = self.list().await?;
        let count = locks.len().div_ceil(OBJECTS).clamp(1, READERS);
        let mut others: Vec<Bucket> = (1..count).map(|_| self.twin()).collect();
        let readers = iter::once(self).chain(&mut others).enumerate();
        let visit = RefCell::new(visit);
        // Each one reads every `count`-th object.
        let read = readers.map(async |(first, reader)| {
            for (key, name) in locks.iter().skip(first).step_by(count) {
                let found = reader.read(key).await?.found;
                if found.version.is_some() {
                    visit.borrow_mut()(name.clone(), found.ledger.ok());
                }
            }
            Ok(())
        });
        try_join_all(read).await.map(drop)
    }

    async fn next(
        &mut self,
        key: &str,
        pause: Duration,
        seen: Option<&String>,
    ) -> Result<Noticed<String>, StoreError> {
        sleep(pause).await;
        let reply = self.get(key, seen.map(String::as_str)).await?;
        match reply.status.as_u16() {
            NOT_MODIFIED => Ok(Noticed::Unchanged),
            _ => Ok(Noticed::Changed(Box::new(reading(&reply)?))),
        }
    }

    fn explained(&self, late: StoreError) -> StoreError {
        self.location.place.route.explained(late)
    }

    async fn examine(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        self.examine_bucket(diagnosis).await
    }
}
