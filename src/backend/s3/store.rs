//! The store of one client: an object for each lock.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;

use super::bucket::{Bucket, Content, Reading, Written};
use super::location::Location;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{DocumentStore, Documents, Revision, Seen, Shortcut};
use crate::backend::ledger::polling::{CLAIM_WITHIN, CLOCK_LAG, Poller, at, back_off};
use crate::backend::ledger::{Contender, Ledger, Purpose, Store, WaiterEntry};
use crate::backend::{Change, Outlook, Reply, StoreError, TryReply};
use crate::lock::LockName;
use crate::random;

/// A ledger beyond this length, of some 2,500 waiters, is not made longer: each change writes all of it.
const LONGEST: usize = 1 << 20;

/// A client of a bucket. If it ends without a release, its hold ends with its lease, and its queue position when its turn has
/// passed.
pub(super) struct S3Store {
    pub location: Location,
    bucket: Bucket,
    poller: Poller,
    /// What was read after a conflict: the next attempt is decided on it.
    unread: Option<(LockName, Reading)>,
    /// How many conflicts there were in this change.
    conflicts: u32,
    /// The length of what was read last.
    length: usize,
    /// What was read last for a hold is not a ledger: it has lost its lock, and the object is another program's.
    is_foreign: bool,
}

/// What a document has besides its ledger.
#[derive(Default, Deserialize)]
struct Mark {
    /// The number of the attempt that has written it.
    #[serde(default)]
    attempt: Option<String>,
}

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: Location) -> Contender<S3Store> {
    let bucket = Bucket::new(&location);
    Contender::new(S3Store {
        location,
        bucket,
        poller: Poller::default(),
        unread: None,
        conflicts: 0,
        length: 0,
        is_foreign: false,
    })
}

/// Returns a ledger as it is stored by this attempt: no two objects are the same, and so no two entity tags.
fn document(ledger: &Ledger, attempt: &str) -> Vec<u8> {
    let mut text = format!("{{\"attempt\":\"{attempt}\",").into_bytes();
    text.extend_from_slice(&ledger.to_json()[1..]);
    text
}

/// Returns whether an object was written by this attempt.
fn is_of(content: &Content, attempt: &str) -> bool {
    let Content::Object(text, _) = content else { return false };
    serde_json::from_slice::<Mark>(text).unwrap_or_default().attempt.as_deref() == Some(attempt)
}

impl S3Store {
    /// Writes a document, and finds out whether it is stored. Returns its entity tag; `None` if another client was faster.
    async fn store(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        version: Option<&str>,
        ledger: &Ledger,
    ) -> Result<Option<String>, StoreError> {
        let (key, attempt) = (self.location.key(name), random::id());
        let error = match self.bucket.write(&key, version, &document(ledger, &attempt)).await {
            Ok(Written::Stored(tag)) => return Ok(Some(tag)),
            Ok(Written::Changed | Written::Unknown) => None,
            // The store asks its clients to send less.
            Err(error @ StoreError::Unavailable { outlook: Outlook::Transient, .. }) => return Err(error),
            Err(error @ StoreError::Unavailable { maybe_applied: true, .. }) => Some(error),
            Err(error) => return Err(error),
        };
        if error.is_none() && matches!(purpose, Purpose::Claim(_)) {
            // The holder does not wait: its lease goes on.
            back_off(self.conflicts).await;
            self.conflicts += 1;
        }
        // Perhaps it is this very write that has changed the object, and its first reply was lost.
        let reading = self.bucket.read(&key, None).await.map_err(|later| error.clone().unwrap_or(later))?;
        match (&reading.content, error) {
            (content @ Content::Object(_, tag), _) if is_of(content, &attempt) => Ok(Some(tag.clone())),
            (_, Some(error)) => Err(error),
            (_, None) => {
                self.unread = Some((name.clone(), reading));
                Ok(None)
            }
        }
    }

    /// Returns the names of the locks whose ledgers are like this.
    async fn names(&mut self, is_meant: impl Fn(&Ledger) -> bool) -> Result<Vec<LockName>, StoreError> {
        let mut names = Vec::new();
        for (key, name) in self.bucket.list().await? {
            let Content::Object(text, _) = self.bucket.read(&key, None).await?.content else { continue };
            // One that cannot be read may be in use: its state says why it is unknown.
            let ledger = Ledger::parse(&text).ok();
            if ledger.as_ref().is_none_or(&is_meant) {
                names.extend(name.or_else(|| ledger?.lock_name()));
            }
        }
        Ok(names)
    }

