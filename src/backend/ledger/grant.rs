//! Writes the entry of a new holder.

use std::time::Duration;

use super::observed::{GateMode, Observed};
use super::queue::leave_queue;
use super::room::Room;
use super::store::{Decision, Effect, Watch};
use super::value::{HolderEntry, Ledger};
use crate::backend::{Attempt, Refusal};
use crate::lock::{Claim, FencingToken, Grant, Mode};

/// Grants the lock to the claim, whose turn it is and which has passed the gate.
pub(super) fn grant(
    ledger: &mut Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    gate: Option<(u64, u64)>,
    undated: Option<Duration>,
) -> Decision<Attempt> {
    let next = observed.least_fencing_token().max(ledger.fencing_token.saturating_add(1));
    let Some(fencing) = FencingToken::new(next) else { return Decision::Exhausted };
    // A holder that has passed the gate exclusively, even if only for a moment, is the only one.
    ledger.incomplete &= ledger.gate_for(claim.mode) == GateMode::Shared;
    ledger.fencing_token = fencing.number();
    let slot = matches!(claim.mode, Mode::Slots(_)).then(|| Room::left_by(&ledger.holders).free_slot());
    let granted = NewHold { mode: claim.mode, family: None, slot, fencing, gate, lease: None, undated };
    hold(ledger, observed, claim, granted, Vec::new())
}

/// Enters the hold that the claim's process runs in.
pub(super) fn enter(
    ledger: &mut Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    outer: &HolderEntry,
) -> Result<Decision<Attempt>, Refusal> {
    if !claim.mode.fits_inside(outer.mode) {
        return Err(match (claim.mode, outer.mode) {
            (Mode::Slots(_), Mode::Slots(of)) => Refusal::Slots(of),
            _ => Refusal::Inside(outer.mode),
        });
    }
    let fencing = FencingToken::new(outer.fencing_token).filter(|_| !observed.is_gate_replaced(outer));
    let fencing = fencing.ok_or(Refusal::OuterLost)?;
    let slot = match (claim.mode, outer.mode) {
        (Mode::Slots(_), Mode::Exclusive) => Some(Room::left_by(&ledger.holders).free_slot()),
        (Mode::Slots(_), _) => outer.slot,
        _ => None,
    };
    let (mode, family, gate) = (outer.mode, Some(outer.family), outer.gate);
    // The gate belongs to the process that passed it; if that ends first, the next renewal passes it again, and has to come
    // before the gate is open to others.
    let lease = outer.lease.filter(|_| observed.gate_lifetime().is_some()).map(|lease| lease.min(claim.ttl));
    let entered = NewHold { mode, family, slot, fencing, gate, lease, undated: None };
    Ok(hold(ledger, observed, claim, entered, vec![Watch::Holder(outer.family)]))
}

/// What is granted, before it is recorded.
struct NewHold {
    mode: Mode,
    /// The family of the outer hold, if it was entered.
    family: Option<u64>,
    slot: Option<u32>,
    fencing: FencingToken,
    gate: Option<(u64, u64)>,
    /// The length of its lease, if that is not the one that the claim requests.
    lease: Option<Duration>,
    /// See [`Grant::undated`].
    undated: Option<Duration>,
}

fn hold(
    ledger: &mut Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    hold: NewHold,
    watch: Vec<Watch>,
) -> Decision<Attempt> {
    let now = observed.now();
    // A waiter keeps its ticket.
    let ticket = match ledger.position_of(claim.token.reveal()) {
        Some(place) => ledger.waiters[place].ticket,
        None => ledger.next_ticket(now),
    };
    leave_queue(ledger, claim);
    let mut entry = HolderEntry {
        ticket,
        family: hold.family.unwrap_or(ticket),
        token: claim.token.reveal().to_owned(),
        mode: hold.mode,
        slot: hold.slot,
        fencing_token: hold.fencing.number(),
        gate: hold.gate,
        acquired_at: now.wall,
        ended_at: None,
        kept_until: (!claim.min_hold.is_zero()).then(|| observed.end_of(claim.min_hold)),
        lease_ends: None,
        lease: hold.lease,
        revoked: None,
        identity: claim.identity.clone(),
    };
    let lease = entry.extend(claim, claim.min_hold, observed);
    let grant = Grant { undated: hold.undated, ..entry.grant(lease) };
    ledger.holders.push(entry);
    Decision::Done { value: Attempt::Granted(grant), effect: Effect::Hold(ticket), watch }
}
