//! One server, or those of which one has the lock (behind Sentinel, in a Cluster), as a backend.

use std::time::Duration;

use super::claim::release;
use super::connection::{PushEvent, RequestOptions};
use super::result;
use super::route::replaced;
use super::script::{Operation, ScriptRequest, json, millis};
use super::store::RedisStore;
use crate::backend::{
    Attempt, Backend, CLAIM_WITHIN, Change, Ending, Hazard, Intent, Release, Renewal, Reply, TryReply,
};
use crate::lock::{Claim, LockName, Mode, Record};

impl Backend for RedisStore {
    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(async {
            if self.connection.is_none() || self.route.is_replaced() {
                self.connection = None;
                self.connection = Some(self.route.open(&self.location, self.old_protocol).await?);
            }
            Ok(())
        })
    }

    fn try_acquire<'a>(&'a mut self, claim: &'a Claim, intent: Intent) -> TryReply<'a, Attempt> {
        Box::pin(self.acquire(claim, intent))
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> TryReply<'a, Renewal> {
        Box::pin(async move {
            let keys = self.keys(&claim.name);
            let renew = Operation::Renew { lease: millis(claim.ttl.max(rest)) };
            let request = ScriptRequest::new(renew, &keys, claim.token.reveal());
            let options = RequestOptions { tracking: true, ..RequestOptions::default() };
            let reply = match self.request(&request, options).await {
                // The lock's keys are being migrated between nodes of a cluster.
                Err(error)
                    if claim.mode == Mode::Exclusive
                        && self.location.is_cluster()
                        && error.is_transient() =>
                {
                    return self.renew_by_key(claim, claim.ttl.max(rest)).await;
                }
                reply => reply?,
            };
            self.untracked = false;
            let renewal = result::renewal(&reply.outcome, claim.ttl)?;
            let last_server = std::mem::replace(&mut self.held_on, self.route.server().cloned());
            let is_replaced = last_server.is_some() && last_server != self.held_on;
            Ok(if is_replaced { renewal.after_fail_over() } else { renewal })
        })
    }

    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        ending: Ending<'a>,
    ) -> TryReply<'a, Release> {
        Box::pin(async move {
            let keys = self.keys(&claim.name);
            let request = release(&keys, claim, self.attempt, rest, ending);
            let reply = self.request(&request, RequestOptions::default()).await?;
            let release = result::release(reply);
            match !self.route.confirm_server(&self.location).await && self.route.is_replaced() {
                true => Err(replaced()),
                false => release,
            }
        })
    }

    fn add_record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> TryReply<'a, ()> {
        Box::pin(async move {
            let keys = self.keys(name);
            let (record, history) = (json(record), keys.history_of(Some(record)));
            let request = ScriptRequest::new(Operation::Record { record, history }, &keys, "");
            self.request(&request, RequestOptions::default()).await.map(drop)
        })
    }

    fn hazard(&self) -> Option<Hazard> {
        self.eviction.clone().map(Hazard::Eviction)
    }

    fn fails_over(&self) -> bool {
        self.location.has_several_servers()
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            if self.untracked {
                // One more renewal enables the notifications.
                self.untracked = false;
                return Change::Touched;
            }
            if self.discover_nodes().await.is_err() {
                return Change::Disconnected;
            }
            let Some(connection) = &mut self.connection else { return std::future::pending().await };
            let event = tokio::select! {
                event = connection.changed() => event,
                () = self.route.wait_until_replaced() => None,
            };
            match event {
                Some(PushEvent::Called) => Change::OurTurn,
                Some(PushEvent::Next) => Change::Soon(CLAIM_WITHIN),
                Some(PushEvent::Look) => Change::Soon(CLAIM_WITHIN * 4),
                Some(PushEvent::Touched | PushEvent::Superseded) => Change::Touched,
                None => {
                    self.connection = None;
                    Change::Disconnected
                }
            }
        })
    }
}
