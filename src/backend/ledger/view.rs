//! What a ledger shows: to a claim that has to wait, and to operators.

use std::time::Duration;

use super::observed::{Lifetime, Now, Observed, Turns, is_in_session};
use super::queue::Turn;
use super::store::Watch;
use super::value::{HolderEntry, Ledger};
use crate::backend::{Again, Busy, Intent};
use crate::lock::{Claim, FencingToken, Holder, LockName, LockState, Mode, Success, Token, Waiter};

/// The number of holders that a claim is shown.
const MAX_HOLDERS: usize = 16;
/// The second waiter checks the first this often, the third checks the second half as often, and so on: a stopped dlock
/// notifies no other.
const FIRST_CHECK_INTERVAL: Duration = Duration::from_millis(250);
const LONGEST_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// A recorded hold without an owner may be revoked (`dlock break`), which causes no notification.
const RECORDED_HOLD_INTERVAL: Duration = Duration::from_secs(1);
/// How much later than the waiter ahead of it a waiter asks whether the lease of the holder has ended.
const BETWEEN_WAITERS: Duration = Duration::from_millis(25);
/// A waiter asks again this long after the end of a lease or a minimum hold time, when it has certainly ended.
const JUST_AFTER: Duration = Duration::from_millis(1);

/// Returns the reply to a claim that is not granted, and what it has to watch.
pub(super) fn busy(
    ledger: &Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    intent: Intent,
    turn: &Turn,
) -> (Busy, Vec<Watch>) {
    let now = observed.now();
    let shown = ledger.holders.iter().take(MAX_HOLDERS);
    let mut holders: Vec<Holder> = shown.map(|entry| holder(entry, observed, None)).collect();
    let more = ledger.holders.len() - holders.len();
    let promised = matches!(turn, Turn::Promised(_));
    let freeze = ledger.live_freeze(now);
    if holders.is_empty() && !promised && freeze.is_none() {
        holders.push(Holder::default());
    }
    let place = ledger.position_of(claim.token.reveal()).filter(|_| intent == Intent::Enqueue);
    let mut again = match turn {
        Turn::Promised(left) => *left + JUST_AFTER,
        _ => LONGEST_CHECK_INTERVAL,
    };
    let is_called = observed.lifetime() == Lifetime::OfLease && observed.turns() == Turns::Called;
    let ends = |entry: &HolderEntry| {
        let ends = entry.lease_ends.max(entry.kept_until)?;
        // A minimum hold time that has passed says nothing about the end of a hold that its owner keeps.
        let rest = (now.clock < ends).then(|| ends - now.clock + JUST_AFTER)?;
        // The end of a lease that is renewed until then concerns the first two of the exclusive waiters. Each one behind them
        // asks a little later than the one ahead, in case that all of these are dead: usually it finds a lease that has just
        // been renewed, and asks again when that has ended.
        let is_renewed = entry.ended_at.is_none() && !entry.identity.unattended;
        let is_behind =
            |place: &usize| *place > 1 && claim.mode == Mode::Exclusive && is_called && is_renewed;
        let place = place.filter(is_behind).unwrap_or_default();
        Some(rest + BETWEEN_WAITERS.saturating_mul(place.try_into().unwrap_or(u32::MAX)))
    };
    if let Some(rest) = ledger.holders.iter().filter_map(ends).min() {
        again = again.min(rest);
    }
    if let Some((_, rest)) = freeze {
        // All of them ask then, one after the other: nobody is notified of that.
        let behind = BETWEEN_WAITERS.saturating_mul(place.unwrap_or_default().try_into().unwrap_or(u32::MAX));
        again = again.min(rest.saturating_add(JUST_AFTER + behind));
    }
    if observed.lifetime() == Lifetime::OfLease {
        // The entry of a waiter expires as well.
        again = again.min(if is_called { claim.ttl } else { claim.ttl / 2 });
    }
    let mut watch = Vec::new();
    match place {
        // No client can take the turn of another from it: only the end of what is ahead counts.
        Some(place) if observed.turns() == Turns::ByOrder => {
            watch = blockers(ledger, place, claim.mode);
            if watch.is_empty() && freeze.is_some() {
                watch.push(Watch::Freeze);
            }
        }
        // Several waiters may be called together.
        Some(place) if *turn == Turn::Ours && (place == 0 || observed.gate_lifetime().is_some()) => {
            watch.push(Watch::Gate(ledger.gate_for(claim.mode)));
        }
        Some(0) => {
            if freeze.is_some() && observed.lifetime() != Lifetime::OfLease {
                // Nobody is notified of a thaw; and another waiter may call this one, which must not be late then.
                again = again.min(FIRST_CHECK_INTERVAL);
            }
            for entry in &ledger.holders {
                if entry.has_owner(observed) {
                    watch.push(Watch::Holder(entry.ticket));
                } else {
                    again = again.min(RECORDED_HOLD_INTERVAL);
                }
            }
        }
        // The store notifies the waiter behind one that is called as well, and others check when the lease of the holder
        // has ended.
        Some(_) if observed.lifetime() == Lifetime::OfLease => {}
        Some(place) => {
            watch.push(Watch::Waiter(ledger.waiters[place - 1].ticket));
            let interval = FIRST_CHECK_INTERVAL.saturating_mul(place.try_into().unwrap_or(u32::MAX));
            again = again.min(interval.min(LONGEST_CHECK_INTERVAL));
        }
        None => {}
    }
    let position = place.and_then(|place| u32::try_from(place + 1).ok());
    let (is_outside_queue, again) = (observed.is_read_only(), Again::Within(again));
    let ticket = place.map(|place| ledger.waiters[place].ticket);
    let freeze = freeze.map(|(freeze, _)| Box::new(freeze.clone()));
    (Busy { holders, more, position, ticket, is_outside_queue, promised, freeze, again }, watch)
}

