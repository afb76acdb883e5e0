//! Waits for changes of a lock by blocking queries, over a connection of its own, so that other requests need not wait.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::agent::{Agent, Reading};
use super::location::Location;
use crate::backend::StoreError;
use crate::backend::net::closed;
use crate::lock::LockName;

/// How long an agent waits for a change; it adds up to a sixteenth.
const WAIT: Duration = Duration::from_secs(60);
/// How long it may take to reply then.
const LATE: Duration = Duration::from_secs(10);
/// The pause after a reply without a change: an agent need not wait.
const PAUSE: Duration = Duration::from_millis(100);

/// What a query returns.
type Answer = (Agent, Result<Reading, StoreError>);

/// The changes of one lock.
pub(super) struct Watch {
    /// The lock.
    pub name: LockName,
    location: Location,
    /// The index that the next change exceeds.
    index: u64,
    /// The last reply showed no change.
    is_unchanged: bool,
    /// The connection, unless it is in use.
    agent: Option<Agent>,
    /// The query. It goes on if the future that waits for it is dropped.
    query: Option<Pin<Box<dyn Future<Output = Answer>>>>,
}

impl Watch {
    /// Watches this lock for changes after this index, with what there is.
    pub fn follow(watch: &mut Option<Watch>, location: &Location, name: &LockName, index: u64) {
        match watch {
            Some(watch) if watch.name == *name => watch.index = index,
            _ => {
                let (name, location) = (name.clone(), location.clone());
                *watch = Some(Watch { name, location, index, is_unchanged: false, agent: None, query: None });
            }
        }
    }

    /// Waits for the next change, or for what looks like one. May be dropped.
    ///
    /// # Errors
    /// The agent does not reply. The connection is discarded.
    pub async fn changed(&mut self) -> Result<Reading, StoreError> {
        let query = match &mut self.query {
            Some(query) => query,
            none => {
                let mut agent = self.agent.take().unwrap_or_else(|| Agent::new(&self.location));
                let (name, index) = (self.name.clone(), self.index);
                let pause = if self.is_unchanged { PAUSE } else { Duration::ZERO };
                none.insert(Box::pin(async move {
                    sleep(pause).await;
                    let limit = WAIT + WAIT / 16 + LATE;
                    let read = timeout(limit, agent.read(&name, Some((index, WAIT)))).await;
                    let reading = read.unwrap_or_else(|_| Err(closed())).map(|(reading, _)| reading);
                    (agent, reading)
                }))
            }
        };
        let (agent, reading) = query.await;
        self.query = None;
        let reading = reading?;
        self.agent = Some(agent);
        self.is_unchanged = reading.index == self.index;
        // An index that goes back is that of a restored store.
        self.index = if reading.index < self.index { 1 } else { reading.index };
        Ok(reading)
    }
}
