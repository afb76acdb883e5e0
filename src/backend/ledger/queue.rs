//! The queue: who is in it, and whose turn it is.

use std::time::Duration;

use super::observed::{Observed, Turns};
use super::room::Room;
use super::value::{Ledger, WaiterEntry};
use crate::lock::{Claim, Identity, Mode};

/// How many superseded waiters are notified at most. Each newer run has ended those before it, so that there are few.
const MOST_SUPERSEDED: usize = 32;

/// What the queue means for one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It may hold the lock, if the gate is open.
    Ours,
    /// There is room, but waiters ahead come first; the time that those whose turn it is have left.
    Promised(Duration),
    /// There is no room.
    NotYet,
}

/// Walks the queue from its head, calls the waiters whose turn it is, and removes those that have died or have not
/// claimed in time. `me` is the position of a claim in the queue; without one, a claim of this mode comes after all
/// waiters.
pub(super) fn turn(
    waiters: &mut Vec<WaiterEntry>,
    room: &Room,
    me: Option<usize>,
    mode: Mode,
    observed: &dyn Observed,
) -> Turn {
    let by_order = observed.turns() == Turns::ByOrder;
    let now = observed.now().clock;
    let mut room_left = room.clone();
    let mut removed = Vec::new();
    let mut promised: Option<Duration> = None;
    let mut all_have_turns = true;
    let ahead = me.unwrap_or(waiters.len());
    for (index, waiter) in waiters.iter_mut().enumerate().take(ahead) {
        let within = observed.claim_within();
        // By a clock that was set back since, or a reply that was dated wrongly.
        if waiter.called.is_some_and(|called| called > now.saturating_add(within)) {
            waiter.called = Some(now);
        }
        let is_late = waiter.called.is_some_and(|called| now >= called.saturating_add(within));
        // A waiter that cannot claim the lock because a foreign program holds it is not late.
        let is_kept_out =
            !observed.admits(waiter.mode) || (observed.polled().is_some() && !room_left.fits(waiter.mode));
        if is_late && is_kept_out {
            waiter.called = None;
        } else if is_late || !waiter.has_owner(observed) {
            removed.push(index);
            continue;
        }
        if !room_left.fits(waiter.mode) {
            all_have_turns = false;
            break;
        }
        if by_order {
            // Its grant records a slot, which must be known before the next one is chosen.
            all_have_turns &= !matches!(waiter.mode, Mode::Slots(_));
            promised = Some(observed.claim_within());
            room_left.reserve(waiter.mode);
            continue;
        }
        if waiter.called.is_none() && observed.admits(waiter.mode) {
            waiter.called = Some(now);
        }
        let Some(called) = waiter.called else {
            all_have_turns = false;
            break;
        };
        let left = called.saturating_add(observed.claim_within()).saturating_sub(now);
        promised = Some(promised.map_or(left, |most| most.max(left)));
        room_left.reserve(waiter.mode);
    }
    // Remove all in one pass: there may be very many, and the ledger is locked meanwhile.
    let mut removed = removed.into_iter().peekable();
    let mut index = 0;
    waiters.retain(|_| {
        index += 1;
        removed.next_if_eq(&(index - 1)).is_none()
    });
    if all_have_turns && room_left.fits(mode) {
        return Turn::Ours;
    }
    match promised {
        Some(left) if room.fits(mode) => Turn::Promised(left),
        _ => Turn::NotYet,
    }
}

/// Calls the first waiter, if there is room for it, although a foreign program may be in the gate: it has waited for the
/// end of a hold, and has to watch the gate from now on.
pub(super) fn wake_first(ledger: &mut Ledger, observed: &dyn Observed) {
    if ledger.live_freeze(observed.now()).is_some() {
        return;
    }
    let room = Room::left_by(&ledger.holders);
    let first = ledger.waiters.iter_mut().find(|waiter| waiter.has_owner(observed));
    if let Some(first) = first.filter(|first| room.fits(first.mode)) {
        first.called.get_or_insert(observed.now().clock);
    }
}

/// Takes a queue position, or keeps the one that the claim has. Returns its ticket.
pub(super) fn join_queue(ledger: &mut Ledger, claim: &Claim, observed: &dyn Observed) -> u64 {
    let now = observed.now();
    let lease_ends = observed.waiter_lease(claim.ttl).map(|lease| observed.end_of(lease));
    if let Some(mine) = ledger.position_of(claim.token.reveal()).map(|index| &mut ledger.waiters[index])
        && mine.has_owner(observed)
    {
        mine.lease_ends = lease_ends;
        return mine.ticket;
    }
    leave_queue(ledger, claim);
    if observed.is_nearly_full() {
        ledger.waiters.retain(|waiter| waiter.has_owner(observed));
    }
    let ticket = ledger.next_ticket(now);
    ledger.waiters.push(WaiterEntry {
        ticket,
        token: claim.token.reveal().to_owned(),
        mode: claim.mode,
        since: now.wall,
        called: None,
        lease_ends,
        identity: claim.identity.clone(),
    });
    ticket
}

/// Removes a claim from the queue.
pub(super) fn leave_queue(ledger: &mut Ledger, claim: &Claim) {
    ledger.waiters.retain(|waiter| waiter.token != claim.token.reveal());
}

/// Calls the waiters whose turn has come because a hold of this mode has ended.
pub(super) fn call_next(ledger: &mut Ledger, observed: &dyn Observed, mode: Mode) {
    if ledger.live_freeze(observed.now()).is_some() {
        return;
    }
    let room = Room::left_by(ledger.holders.iter().filter(|holder| holder.counts(observed)));
    turn(&mut ledger.waiters, &room, None, mode, observed);
}

/// Returns the ticket with which a run came first: one that was late for its turn has another one now.
pub(super) fn first_ticket(identity: &Identity, ticket: u64) -> u64 {
    identity.first_ticket.unwrap_or(ticket)
}

/// Returns the ticket with which the newest of the waiting runs that supersede others came first.
pub(super) fn newest_run(ledger: &Ledger) -> Option<u64> {
    let runs = ledger.waiters.iter().filter(|waiter| waiter.identity.supersedes);
    runs.map(|waiter| first_ticket(&waiter.identity, waiter.ticket)).max()
}

/// Returns the tickets of the last waiters that the newest run supersedes, if that is alive: they are to ask again.
pub(super) fn superseded(ledger: &Ledger) -> Vec<u64> {
    let newest = newest_run(ledger);
    let is_older = |waiter: &&WaiterEntry| {
        waiter.identity.supersedes && Some(first_ticket(&waiter.identity, waiter.ticket)) < newest
    };
    let older = ledger.waiters.iter().rev().filter(is_older);
    older.map(|waiter| waiter.ticket).take(MOST_SUPERSEDED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ledger::observed::Now;

    #[test]
    fn a_call_that_is_dated_in_the_future_counts_from_now() {
        let now = Now { clock: Duration::from_secs(100), wall: 0 };
        let mut waiters = Ledger::of_foreign_waiter(1).waiters;
        waiters[0].called = Some(Duration::from_secs(5_000));
        let turn = turn(&mut waiters, &Room::default(), None, Mode::Exclusive, &now);
        assert_eq!((turn, waiters[0].called), (Turn::Promised(now.claim_within()), Some(now.clock)));
    }
}