/// Returns what a waiter watches if its turn follows from the order alone: the last entry ahead of it that excludes it.
/// Of those that wait for a slot, only the first watches all holders; each other one watches the waiter ahead.
fn blockers(ledger: &Ledger, place: usize, mode: Mode) -> Vec<Watch> {
    let (me, ahead) = (ledger.waiters[place].ticket, &ledger.waiters[..place]);
    if let Mode::Slots(_) = mode {
        return match ahead.last() {
            Some(waiter) => vec![Watch::Waiter(waiter.ticket)],
            None => {
                let holders = ledger.holders.iter().filter(|holder| holder.ticket == holder.family);
                holders.map(|holder| Watch::Entry(holder.family)).collect()
            }
        };
    }
    let holders = ledger.holders.iter().map(|holder| (holder.family, holder.mode));
    let others = holders.chain(ahead.iter().map(|waiter| (waiter.ticket, waiter.mode)));
    let excludes = |other: Mode| mode != Mode::Shared || other != Mode::Shared;
    let last =
        others.filter(|(ticket, other)| *ticket < me && excludes(*other)).max_by_key(|(ticket, _)| *ticket);
    last.map(|(ticket, _)| Watch::Entry(ticket)).into_iter().collect()
}

/// Returns the state of a lock; with a `token`, also of the hold that it proves.
pub(super) fn state(
    name: &LockName,
    ledger: &Ledger,
    observed: &dyn Observed,
    token: Option<&Token>,
) -> LockState {
    let mut state = LockState::free(name.clone());
    let last_success = ledger.success.as_ref().and_then(|stored| Success::parse(stored).ok());
    state.last_success = last_success.filter(|success| success.is_kept(observed.now().wall / 1000));
    state.freeze = ledger.live_freeze(observed.now()).map(|(freeze, _)| freeze.clone());
    for entry in ledger.holders.iter().filter(|entry| entry.counts(observed)) {
        state.mode = Some(entry.mode);
        state.holders.push(holder(entry, observed, token));
    }
    for waiter in ledger.waiters.iter().filter(|waiter| waiter.has_owner(observed)) {
        state.waiters.push(Waiter {
            identity: waiter.identity().cloned(),
            mode: waiter.mode,
            waiting: if waiter.since > 0 { since(waiter.since, observed.now()) } else { Duration::ZERO },
        });
    }
    if state.holders.is_empty()
        && let Some((mode, holder)) = observed.foreign()
    {
        state.mode = Some(mode);
        state.holders.push(holder);
    }
    state
}

/// Returns whether the entry is that of a holder that was shown.
pub(super) fn is_shown_as(entry: &HolderEntry, shown: &Holder) -> bool {
    fencing(entry) == shown.fencing && digest(entry) == shown.digest
}

/// Returns the fencing token; a foreign client has none, or another one.
fn fencing(entry: &HolderEntry) -> Option<FencingToken> {
    entry.identity().and_then(|_| FencingToken::new(entry.fencing_token))
}

/// Returns what identifies the hold of a foreign client.
fn digest(entry: &HolderEntry) -> Option<String> {
    entry.identity().is_none().then(|| entry.ticket.to_string())
}

fn holder(entry: &HolderEntry, observed: &dyn Observed, token: Option<&Token>) -> Holder {
    let now = observed.now();
    let ended = entry.ended_at.map(|then| since(then, now));
    // A hold whose owner is gone can only have ended.
    let ended = ended.or_else(|| (!entry.has_owner(observed)).then_some(Duration::ZERO));
    let kept = entry.kept_until.filter(|until| now.clock < *until && ended.is_some());
    let lease_ends = entry.lease_ends.filter(|_| !is_in_session(observed));
    let remaining = kept.or(lease_ends).map(|ends| ends.saturating_sub(now.clock));
    let is_foreign = entry.identity().is_none();
    Holder {
        identity: entry.identity().cloned(),
        age: (entry.acquired_at > 0).then(|| since(entry.acquired_at, now)),
        acquired_at: (entry.acquired_at > 0).then(|| Duration::from_millis(entry.acquired_at / 1000)),
        remaining,
        ended,
        fencing: fencing(entry),
        digest: digest(entry),
        hint: if is_foreign { observed.hint(entry) } else { None },
        slot: entry.slot.filter(|_| matches!(entry.mode, Mode::Slots(_)) && !is_foreign),
        lease: entry.lease,
        revoked: entry.revoked.clone(),
        // A holder whose gate was replaced has lost the lock, even if it does not know yet.
        ours: token.is_some_and(|token| token.reveal() == entry.token) && !observed.is_gate_replaced(entry),
        ..Holder::default()
    }
}

/// Takes microseconds; returns whole milliseconds.
fn since(then: u64, now: Now) -> Duration {
    Duration::from_millis((now.wall / 1000).saturating_sub(then / 1000))
}
