//! The leases of a client.

use std::time::Duration;

use futures_util::future::try_join_all;
use tonic::Status;

use super::connection::Channel;
use super::errors;
use super::messages::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest};
use crate::clock::Moment;
use crate::random;

/// A lease.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub id: i64,
    /// As etcd has granted it, which may be more than was requested.
    pub ttl: Duration,
    /// When it ends at the earliest, unless it is extended.
    pub ends: Moment,
    pub owner: Owner,
}

/// Who ends a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This client.
    Us,
    /// Another process of the hold.
    Other,
}

impl Lease {
    /// Requests a new lease with a [new id](new_id). It has at least this length, in whole seconds. A request that is
    /// repeated because its reply was lost leads to the same lease.
    pub async fn grant(channel: &Channel, id: i64, ttl: Duration) -> Result<Lease, Status> {
        let sent = Moment::now();
        match channel.call(LeaseGrantRequest { ttl: seconds(ttl), id }).await {
            Ok(reply) => Ok(Lease::ours(id, duration(reply.ttl), sent)),
            Err(status) if errors::is_lease_granted(&status) => {
                let lease = Lease::ours(id, ttl, sent).extend(channel).await?;
                lease.ok_or_else(|| Status::unavailable("the lease has ended"))
            }
            Err(status) => Err(status),
        }
    }

    fn ours(id: i64, ttl: Duration, sent: Moment) -> Lease {
        Lease { id, ttl, ends: sent + ttl, owner: Owner::Us }
    }

    /// Extends the lease; `None` if it has ended.
    pub async fn extend(self, channel: &Channel) -> Result<Option<Lease>, Status> {
        let sent = Moment::now();
        let ttl = duration(channel.call(LeaseKeepAliveRequest { id: self.id }).await?.ttl);
        Ok((!ttl.is_zero()).then_some(Lease { ttl, ends: sent + ttl, ..self }))
    }
}

/// Returns the id of a lease that was never requested.
pub(super) fn new_id() -> i64 {
    random::number() as i64
}

/// Ends the lease with this id, if there is one, and removes the keys that have it.
pub(super) async fn revoke(channel: &Channel, id: i64) -> Result<(), Status> {
    channel.call(LeaseRevokeRequest { id }).await.map(drop)
}

/// Returns what remains of some leases at most, in the same order.
pub(super) async fn remaining(channel: &Channel, leases: &[i64]) -> Result<Vec<Duration>, Status> {
    let calls = leases.iter().map(|id| channel.call(LeaseTimeToLiveRequest { id: *id }));
    let replies = try_join_all(calls).await?;
    // Rounded down by the server.
    let most = |ttl: i64, granted: i64| duration(ttl.saturating_add(1).min(granted));
    Ok(replies.iter().map(|reply| most(reply.ttl, reply.granted)).collect())
}

fn seconds(ttl: Duration) -> i64 {
    ttl.as_millis().div_ceil(1000).max(1) as i64
}

fn duration(seconds: i64) -> Duration {
    Duration::from_secs(seconds.try_into().unwrap_or_default())
}
