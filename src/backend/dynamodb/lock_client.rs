//! The locks of AWS's lock client for Java (<https://github.com/awslabs/amazon-dynamodb-lock-client>), as a gate with a lease:
//! an item whose key is the name of the lock.
//!
//! The lease of another program ends when a client has seen the same version for that long, by its own clock. That of a dlock
//! ends for other dlocks by the store's clock, and for other programs later: they cannot see its version before it is written,
//! and a dlock counts from the moment before.
//!
//! What always holds: an item is changed only if its version is the one that was read, and never if it is another kind of item.

mod lock_item;

use std::collections::HashMap;
use std::time::Duration;

use self::lock_item::{Found, Item, digest_of};
use super::table::{Table, Updated};
use crate::backend::StoreError;
use crate::backend::admin::Removal;
use crate::backend::ledger::dated::Dated;
use crate::backend::ledger::document::leased_gate::{Identity, LeasedGate, holder_name, identity_in};
use crate::backend::ledger::polling::CLOCK_LAG;
use crate::backend::ledger::{GateMode, Ledger, Occupant, Purpose, busy};
use crate::backend::net::http::Reply;
use crate::clock::Moment;
use crate::lock::{Claim, Holder, LockName};

/// Why other modes are refused.
pub(super) const EXCLUSIVE: &str =
    "AWS's lock client has one holder: take the lock exclusively, or use recipe=dlock";
/// How often a change is tried when others have changed the item at the same time.
const TRIES: usize = 5;

/// What is known of an item since it was read or written last.
struct Seen {
    found: Found,
    /// When this client has first seen its version.
    since: Moment,
    is_free: bool,
}

/// The gate in front of the ledgers of one client, and the items as far as it has seen them.
#[derive(Default)]
pub(super) struct LockClient {
    seen: HashMap<LockName, Seen>,
}

impl LockClient {
    async fn read(&mut self, table: &mut Table, name: &LockName) -> Result<Found, StoreError> {
        let (item, reply) = table.get(&table.location.lock_key(name)).await?;
        self.note(name, Found::of(item.as_ref()), &reply)
    }

    /// Notes what is there by a reply, and returns it.
    fn note(&mut self, name: &LockName, found: Found, reply: &Reply) -> Result<Found, StoreError> {
        let (now, date) = (Moment::now(), reply.server_time()?);
        let before = self.seen.get(name).filter(|seen| seen.found.version() == found.version());
        let since = before.map_or(now, |seen| seen.since);
        let is_free = match &found {
            Found::Nothing => true,
            Found::Other => false,
            Found::Lock(Item { is_released: true, .. }) => true,
            Found::Lock(Item { ends: Some(ends), .. }) => *ends <= date,
            Found::Lock(item) => now - since > item.lease,
        };
        self.seen.insert(name.clone(), Seen { found: found.clone(), since, is_free });
        Ok(found)
    }

    fn is_free(&self, name: &LockName) -> bool {
        self.seen.get(name).is_some_and(|seen| seen.is_free)
    }

    /// Writes an item in the place of another, see [`Item::request`]. Returns what is there then.
    async fn write(
        &mut self,
        table: &mut Table,
        name: &LockName,
        before: Option<&Item>,
        after: &Item,
    ) -> Result<Found, StoreError> {
        let request = after.request(before, &table.attribute().await?);
        let Updated { is_met, item, reply } = table.update(&table.location.lock_key(name), request).await?;
        match item {
            _ if is_met => self.note(name, Found::Lock(after.clone()), &reply),
            Some(item) => self.note(name, Found::of(Some(&item)), &reply),
            None => self.read(table, name).await,
        }
    }

    /// Changes the hold of an identity. Returns whether there was one.
    async fn change(
        &mut self,
        table: &mut Table,
        name: &LockName,
        identity: Identity,
        change: impl Fn(&Item) -> Item,
    ) -> Result<bool, StoreError> {
        let seen = self.seen.get(name).map(|seen| seen.found.clone());
        let mut found = match seen.filter(|found| found.held_by(identity).is_some()) {
            Some(found) => found,
            None => self.read(table, name).await?,
        };
        for _ in 0..TRIES {
            let Some(before) = found.held_by(identity) else { return Ok(false) };
            let after = change(before);
            found = self.write(table, name, Some(before), &after).await?;
            if found == Found::Lock(after) {
                return Ok(true);
            }
        }
        Err(busy(name, "item"))
    }

    /// Rejects another kind of item, unless it has taken the place of one that is held: then the hold is lost.
    fn check(&self, table: &Table, name: &LockName, purpose: &Purpose) -> Result<(), StoreError> {
        let is_other = self.seen.get(name).is_some_and(|seen| seen.found == Found::Other);
        if !is_other || matches!(purpose, Purpose::Renew(_) | Purpose::Release(_)) {
            return Ok(());
        }
        let (key, table) = (table.location.lock_key(name), &table.location.place.name);
        Err(StoreError::Config(format!(
            "the item {key} of the table {table} is not a lock of AWS's lock client: another program uses it"
        )))
    }
}

