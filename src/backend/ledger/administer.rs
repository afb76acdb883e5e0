//! What operators decide: they end the holds of others, freeze and thaw a lock, and set a floor for its fencing tokens. Pure,
//! as [`decide`](super::decide).

use std::time::Duration;

use super::observed::{Lifetime, Observed, is_in_session};
use super::queue::call_next;
use super::store::Decision;
use super::value::{HolderEntry, Ledger};
use super::view;
use crate::backend::admin::{Frozen, Raised, Removal, Revoked};
use crate::lock::{FencingToken, FreezeRequest, Holder, Mode, Revocation};

/// Decides on the revocation of the hold with this fencing token: its owners are notified, and a hold without an owner
/// ends.
pub fn revoke(
    ledger: &mut Ledger,
    observed: &dyn Observed,
    fencing: FencingToken,
    revocation: &Revocation,
) -> Decision<Revoked> {
    let is_meant = |holder: &HolderEntry| {
        holder.fencing_token == fencing.number() && !holder.has_expired(observed.now())
    };
    let before = ledger.holders.len();
    let has_ended = |holder: &HolderEntry| {
        !holder.has_owner(observed) || (holder.is_kept_by_lease() && !is_in_session(observed))
    };
    let mode = ledger.holders.iter().find(|holder| is_meant(holder)).map(|holder| holder.mode);
    ledger.holders.retain(|holder| !is_meant(holder) || !has_ended(holder));
    let ended = before - ledger.holders.len();
    let mut notified = 0;
    for holder in ledger.holders.iter_mut().filter(|holder| is_meant(holder)) {
        holder.revoked = Some(revocation.clone());
        notified += 1;
    }
    // Where entries live as long as their owner, waiters are not notified of the end of a hold without one: a waiter that
    // is called now would be late.
    if let Some(mode) = mode.filter(|_| ended > 0 && observed.lifetime() == Lifetime::OfLease) {
        call_next(ledger, observed, mode);
    }
    Decision::reply(match (notified, ended) {
        (0, 0) => Revoked::Gone,
        (0, _) => Revoked::Ended,
        (notified, _) => Revoked::Notified(notified),
    })
}

/// Decides on the removal of a hold without its owner's consent.
pub fn remove(ledger: &mut Ledger, observed: &dyn Observed, shown: &Holder) -> Decision<Removal> {
    // The session of another process cannot be ended, and the hold of a foreign program is not in the ledger.
    let is_foreign = observed.gate_lifetime().is_some() && shown.identity.is_none();
    if observed.lifetime() != Lifetime::OfLease || is_in_session(observed) || is_foreign {
        return Decision::reply(Removal::Impossible);
    }
    let is_meant =
        |holder: &HolderEntry| view::is_shown_as(holder, shown) && !holder.has_expired(observed.now());
    let Some(mode) = ledger.holders.iter().find(|holder| is_meant(holder)).map(|holder| holder.mode) else {
        return Decision::reply(Removal::Changed);
    };
    ledger.holders.retain(|holder| !is_meant(holder));
    call_next(ledger, observed, mode);
    Decision::reply(Removal::Removed)
}

/// Decides on a floor for the fencing tokens of a lock that nobody holds: each later one is larger.
pub fn raise_fencing(ledger: &mut Ledger, observed: &dyn Observed, floor: FencingToken) -> Decision<Raised> {
    if let Some(why) = observed.lacks_ledger() {
        return Decision::reply(Raised::Unsupported(why));
    }
    if ledger.holders.iter().any(|holder| holder.counts(observed)) || observed.foreign().is_some() {
        return Decision::reply(Raised::Held);
    }
    if let Some(last) = FencingToken::new(ledger.fencing_token).filter(|last| *last > floor) {
        return Decision::reply(Raised::Above(last));
    }
    ledger.fencing_token = floor.number();
    Decision::reply(Raised::Done)
}

/// Decides on a freeze. The waiters that are called cannot claim the lock, and keep their positions.
pub fn freeze(ledger: &mut Ledger, observed: &dyn Observed, request: &FreezeRequest) -> Decision<Frozen> {
    if let Some(why) = observed.lacks_ledger() {
        return Decision::reply(Frozen::Unsupported(why));
    }
    let now = observed.now();
    // Foreign programs are kept out only while the ledger has no holder, and they ignore holders whose leases have ended.
    ledger.holders.retain(|holder| holder.counts(observed));
    if let Some((freeze, _)) = ledger.live_freeze(now) {
        let freeze = freeze.clone();
        // The reply to an earlier attempt was lost.
        let is_ours = freeze.id == request.id;
        return Decision::reply(if is_ours { Frozen::Kept(freeze) } else { Frozen::Already(freeze) });
    }
    let mut freeze = request.at(now.wall / 1000);
    // By a coarse clock, it ends when that has certainly been reached.
    let lag = observed.end_of(Duration::ZERO).saturating_sub(now.clock).as_millis();
    freeze.until = freeze.until.map(|until| until.saturating_add(lag.try_into().unwrap_or(u64::MAX)));
    ledger.set_freeze(Some(freeze.clone()));
    ledger.waiters.iter_mut().for_each(|waiter| waiter.called = None);
    Decision::reply(Frozen::Done(freeze))
}

/// Decides on the end of the freeze with this id: the waiters whose turn it is are called.
pub fn thaw(ledger: &mut Ledger, observed: &dyn Observed, id: &str) -> Decision<bool> {
    let is_there = ledger.live_freeze(observed.now()).is_some_and(|(freeze, _)| freeze.id == id);
    if is_there {
        ledger.set_freeze(None);
        // Where entries live as long as their owner, see `revoke`.
        if observed.lifetime() == Lifetime::OfLease {
            call_next(ledger, observed, Mode::Exclusive);
        }
    }
    Decision::reply(is_there)
}
