//! Who holds a lock, for its ledger.

use std::time::Duration;

use super::agent::{Reading, identity};
use super::gate::Gate;
use super::location::Recipe;
use crate::backend::ledger::document::Occupant;
use crate::backend::ledger::{GateMode, HolderEntry, Ledger, Now};
use crate::lock::{Claim, Holder, Mode};

/// Returns the sessions that hold a lock.
pub(super) fn occupants(recipe: Recipe, ledger: &Ledger, gate: &Gate) -> Vec<Occupant> {
    let mode = match recipe {
        Recipe::Lock => GateMode::Exclusive,
        Recipe::Semaphore => GateMode::Shared,
    };
    let occupant = |session: &String| {
        let identity = identity(session);
        let expired = ledger.holders.iter().find(|holder| identity.is_some() && holder.gate == identity);
        let whose = expired.and_then(|holder| holder.identity()).map(|owner| {
            format!(" of dlock on {} (pid {}), which has not been renewed in time", owner.host, owner.pid)
        });
        let hint = Some(format!("session {session}{}", whose.unwrap_or_default()));
        Occupant { identity, mode, holder: Holder { hint, ..Holder::default() } }
    };
    gate.sessions.iter().map(occupant).collect()
}

/// Adds the holders of a semaphore that are not in its ledger, or whose entry there has expired: each has a slot, that of its
/// entry, or one of the highest that no dlock has. A waiter that they keep from claiming its turn does not lose it.
pub(super) fn add_foreign(ledger: &mut Ledger, gate: &Gate, now: Now) {
    let holders = ledger.holders.iter().filter(|holder| holder.counts(&now));
    let (gates, slots): (Vec<_>, Vec<_>) = holders.map(|holder| (holder.gate, holder.slot)).unzip();
    let foreign = gate.sessions.iter().filter_map(|session| identity(session));
    let foreign: Vec<_> = foreign.filter(|session| !gates.contains(&Some(*session))).collect();
    let expired = |session: &(u64, u64)| {
        let entry = ledger.holders.iter().find(|holder| holder.gate == Some(*session))?;
        entry.slot.filter(|slot| *slot < gate.limit && !slots.contains(&Some(*slot)))
    };
    let own: Vec<Option<u32>> = foreign.iter().map(expired).collect();
    let is_free = |slot: &u32| !slots.contains(&Some(*slot)) && !own.contains(&Some(*slot));
    let mut free = (0..gate.limit).rev().filter(is_free).chain(gate.limit..);
    let taken: Vec<Option<u32>> = own.iter().map(|slot| slot.or_else(|| free.next())).collect();
    for (session, slot) in foreign.iter().zip(taken) {
        for mut holder in Ledger::of_foreign_holder(0).holders {
            holder.ticket = session.0;
            holder.family = session.0;
            holder.gate = Some(*session);
            holder.mode = Mode::of_slots(gate.limit);
            holder.slot = slot;
            ledger.holders.push(holder);
        }
    }
    let kept_out =
        ledger.waiters.iter_mut().filter(|waiter| !foreign.is_empty() && !gate.admits(waiter.mode));
    kept_out.for_each(|waiter| waiter.called = None);
}

/// Keeps the entries that have expired while their sessions hold a semaphore: nobody else gets their slots before that ends.
pub(super) fn keep_expired(ledger: &mut Ledger, before: &Ledger, gate: &Gate, now: Now) {
    let holds = |entry: &HolderEntry| gate.sessions.iter().any(|session| identity(session) == entry.gate);
    let is_kept = |entry: &&HolderEntry| {
        let is_new =
            ledger.holders.iter().all(|holder| holder.token != entry.token && holder.gate != entry.gate);
        let is_owner = entry.identity().is_some() && entry.ticket == entry.family;
        is_new && is_owner && !entry.counts(&now) && entry.gate.is_some() && holds(entry)
    };
    let kept: Vec<HolderEntry> = before.holders.iter().filter(is_kept).cloned().collect();
    ledger.holders.extend(kept);
}

/// Returns the session of the hold that a claim is part of, if it still holds the lock, and how long that lasts, and the mode of
/// that hold.
pub(super) fn outer_hold(reading: &Reading, claim: &Claim) -> Option<(Option<(String, Duration)>, Mode)> {
    let mine = reading.ledger()?.hold_of(claim)?;
    let is_its = |session: &&String| mine.gate.is_some() && identity(session) == mine.gate;
    let session = reading.gate.sessions.iter().find(is_its).cloned();
    Some((session.map(|session| (session, mine.lease.unwrap_or(claim.ttl))), mine.mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { clock: std::time::Duration::from_secs(1), wall: 1_000_000 };

    fn session(number: u32) -> String {
        format!("00000000-0000-0000-0000-0000000000{number:02}")
    }

    /// A dlock with this slot.
    fn holding(slot: u32) -> HolderEntry {
        let mut holder = Ledger::of_foreign_holder(0).holders.remove(0);
        (holder.token, holder.gate, holder.slot) = ("t".into(), identity(&session(90 + slot)), Some(slot));
        holder
    }

    #[test]
    fn foreign_holders_have_the_highest_slots_that_no_dlock_has() {
        for (limit, own, foreign, slots) in [
            (3, &[][..], &[1][..], &[2][..]),
            (3, &[2], &[1], &[1]),
            (3, &[0], &[1, 2], &[2, 1]),
            // One dlock has lost its slot, and does not know yet.
            (2, &[0, 1], &[1], &[2]),
        ] {
            let mut ledger = Ledger::default();
            ledger.holders.extend(own.iter().map(|slot| holding(*slot)));
            let sessions = own.iter().map(|slot| session(90 + slot));
            let sessions = sessions.chain(foreign.iter().map(|number| session(*number))).collect();
            add_foreign(&mut ledger, &Gate { limit, sessions, ..Gate::default() }, NOW);
            let added: Vec<_> =
                ledger.holders.iter().skip(own.len()).filter_map(|holder| holder.slot).collect();
            assert_eq!(added, slots, "{own:?} {foreign:?}");
        }
    }

    /// A dlock that is paused, for instance, does not renew it.
    #[test]
    fn a_session_keeps_the_slot_of_its_entry_when_that_has_expired() {
        let mut late = holding(0);
        (late.token, late.lease_ends) = ("late".into(), Some(NOW.clock));
        let of = |holders| {
            let mut ledger = Ledger::default();
            ledger.holders = holders;
            ledger
        };
        let before = of(vec![late]);
        let mut gate = Gate { limit: 3, sessions: vec![session(1), session(90)], ..Gate::default() };
        // As another dlock stores it, without the entry.
        let mut ledger = of(vec![holding(1)]);
        gate.sessions.push(session(91));
        keep_expired(&mut ledger, &before, &gate, NOW);
        assert_eq!(ledger.holders, [holding(1), before.holders[0].clone()]);
        add_foreign(&mut ledger, &gate, NOW);
        let slots: Vec<_> = ledger.holders.iter().skip(2).filter_map(|holder| holder.slot).collect();
        assert_eq!(slots, [2, 0]);
        let mut ledger = Ledger::default();
        keep_expired(&mut ledger, &before, &gate.without(|held| held == session(90)), NOW);
        assert_eq!(ledger.holders, []);
    }
}