/// A ledger has been read before each of these requests, so that the store's clock is known.
impl LeasedGate<Table> for LockClient {
    async fn occupant(
        &mut self,
        table: &mut Table,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Option<Occupant>, StoreError> {
        let found = self.read(table, name).await?;
        self.check(table, name, purpose)?;
        let seen = self.seen.get(name).filter(|seen| !seen.is_free);
        let occupant = |identity, holder| Occupant { identity, mode: GateMode::Exclusive, holder };
        Ok(seen.map(|seen| match &found {
            Found::Lock(item) => occupant(identity_in(&item.owner), item.holder(Moment::now() - seen.since)),
            Found::Other | Found::Nothing => occupant(None, Holder::default()),
        }))
    }

    async fn extend(
        &mut self,
        table: &mut Table,
        name: &LockName,
        identity: Identity,
        lease: Duration,
        until: Duration,
    ) -> Result<bool, StoreError> {
        let end = |time: Duration| (time + lease + CLOCK_LAG).max(until);
        let mut time = table.time();
        let known = self.seen.get(name).and_then(|seen| seen.found.held_by(identity)?.ends);
        if known.is_some_and(|known| known > end(time)) {
            // One reply was dated wrongly. Only another one tells whether it was the last one: then the end that is known is right.
            self.read(table, name).await?;
            time = table.time();
        }
        self.change(table, name, identity, |item| item.extended(end(time) - time - CLOCK_LAG, end(time)))
            .await
    }

    async fn end(
        &mut self,
        table: &mut Table,
        name: &LockName,
        identity: Identity,
        rest: Duration,
    ) -> Result<bool, StoreError> {
        let time = table.time();
        let ended = |item: &Item| match rest.is_zero() {
            true => item.released(),
            false => item.extended(rest, time + rest),
        };
        if self.change(table, name, identity, ended).await? {
            return Ok(true);
        }
        // A request that takes the lock may be on its way: another version refuses it.
        let before = match self.seen.get(name).map(|seen| &seen.found) {
            Some(Found::Lock(item)) if item.is_released => Some(item.clone()),
            Some(Found::Nothing) => None,
            _ => return Ok(false),
        };
        let found = self.write(table, name, before.as_ref(), &Item::withdrawn()).await?;
        match found.held_by(identity) {
            Some(_) => self.change(table, name, identity, ended).await,
            None => Ok(false),
        }
    }

    async fn take(
        &mut self,
        table: &mut Table,
        purpose: &Purpose,
        claim: &Claim,
        own: &[Identity],
    ) -> Result<bool, StoreError> {
        let (name, lease) = (&claim.name, claim.ttl.max(claim.min_hold));
        let ends = table.time() + lease + CLOCK_LAG;
        let (owner, version) = (holder_name(claim), String::new());
        let after = Item { owner, lease, version, is_released: false, ends: None }.extended(lease, ends);
        let mut before = match self.seen.get(name) {
            Some(Seen { found: Found::Lock(item), is_free: true, .. }) => Some(item.clone()),
            _ => None,
        };
        for _ in 0..TRIES {
            let found = self.write(table, name, before.as_ref(), &after).await?;
            let is_own = || own.iter().any(|own| found.held_by(*own).is_some());
            before = match &found {
                Found::Lock(item) if *item == after => return Ok(true),
                Found::Lock(item) if is_own() || self.is_free(name) => Some(item.clone()),
                Found::Nothing => None,
                Found::Lock(_) => return Ok(false),
                Found::Other => {
                    self.check(table, name, purpose)?;
                    return Ok(false);
                }
            };
        }
        Err(busy(name, "item"))
    }

    async fn is_left(
        &mut self,
        table: &mut Table,
        name: &LockName,
        ledger: &Ledger,
    ) -> Result<bool, StoreError> {
        let is_listed = |identity| ledger.holders.iter().any(|holder| holder.gate == Some(identity));
        let is_unlisted = |seen: &Seen| match &seen.found {
            Found::Lock(item) => !seen.is_free && !identity_in(&item.owner).is_some_and(is_listed),
            Found::Nothing | Found::Other => false,
        };
        // A dlock that the ledger lists calls the next waiter when it leaves: only for others, the item is read.
        let is_asked = self.seen.get(name).is_some_and(is_unlisted);
        if is_asked {
            self.read(table, name).await?;
        }
        Ok(self.is_free(name) && ledger.holders.is_empty())
    }

    async fn end_shown(
        &mut self,
        table: &mut Table,
        name: &LockName,
        shown: &Holder,
    ) -> Result<Removal, StoreError> {
        match self.read(table, name).await? {
            Found::Lock(item) if !self.is_free(name) && shown.digest == Some(digest_of(&item.owner)) => {
                // The holder notices it by the version.
                let after = item.released();
                let found = self.write(table, name, Some(&item), &after).await?;
                Ok(if found == Found::Lock(after) { Removal::Removed } else { Removal::Changed })
            }
            _ => Ok(Removal::Changed),
        }
    }
}
