//! The leases of a client.

use std::time::Duration;

use futures_util::future::try_join_all;
use tonic::Status;

use super::connection::Channel;
use super::errors;
use super::messages::{Header, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseTimeToLiveRequest};
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
    /// Requests a new lease with a [new id](new_id). It has at least this length, in whole seconds, and a majority has
    /// agreed to it. A request that is repeated because its reply was lost leads to the same lease, of which nothing
    /// but that it exists is known before it is [extended](Lease::extend). Returns it with the term of the reply; `None`
    /// if an earlier request has led to it.
    pub async fn grant(channel: &Channel, id: i64, ttl: Duration) -> Result<(Lease, Option<u64>), Status> {
        let sent = Moment::now();
        match channel.call(LeaseGrantRequest { ttl: seconds(ttl), id }).await {
            Ok(reply) => {
                let ttl = duration(reply.ttl);
                Ok((Lease { id, ttl, ends: sent + ttl, owner: Owner::Us }, Some(term(reply.header))))
            }
            Err(status) if errors::is_lease_granted(&status) => {
                Ok((Lease { id, ttl, ends: sent, owner: Owner::Us }, None))
            }
            Err(status) => Err(status),
        }
    }

    /// Requests that the lease is extended. Returns it as it would be then, `None` if it has ended, and the term of the
    /// reply: the leader alone replies, and one that has been replaced may not know that yet.
    pub async fn extend(self, channel: &Channel) -> Result<(Option<Lease>, u64), Status> {
        let sent = Moment::now();
        let reply = channel.call(LeaseKeepAliveRequest { id: self.id }).await?;
        let ttl = duration(reply.ttl);
        Ok(((!ttl.is_zero()).then_some(Lease { ttl, ends: sent + ttl, ..self }), term(reply.header)))
    }
}

/// Returns the term of the leader when a reply was sent.
pub(super) fn term(header: Option<Header>) -> u64 {
    header.unwrap_or_default().raft_term
}

/// Returns the id of a lease that was never requested.
pub(super) fn new_id() -> i64 {
    random::number() as i64
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
