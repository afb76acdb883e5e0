//! The master of a service, as named by its sentinels.
//!
//! The sentinels are queried before every connection, and in parallel with a request if the last query is a while ago:
//! a master that was replaced and has not noticed, because it is cut off from the sentinels or has not been notified,
//! still replies.
//!
//! Used by [`route`](super::route). What always holds: no claim is sent to a master that its sentinels have replaced, as far
//! as they have said so.

pub(super) mod choice;
pub(super) mod query;

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use self::choice::Opinion;
use self::query::Agreed;
use super::location::Location;
use crate::backend::StoreError;
use crate::backend::net::Address;
use crate::backend::url::Host;
use crate::clock::Moment;

/// How long a master is trusted without another query.
const TRUST_DURATION: Duration = Duration::from_secs(1);
/// How long to wait for the sentinels when a decision depends on their reply.
const CONFIRM_LIMIT: Duration = Duration::from_millis(500);

pub(super) struct Sentinels {
    pub(super) hosts: Vec<Host>,
    /// The name of the master and its replicas.
    pub(super) service: String,
    master: Option<Master>,
    query: Option<Query>,
}

/// The server that the sentinels have named.
struct Master {
    address: Address,
    /// See [`Opinion::epoch`]: as far as the sentinels that name it know.
    epoch: u64,
    queried: Moment,
    /// The sentinels now name another one.
    is_former: bool,
}

struct Query {
    started: Moment,
    reply: Pin<Box<dyn Future<Output = Agreed>>>,
}

impl Sentinels {
    /// Returns the sentinels of a service; does not connect.
    pub(super) fn new(hosts: Vec<Host>, service: String) -> Sentinels {
        Sentinels { hosts, service, master: None, query: None }
    }

    /// Queries the sentinels for the master.
    ///
    /// # Errors
    /// None of them can be queried, or the service is unknown to them.
    pub(super) async fn find(&mut self, location: &Location) -> Result<Address, StoreError> {
        let query = self.start_query(location);
        self.query = None;
        let (Opinion { master, epoch }, _) = query.reply.await?;
        self.master =
            Some(Master { address: master.clone(), epoch, queried: query.started, is_former: false });
        Ok(master)
    }

    fn start_query(&self, location: &Location) -> Query {
        let reply = query::query_all(location.clone(), self.hosts.clone(), self.service.clone());
        Query { started: Moment::now(), reply: Box::pin(reply) }
    }

    /// The master that the sentinels named last.
    pub(super) fn master(&self) -> Option<&Address> {
        self.master.as_ref().map(|master| &master.address)
    }

    fn is_trusted(&self) -> bool {
        self.master
            .as_ref()
            .is_some_and(|master| !master.is_former && Moment::now() - master.queried < TRUST_DURATION)
    }

    /// Starts a query whether the master has changed, unless this is known or being queried.
    pub(super) fn verify_master(&mut self, location: &Location) {
        let is_asking =
            self.query.as_ref().is_some_and(|query| Moment::now() - query.started < TRUST_DURATION);
        let may_be_current = self.master.as_ref().is_some_and(|master| !master.is_former);
        if may_be_current && !self.is_trusted() && !is_asking {
            self.query = Some(self.start_query(location));
        }
    }

    /// Resolves when the query in progress is complete; never if there is none.
    async fn complete_query(&mut self) {
        let Some(query) = &mut self.query else { return pending().await };
        let (reply, started) = (query.reply.as_mut().await, query.started);
        self.record_reply(reply, started);
    }

    fn record_reply(&mut self, reply: Agreed, started: Moment) {
        self.query = None;
        if let (Ok((opinion, is_agreed)), Some(master)) = (reply, &mut self.master) {
            match opinion.master == master.address {
                true => (master.queried, master.epoch) = (started, master.epoch.max(opinion.epoch)),
                // A later fail-over was decided on by a majority, whoever tells of it: others may follow it already. An earlier one
                // is enough for doubt, but not for leaving a master that responds.
                false => master.is_former |= is_agreed || opinion.epoch > master.epoch,
            }
        }
    }

    /// Whether the sentinels are known to name another master than before.
    pub(super) fn is_replaced(&mut self) -> bool {
        // One that is complete already is handled without waiting.
        let _ = self.complete_query().now_or_never();
        self.master.as_ref().is_some_and(|master| master.is_former)
    }

    /// Resolves when the sentinels are known to name another master than before.
    pub(super) async fn wait_until_replaced(&mut self) {
        while !self.is_replaced() {
            self.complete_query().await;
        }
    }

    /// Waits for a bounded time for the reply of the sentinels, and returns whether they still name this master.
    pub(super) async fn confirm_master(&mut self, location: &Location) -> bool {
        self.verify_master(location);
        if self.query.is_some() {
            let _ = timeout(CONFIRM_LIMIT, self.complete_query()).await;
        }
        self.is_trusted()
    }
}