    /// Reads the object for the waiter, and returns what has changed for it.
    async fn look(&mut self, name: &LockName) -> Result<Option<Change>, StoreError> {
        let key = self.location.key(name);
        let (ledger, tag) = match self.bucket.read(&key, self.poller.seen()).await?.content {
            Content::Unchanged => return Ok(None),
            Content::Missing => return Ok(self.poller.change(None)),
            Content::Object(text, tag) => (Ledger::parse(&text).ok(), tag),
        };
        Ok(self.poller.change(ledger.as_ref().map(|ledger| (ledger, tag))))
    }
}

impl DocumentStore for S3Store {
    /// The entity tag; `None` if there is no object.
    type Version = Option<String>;

    async fn load(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        _: &Shortcut,
        _: Option<&Seen<Self::Version>>,
    ) -> Result<Seen<Self::Version>, StoreError> {
        let key = self.location.key(name);
        let reading = match self.unread.take().filter(|(of, _)| of == name) {
            Some((_, reading)) => reading,
            None => {
                self.conflicts = 0;
                self.bucket.read(&key, None).await?
            }
        };
        let Reading { content, date, sent, .. } = reading;
        let now = at(date);
        (self.length, self.is_foreign) = (0, false);
        let (ledger, version) = match content {
            Content::Missing | Content::Unchanged => (Ledger::default(), None),
            Content::Object(text, tag) => {
                self.length = text.len();
                let ledger = match (Ledger::parse(&text), purpose) {
                    (Ok(ledger), _) => ledger,
                    (Err(_), Purpose::Renew(_) | Purpose::Release(_)) => {
                        self.is_foreign = true;
                        Ledger::of_foreign_holder(0)
                    }
                    (Err(why), _) => {
                        let bucket = &self.location.bucket;
                        return Err(StoreError::Config(format!(
                            "the object {key} in the bucket {bucket} is not a lock of this dlock: {why}"
                        )));
                    }
                };
                (ledger, Some(tag))
            }
        };
        self.poller.note_position(name, &ledger);
        Ok(Seen { ledger, version, now, sent, occupants: None })
    }

    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        self.poller.is_subscribed(name, waiter)
    }

    async fn swap(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        version: Self::Version,
        revision: Revision<'_>,
    ) -> Result<Option<Self::Version>, StoreError> {
        if self.is_foreign {
            self.poller.stop();
            return Ok(Some(version));
        }
        let ledger = match self.location.contains_name(name) {
            true => Cow::Borrowed(revision.ledger),
            false => Cow::Owned(revision.ledger.with_name(name)),
        };
        let Some(tag) = self.store(name, purpose, version.as_deref(), &ledger).await? else {
            return Ok(None);
        };
        self.poller.note(name, revision.effect, &ledger, Some(&tag));
        Ok(Some(Some(tag)))
    }

    fn shown(&self) -> Option<Duration> {
        self.bucket.date()
    }

    fn clock_lag(&self) -> Duration {
        CLOCK_LAG
    }

    fn is_read_only(&self) -> bool {
        self.length > LONGEST
    }

    fn polled(&self) -> Option<Duration> {
        Some(CLAIM_WITHIN)
    }
}

impl Store for S3Store {
    type Shape = Documents<Option<String>>;

    fn display(&self) -> &str {
        &self.location.display
    }

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(self.bucket.connect())
    }

    fn list(&mut self) -> TryReply<'_, Vec<LockName>> {
        Box::pin(self.names(|ledger| !ledger.is_idle()))
    }

    fn list_with_history(&mut self) -> TryReply<'_, Vec<LockName>> {
        Box::pin(self.names(|ledger| !ledger.history.is_empty()))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            loop {
                let name = self.poller.due().await;
                match self.look(&name).await {
                    Ok(None) => {}
                    Ok(Some(change)) => return change,
                    Err(_) => return Change::Disconnected,
                }
            }
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.examine_bucket(diagnosis))
    }
}
