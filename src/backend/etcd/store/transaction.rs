//! The transactions that carry out writes.

use std::time::Duration;

use tonic::{Code, Status};

use super::EtcdStore;
use crate::backend::StoreError;
use crate::backend::etcd::connection::Channel;
use crate::backend::etcd::errors;
use crate::backend::etcd::keys::Keys;
use crate::backend::etcd::lease::{Lease, Owner, new_id};
use crate::backend::etcd::messages::{
    Compare, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest, TxnResponse,
};
use crate::backend::ledger::entries::{METADATA, Write};
use crate::backend::ledger::{Ledger, Purpose};
use crate::clock::Moment;

const CREATE_REVISION: i32 = 1;
const MOD_REVISION: i32 = 2;

impl EtcdStore {
    /// Returns the lease that lets an entry live for this long, which may be the one that it has.
    pub(super) async fn lease_for(
        &mut self,
        purpose: &Purpose,
        current: i64,
        length: Option<Duration>,
    ) -> Result<i64, StoreError> {
        let (Some(length), Some(lease)) = (length, self.lease) else { return Ok(current) };
        let is_ours = lease.owner == Owner::Us;
        match purpose {
            // The entry is of another client.
            Purpose::Operate | Purpose::Prepare | Purpose::History => return Ok(current),
            // The owner of the outer hold sees to it.
            Purpose::Claim(_) if !is_ours => return Ok(current),
            Purpose::Claim(_) | Purpose::Renew(_) if length <= lease.ttl => {
                // The lease for the rest of a minimum hold time is never extended.
                let has_rest = self.rest.is_some_and(|rest| rest.id == current);
                return Ok(if is_ours || has_rest { lease.id } else { current });
            }
            // One that is not extended.
            Purpose::Claim(_) | Purpose::Renew(_) | Purpose::Release(_) => {}
        }
        // Whole seconds: a lease that was granted for this may seem to end a moment before. A command may run as long as one
        // that was extended now.
        let least = if matches!(purpose, Purpose::Release(_)) { Duration::ZERO } else { lease.ttl };
        let (now, second) = (Moment::now(), Duration::from_secs(1));
        let is_enough = |rest: &Lease| rest.ends + second >= now + length && rest.ends >= now + least;
        if let Some(rest) = self.rest.filter(is_enough) {
            return Ok(rest.id);
        }
        let id = new_id();
        let (rest, _) = self.client.with(async |channel| Lease::grant(channel, id, length).await).await?;
        self.rest = Some(rest);
        Ok(id)
    }

    /// Adds a write to a transaction, and returns the lease that the written entry is to have.
    pub(super) async fn add(
        &mut self,
        keys: &Keys,
        purpose: &Purpose,
        txn: &mut TxnRequest,
        write: &Write,
    ) -> Result<i64, StoreError> {
        Ok(match write {
            Write::Create { alone, waiting, lease } => {
                // Without a lease, the entry would never end.
                let why = "the lease of this client has ended before its entry was created";
                let ended = || StoreError::transient(why, false);
                let session = self.lease.map(|lease| lease.id).ok_or_else(ended)?;
                let key = keys.contender(session);
                txn.compare.push(created(key.clone(), 0));
                let waiting = put(key.clone(), waiting, session);
                let then = match alone {
                    None => waiting,
                    Some(alone) => {
                        let lease = self.lease_for(purpose, session, *lease).await?;
                        let (key_of_all, range_end) = keys.range();
                        // True if there is none: a key that does not exist was created at 0.
                        let nothing = Compare { range_end, ..created(key_of_all, 0) };
                        let alone = put(key.clone(), alone, lease);
                        nested(nothing, vec![alone, put_last(keys)], waiting)
                    }
                };
                txn.success.push(then);
                (self.own, self.in_use) = (Some(key), true);
                session
            }
            Write::Swap { order: METADATA, version, value, .. } => {
                txn.compare.push(modified(keys.metadata(), *version));
                txn.success.push(put(keys.metadata(), value, 0));
                txn.success.extend(self.change_freeze(keys, value).await?);
                0
            }
            Write::Swap { order, version, value, lease } => {
                let (key, current) = self.entry(*order);
                let lease = self.lease_for(purpose, current, *lease).await?;
                txn.compare.extend([created(key.clone(), *order), modified(key.clone(), *version)]);
                txn.success.push(put(key, value, lease));
                self.uses(current, lease);
                lease
            }
            Write::Extend { order, lease } => {
                let (key, current) = self.entry(*order);
                let lease = self.lease_for(purpose, current, Some(*lease)).await?;
                if lease != current {
                    self.uses(current, lease);
                    txn.compare.push(created(key.clone(), *order));
                    let put = PutRequest { key, lease, ignore_value: true, ..PutRequest::default() };
                    txn.success.push(RequestOp { put: Some(put), ..RequestOp::default() });
                }
                lease
            }
            Write::Remove { order, version } => {
                let (key, current) = self.entry(*order);
                self.uses(current, 0);
                txn.compare.extend([created(key.clone(), *order), modified(key.clone(), *version)]);
                self.own.take_if(|own| *own == key);
                txn.success.push(delete(key));
                0
            }
        })
    }

