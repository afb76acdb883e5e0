//! Waits for changes of one Lease, over a connection of its own, so that other requests need not wait.

use std::pin::Pin;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::api::{Api, GONE, Status, UNAUTHORIZED};
use super::lease::Lease;
use super::location::Location;
use crate::backend::StoreError;
use crate::backend::net::closed;
use crate::backend::net::http::{Lines, Reply};
use crate::clock::Moment;
use crate::random::jitter;

/// After how many seconds the server ends a watch.
const SECONDS: u64 = 300;
/// How long it may be silent then, and before it replies.
const LATE: Duration = Duration::from_secs(10);
/// The pause before a watch that follows one without an event: a server may end them at once.
const PAUSE: Duration = Duration::from_secs(1);

type Begun = Result<Result<Lines, Reply>, StoreError>;

/// The changes of one Lease.
pub(super) struct Watch {
    /// Its name.
    pub lease: String,
    location: Location,
    /// The version that the next event is later than.
    version: String,
    state: State,
    /// There was an event since the watch began.
    is_active: bool,
}

/// The request, and until when there must be a reply, or another line of it. It goes on if the future that waits for it is
/// dropped.
enum State {
    Idle,
    Begun(Pin<Box<dyn Future<Output = Begun>>>, Moment),
    Open(Lines, Moment),
}

/// What a watch reports.
pub(super) enum Event {
    /// The Lease is now like this; `None` if it was deleted.
    Changed(Option<Lease>),
    /// The server does not know any more what has happened since the version: the Lease is to be read again.
    Expired,
}

impl Watch {
    /// Watches a Lease for changes after this version; empty stands for no Lease.
    pub fn new(location: &Location, lease: &str, version: &str) -> Watch {
        Watch {
            lease: lease.to_owned(),
            location: location.clone(),
            version: version.to_owned(),
            state: State::Idle,
            is_active: true,
        }
    }

    /// Waits for the next event. May be dropped and called again.
    ///
    /// # Errors
    /// The server does not reply, or refuses. The watch is over then, and so it is after [`Event::Expired`].
    pub async fn next(&mut self) -> Result<Event, StoreError> {
        loop {
            match &mut self.state {
                State::Idle => {
                    let (location, version) = (self.location.clone(), self.version.clone());
                    let lease = self.lease.clone();
                    let pause = if self.is_active { Duration::ZERO } else { PAUSE };
                    self.is_active = false;
                    let pause = pause + jitter(pause);
                    let request = Box::pin(async move {
                        sleep(pause).await;
                        Api::new(&location).watch(&lease, &version, SECONDS).await
                    });
                    self.state = State::Begun(request, Moment::now() + pause + LATE);
                }
                State::Begun(request, until) => match before(*until, request).await? {
                    Ok(lines) => self.state = State::Open(lines, silent_until()),
                    Err(reply) if reply.status.as_u16() == GONE => return Ok(Event::Expired),
                    // The right to watch is not missing: the next request gets new credentials, if there are any.
                    Err(reply) if reply.status.as_u16() == UNAUTHORIZED => {
                        self.location.cluster()?.forget();
                        return Err(StoreError::unanswered("the server no longer accepts the credentials"));
                    }
                    Err(reply) => return Err(reply.failure()),
                },
                State::Open(lines, until) => match before(*until, lines.next()).await? {
                    None => self.state = State::Idle,
                    Some(line) => {
                        *until = silent_until();
                        if let Some(event) = self.read(&line)? {
                            return Ok(event);
                        }
                    }
                },
            }
        }
    }

    /// Reads an event; `None` if it only says how far the watch is.
    fn read(&mut self, line: &[u8]) -> Result<Option<Event>, StoreError> {
        let unexpected = || StoreError::unanswered("the server sends an event that Kubernetes does not send");
        let mut event: Value = serde_json::from_slice(line).map_err(|_| unexpected())?;
        let object = event.get_mut("object").map(Value::take).unwrap_or_default();
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "ERROR" {
            return match Status::parse(object) {
                Some(status) if status.code == GONE => Ok(Some(Event::Expired)),
                Some(status) => Err(status.end_of_watch()),
                None => Err(unexpected()),
            };
        }
        let lease = Lease::of(object).ok_or_else(unexpected)?;
        (self.version, self.is_active) = (lease.version().to_owned(), true);
        match kind {
            "BOOKMARK" => Ok(None),
            "DELETED" => Ok(Some(Event::Changed(None))),
            "ADDED" | "MODIFIED" => Ok(Some(Event::Changed(Some(lease)))),
            _ => Err(unexpected()),
        }
    }
}

/// Returns until when a server may be silent now.
fn silent_until() -> Moment {
    Moment::now() + Duration::from_secs(SECONDS) + LATE
}

/// Waits for a reply, or for a part of it.
///
/// # Errors
/// There is none in time: the connection is taken for closed.
async fn before<T>(
    until: Moment,
    reply: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout(until - Moment::now(), reply).await.unwrap_or_else(|_| Err(closed()))
}