    /// Returns how the key of the freeze changes with this value of the metadata, if it does.
    ///
    /// # Errors
    /// The store could not be queried.
    async fn change_freeze(
        &mut self,
        keys: &Keys,
        metadata: &Ledger,
    ) -> Result<Option<RequestOp>, StoreError> {
        let before = self.last.as_ref().and_then(|(_, snapshot)| snapshot.freeze());
        Ok(match metadata.freeze() {
            freeze if freeze == before => None,
            None => {
                let lease = self.last.as_ref().map_or(0, |(_, snapshot)| snapshot.freeze_lease);
                self.of_freeze = Some(lease).filter(|id| *id != 0);
                Some(delete(keys.freeze()))
            }
            Some(freeze) => {
                let lasts = freeze.until.map(|until| Duration::from_millis(until - freeze.since));
                let lease = match lasts {
                    Some(lasts) => self.lease_of_freeze(lasts).await?,
                    None => 0,
                };
                let mut value = Ledger::default();
                value.set_freeze(Some(freeze.clone()));
                Some(put(keys.freeze(), &value, lease))
            }
        })
    }

    /// Returns the lease of a new freeze. It is revoked if no key gets it.
    async fn lease_of_freeze(&mut self, lasts: Duration) -> Result<i64, StoreError> {
        let id = new_id();
        if let Some(unused) = self.of_freeze.replace(id) {
            self.revoke(unused).await;
        }
        self.client.with(async |channel| Lease::grant(channel, id, lasts).await).await?;
        Ok(id)
    }

    /// Notes that an entry has another lease.
    fn uses(&mut self, before: i64, after: i64) {
        let own = self.lease.map(|lease| lease.id);
        self.in_use = own == Some(after) || self.in_use && own != Some(before);
    }

    pub(super) fn entry(&self, order: u64) -> (Vec<u8>, i64) {
        let stored = self.last.as_ref().and_then(|(_, snapshot)| snapshot.stored(order));
        stored.map(|stored| (stored.key.clone(), stored.lease)).unwrap_or_default()
    }
}

fn created(key: Vec<u8>, revision: u64) -> Compare {
    let create_revision = Some(revision as i64);
    Compare { target: CREATE_REVISION, key, create_revision, ..Compare::default() }
}

fn modified(key: Vec<u8>, revision: u64) -> Compare {
    Compare { target: MOD_REVISION, key, mod_revision: Some(revision as i64), ..Compare::default() }
}

fn put(key: Vec<u8>, value: &Ledger, lease: i64) -> RequestOp {
    let value = value.to_json();
    RequestOp { put: Some(PutRequest { key, value, lease, ..PutRequest::default() }), ..RequestOp::default() }
}

pub(super) fn delete(key: Vec<u8>) -> RequestOp {
    RequestOp { delete: Some(DeleteRangeRequest { key }), ..RequestOp::default() }
}

pub(super) fn put_last(keys: &Keys) -> RequestOp {
    RequestOp { put: Some(PutRequest { key: keys.last(), ..PutRequest::default() }), ..RequestOp::default() }
}

fn nested(compare: Compare, success: Vec<RequestOp>, otherwise: RequestOp) -> RequestOp {
    let txn = TxnRequest { compare: vec![compare], success, failure: vec![otherwise] };
    RequestOp { txn: Some(Box::new(txn)), ..RequestOp::default() }
}

/// Sends a transaction; `None` if a lease in it has ended. One that ends a hold is carried out even if etcd has no
/// space for the other values that it stores: then why these are not stored is returned as well.
pub(super) async fn commit(
    channel: &Channel,
    mut txn: TxnRequest,
) -> Result<Option<(TxnResponse, Option<String>)>, Status> {
    let (mut reply, mut unwritten) = (channel.call(txn.clone()).await, None);
    if let Err(status) = &reply
        && errors::is_out_of_space(status)
        && txn.success.iter().any(|op| op.delete.is_some())
    {
        unwritten = Some(errors::out_of_space(status));
        txn.success.retain(|op| op.put.is_none());
        reply = channel.call(txn).await;
    }
    match reply {
        Err(status) if status.code() == Code::NotFound => Ok(None),
        reply => reply.map(|reply| Some((reply, unwritten))),
    }
}
