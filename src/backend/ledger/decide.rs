//! The decisions: who may have the lock, and what a request changes in its ledger. Pure: no I/O and no clock.
//!
//! Each function takes the ledger as it was read and changes it to what is to be stored.

use std::time::Duration;

use super::grant::{enter, grant};
use super::observed::{Gate, GateMode, Lifetime, Observed, Turns, is_in_session};
use super::queue::{Turn, call_next, first_ticket, join_queue, leave_queue, turn, wake_first};
use super::room::Room;
use super::store::{Decision, Effect, Watch};
use super::value::{HolderEntry, Ledger, WaiterEntry};
use super::{history, success, view};
use crate::backend::{Attempt, Ending, Intent, Loss, Refusal, Release, Renewal};
use crate::lock::{Claim, Identity, Mode, Record};

/// How often a process that has released its hold checks whether the processes nested inside it have ended.
const INSIDE_INTERVAL: Duration = Duration::from_secs(1);

/// Decides on a request for the lock.
pub fn claim(
    ledger: &mut Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    intent: Intent,
) -> Decision<Attempt> {
    let late = late_in_gate(ledger, observed, claim);
    let decision = claim_by_entries(ledger, observed, claim, intent);
    if !matches!(decision, Decision::PassGate(_) | Decision::Done { value: Attempt::Granted(_), .. }) {
        // The next renewal needs the entry.
        ledger.holders.extend(late);
    }
    decision
}

/// Returns the entries of other dlocks that have expired, although their sessions keep the gate.
fn late_in_gate(ledger: &Ledger, observed: &dyn Observed, claim: &Claim) -> Vec<HolderEntry> {
    let is_shown = |late: &HolderEntry| {
        ledger.holders.iter().any(|other| other.identity().is_none() && other.gate == late.gate)
    };
    let is_late = |holder: &&HolderEntry| {
        let is_other = holder.identity().is_some() && holder.token != claim.token.reveal();
        is_other && !holder.counts(observed) && holder.is_in_gate(observed) && !is_shown(holder)
    };
    ledger.holders.iter().filter(is_late).cloned().collect()
}

/// Decides on a request for the lock by the entries that count.
fn claim_by_entries(
    ledger: &mut Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    intent: Intent,
) -> Decision<Attempt> {
    if let Some(why) = observed.lacks_ledger().filter(|_| needs_ledger(claim)) {
        return refuse(ledger, claim, Refusal::Unsupported(why));
    }
    ledger.holders.retain(|holder| holder.counts(observed));
    if let Some(mine) = ledger.hold_of_mut(claim).filter(|_| observed.loss().is_none()) {
        // The reply to an earlier attempt was lost.
        let lease = mine.extend(claim, claim.min_hold, observed);
        let (ticket, grant) = (mine.ticket, mine.grant(lease));
        leave_queue(ledger, claim);
        return done(Attempt::Granted(grant), Effect::Hold(ticket));
    }
    if let Some(outer) = outer_hold(ledger, claim) {
        return match enter(ledger, observed, claim, &outer) {
            Ok(decision) => decision,
            Err(refusal) => refuse(ledger, claim, refusal),
        };
    }
    if claim.requires_outer_hold {
        return refuse(ledger, claim, Refusal::OuterLost);
    }
    if observed.polled().is_some() && other_slots(ledger, claim, observed).is_some() {
        // Waiters have no leases: those that have agreed on the number may be dead, which only their turn shows.
        call_next(ledger, observed, claim.mode);
    }
    if let Some(slots) = other_slots(ledger, claim, observed) {
        return refuse(ledger, claim, Refusal::Slots(slots));
    }
    let intent = if observed.is_read_only() { Intent::TakeNow } else { intent };
    let effect = match intent {
        Intent::Enqueue => Effect::Wait(join_queue(ledger, claim, observed)),
        Intent::TakeNow => Effect::None,
    };
    let me = ledger.position_of(claim.token.reveal());
    if let Some(newer) = superseding(ledger, observed, claim, me) {
        let superseded = Refusal::Superseded(Box::new(newer));
        return leave(ledger, observed, claim, Attempt::Refused(superseded));
    }
    if ledger.live_freeze(observed.now()).is_some() {
        let (busy, watch) = view::busy(ledger, observed, claim, intent, &Turn::NotYet);
        return Decision::Done { value: Attempt::Busy(busy), effect, watch };
    }
    ledger.set_freeze(None);
    let room = Room::left_by(&ledger.holders);
    let turn = turn(&mut ledger.waiters, &room, me, claim.mode, observed);
    if turn == Turn::Ours {
        match observed.gate() {
            Gate::Untried => return Decision::PassGate(ledger.gate_for(claim.mode)),
            Gate::Passed(gate) => {
                return match success::due(ledger, observed, claim) {
                    Ok(undated) => {
                        let decision = grant(ledger, observed, claim, gate, undated);
                        if calls_others(observed) {
                            call_next(ledger, observed, claim.mode);
                        }
                        decision
                    }
                    Err(attempt) => leave(ledger, observed, claim, attempt),
                };
            }
            Gate::Closed => {
                // It is not late: it has claimed what was not free.
                if let Some(place) = ledger.position_of(claim.token.reveal()) {
                    ledger.waiters[place].called = None;
                }
            }
        }
    }
    let (busy, watch) = view::busy(ledger, observed, claim, intent, &turn);
    Decision::Done { value: Attempt::Busy(busy), effect, watch }
}

/// Returns whether a grant also calls the waiters that fit in with the new holder: no release has called them if the
/// hold before has expired, or while a foreign program was in the gate.
fn calls_others(observed: &dyn Observed) -> bool {
    let has_calls = observed.lifetime() == Lifetime::OfLease && observed.turns() == Turns::Called;
    has_calls || observed.gate_lifetime().is_some()
}

/// Returns whether a claim needs a ledger that others can see.
fn needs_ledger(claim: &Claim) -> bool {
    // Other processes enter the hold, or renew and release what `dlock acquire` has taken.
    let is_for_others = claim.requires_outer_hold || claim.identity.unattended;
    claim.mode != Mode::Exclusive || claim.once_per.is_some() || claim.identity.supersedes || is_for_others
}

/// Decides on a renewal. `rest` is what remains of the minimum hold time.
pub fn renew(
    ledger: &mut Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    rest: Duration,
) -> Decision<Renewal> {
    if let Some(loss) = observed.loss() {
        return Decision::reply(Renewal::Lost(loss));
    }
    restore(ledger, observed, claim);
    let Some(mine) = live_holder_of(ledger, observed, claim) else {
        let is_taken = ledger.holders.iter().any(|holder| holder.counts(observed));
        return Decision::reply(Renewal::Lost(if is_taken { Loss::Taken } else { Loss::Gone }));
    };
    let (lease, revoked) = (mine.extend(claim, rest, observed), mine.revoked.clone());
    let (ticket, family, mode) = (mine.ticket, mine.family, mine.mode);
    let keeps_gate = |owner: &HolderEntry| owner.has_owner(observed) && !observed.is_gate_replaced(owner);
    let owner = ledger.holders.iter().find(|holder| holder.ticket == family);
    if !owner.is_some_and(|owner| owner.token == claim.token.reveal() || keeps_gate(owner)) {
        // The owner of the outer hold is gone: this process takes over the gate, unless a foreign program has passed it
        // first.
        match observed.gate() {
            Gate::Untried => return Decision::PassGate(GateMode::of(mode)),
            // There is none.
            Gate::Passed(None) => {}
            Gate::Passed(gate) => {
                // The others that are inside the hold are inside that of this process from now on. Its owner, if it is
                // alive, has lost it.
                let is_inside = |other: &&mut HolderEntry| other.family == family && other.ticket != family;
                for inside in ledger.holders.iter_mut().filter(is_inside) {
                    (inside.family, inside.gate) = (ticket, gate);
                }
            }
            Gate::Closed => return Decision::reply(Renewal::Lost(Loss::Taken)),
        }
    }
    Decision::reply(Renewal::Held { lease, revoked })
}

/// Why the success of a hold is not stored that was lost before an earlier request could release it.
const SESSION_ENDED: &str = "the connection that held the lock broke before it was released";

/// Decides on the end of a hold, or of a queue position. With a `rest`, the lock is kept for that long. The record of
/// the `ending` is added to the history, once, and its success is stored.
pub fn release(
    ledger: &mut Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    rest: Duration,
    ending: Ending<'_>,
) -> Decision<Release> {
    let before =
        live_holder_of(ledger, observed, claim).map(|mine| (mine.revoked.is_some(), mine.ended_at.is_some()));
    let (is_revoked, was_ended) = before.unwrap_or_default();
    let mut decision = release_hold(ledger, observed, claim, rest, ending.success);
    let Decision::Done { value, .. } = &mut decision else { return decision };
    if matches!(value, Release::NotHeld) && observed.was_refused() && is_recorded(ledger, ending) {
        // Something on the way has sent the request twice.
        *value = Release::Released;
        return decision;
    }
    // A process that stays for the rest of the minimum hold time is recorded when its command has ended.
    let is_over = match value {
        Release::NotYet(_) => ledger.hold_of(claim).is_some_and(|mine| mine.ended_at.is_some()),
        // An earlier request has removed and recorded it, unless it is still there.
        Release::NotHeld => !ending.is_repeated || before.is_some(),
        _ => true,
    };
    if let (Some(record), true) = (ending.record, is_over && !was_ended) {
        let is_lost = matches!(value, Release::NotHeld);
        let interrupted = record.interrupted || record.has_succeeded() && (is_revoked || is_lost);
        add_record(ledger, observed, &Record { interrupted, ..record.clone() });
    }
    if matches!(value, Release::NotHeld) && ending.is_repeated && ending.success.is_some() && is_over {
        *value = Release::SuccessNotStored(SESSION_ENDED.to_owned());
    }
    decision
}

/// Returns whether the very record of this ending is in the history.
fn is_recorded(ledger: &Ledger, ending: Ending<'_>) -> bool {
    ending.record.is_some_and(|record| ledger.history.iter().any(|(_, noted)| noted == record))
}

/// Adds a record to the history.
pub fn add_record(ledger: &mut Ledger, observed: &dyn Observed, record: &Record) -> Decision<()> {
    history::append(&mut ledger.history, observed.now().wall / 1000, record.clone());
    Decision::reply(())
}

fn release_hold(
    ledger: &mut Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    rest: Duration,
    success: Option<Duration>,
) -> Decision<Release> {
    let waited = ledger.position_of(claim.token.reveal()).is_some();
    leave_queue(ledger, claim);
    restore(ledger, observed, claim);
    let now = observed.now();
    let is_owners = matches!(observed.lifetime(), Lifetime::OfOwner(_));
    let is_lost = observed.loss().is_some();
    let in_session = is_in_session(observed) && !is_lost;
    let Some(mine) = live_holder_of(ledger, observed, claim) else {
        if waited && !is_owners {
            // It may have been called.
            call_next(ledger, observed, claim.mode);
        }
        return done(Release::NotHeld, Effect::Leave);
    };
    let (ticket, family, mode) = (mine.ticket, mine.family, mine.mode);
    let success = success.filter(|_| mine.revoked.is_none() && !is_lost);
    let success = success.map(|held| success::of_hold(claim, mine, now, held));
    if is_lost && mine.is_kept(now) && mine.revoked.is_none() {
        // Only its entry excludes other dlocks now, as after the death of its owner.
        mine.ended_at.get_or_insert(now.wall);
        mine.lease_ends = mine.lease_ends.map(|_| now.clock);
        return done(Release::NotHeld, Effect::Leave);
    }
    let is_kept = !rest.is_zero() && mine.revoked.is_none();
    if is_kept {
        mine.ended_at.get_or_insert(now.wall);
        mine.kept_until = Some(observed.end_of(rest));
        if !is_owners {
            // A process that stays to keep the gate releases the gate and the entry itself.
            mine.lease_ends = Some(observed.end_of(if in_session { claim.ttl } else { rest }));
        }
    }
    ledger.success = success.or(ledger.success.take());
    if is_kept {
        let release = match in_session {
            _ if is_owners => Release::NotYet(rest),
            // The session must not seem to be idle.
            true => Release::NotYet(rest.min(claim.ttl / 3)),
            false => Release::Kept,
        };
        return done(release, Effect::Leave);
    }
    // The lock ends with this process, although others are inside its hold.
    let keeps_hold = match observed.turns() {
        Turns::Called => matches!(observed.gate(), Gate::Passed(_)),
        Turns::ByOrder => ticket == family,
    };
    let inside = ledger
        .holders
        .iter()
        .find(|other| other.family == family && other.ticket != ticket && other.has_owner(observed))
        .filter(|_| (is_owners || in_session) && keeps_hold);
    if let Some(inside) = inside {
        let watch = vec![Watch::Holder(inside.ticket)];
        if let Some(mine) = ledger.hold_of_mut(claim) {
            mine.extend(claim, Duration::ZERO, observed);
        }
        return Decision::Done { value: Release::NotYet(INSIDE_INTERVAL), effect: Effect::Leave, watch };
    }
    ledger.holders.retain(|holder| holder.ticket != ticket);
    call_next(ledger, observed, mode);
    if is_lost && observed.gate_lifetime().is_some() {
        wake_first(ledger, observed);
    }
    done(if is_lost { Release::NotHeld } else { Release::Released }, Effect::Free)
}

fn done<T>(value: T, effect: Effect) -> Decision<T> {
    Decision::Done { value, effect, watch: Vec::new() }
}

/// Removes a claim whose turn has come and that does not take it.
fn leave(ledger: &mut Ledger, observed: &dyn Observed, claim: &Claim, attempt: Attempt) -> Decision<Attempt> {
    leave_queue(ledger, claim);
    if observed.lifetime() == Lifetime::OfLease {
        call_next(ledger, observed, claim.mode);
    }
    done(attempt, Effect::Leave)
}

/// Returns a waiting run that has come later than the claim and supersedes it. Not the order of the queue counts but that in
/// which both came first: one that was late for its turn has lost its position, and is not the newest by that.
fn superseding(
    ledger: &Ledger,
    observed: &dyn Observed,
    claim: &Claim,
    me: Option<usize>,
) -> Option<Identity> {
    let me = me.filter(|_| claim.identity.supersedes)?;
    let mine = first_ticket(&claim.identity, ledger.waiters[me].ticket);
    let mut others = ledger.waiters.iter().enumerate().filter(|(place, _)| *place != me);
    let is_newer = |waiter: &WaiterEntry| {
        waiter.identity.supersedes && first_ticket(&waiter.identity, waiter.ticket) > mine
    };
    let newer = others.find(|(_, waiter)| is_newer(waiter) && waiter.has_owner(observed))?;
    Some(newer.1.identity.clone())
}

fn refuse(ledger: &mut Ledger, claim: &Claim, refusal: Refusal) -> Decision<Attempt> {
    leave_queue(ledger, claim);
    done(Attempt::Refused(refusal), Effect::Leave)
}

/// Returns the hold of the claim, unless its lease has ended and no session keeps the gate for it.
fn live_holder_of<'a>(
    ledger: &'a mut Ledger,
    observed: &dyn Observed,
    claim: &Claim,
) -> Option<&'a mut HolderEntry> {
    let now = observed.now().clock;
    let keeps_gate = |mine: &HolderEntry| observed.loss().is_none() && mine.is_in_gate(observed);
    let is_alive = |mine: &HolderEntry| mine.lease_ends.is_none_or(|ends| now < ends) || keeps_gate(mine);
    ledger.hold_of_mut(claim).filter(|mine| is_alive(mine))
}

/// Records a hold again that the ledger has lost, if this process can prove it.
fn restore(ledger: &mut Ledger, observed: &dyn Observed, claim: &Claim) {
    if let Some(proven) = observed.proven_hold()
        && ledger.hold_of(claim).is_none()
    {
        ledger.holders.push(proven.clone());
        ledger.incomplete = true;
        ledger.fencing_token = ledger.fencing_token.max(proven.fencing_token);
    }
}

/// Returns the hold that the claim's process runs in.
fn outer_hold(ledger: &Ledger, claim: &Claim) -> Option<HolderEntry> {
    let is_outer = |holder: &&HolderEntry| claim.outer.iter().any(|token| token.reveal() == holder.token);
    ledger.holders.iter().find(is_outer).cloned()
}

/// Returns another number of slots that live users of the lock have agreed on: its holders and the waiters ahead.
fn other_slots(ledger: &Ledger, claim: &Claim, observed: &dyn Observed) -> Option<u32> {
    let Mode::Slots(wanted) = claim.mode else { return None };
    let other = |mode: Mode| match mode {
        Mode::Slots(slots) if slots != wanted => Some(slots),
        _ => None,
    };
    let ahead = ledger.waiters.iter().take_while(|waiter| waiter.token != claim.token.reveal());
    ledger
        .holders
        .iter()
        .find_map(|holder| other(holder.mode))
        .or_else(|| ahead.filter(|waiter| waiter.has_owner(observed)).find_map(|waiter| other(waiter.mode)))
}

#[cfg(test)]
mod tests {
    use super::super::observed::{GateLifetime, Now};
    use super::*;
    use crate::lock::{LockName, Token};

    /// A store whose gate ends with the session that has passed it, at this second.
    struct Gated(u64, Gate);

    impl Observed for Gated {
        fn now(&self) -> Now {
            Now { clock: Duration::from_secs(self.0), wall: self.0 * 1_000_000 }
        }

        fn gate(&self) -> Gate {
            self.1
        }

        fn gate_lifetime(&self) -> Option<GateLifetime> {
            Some(GateLifetime::Session)
        }
    }

    fn claim_of(token: &str) -> Claim {
        Claim::new(LockName::new("x").expect("a name"), Token::from_text(token), Duration::from_secs(30))
    }

    #[test]
    fn a_dead_owner_keeps_no_gate_although_the_lock_is_kept_for_it() {
        let mut ledger = Ledger::default();
        let passed = Gate::Passed(Some((1, 1)));
        let outer = Claim { min_hold: Duration::from_secs(3600), ..claim_of("outer") };
        grant(&mut ledger, &Gated(0, passed), &outer, Some((1, 1)), None);
        let rest = Duration::from_secs(3590);
        renew(&mut ledger, &Gated(10, passed), &outer, rest);
        let hold = ledger.holders[0].clone();
        assert!(enter(&mut ledger, &Gated(11, Gate::Untried), &claim_of("inner"), &hold).is_ok());
        let renewal = renew(&mut ledger, &Gated(40, Gate::Untried), &claim_of("inner"), Duration::ZERO);
        assert!(matches!(renewal, Decision::PassGate(GateMode::Exclusive)));
        assert!(
            ledger.holders[0].counts(&Gated(40, passed)),
            "others have to wait for its minimum hold time"
        );
    }

    /// The clock was set forward.
    #[test]
    fn a_hold_whose_session_keeps_the_gate_outlasts_its_lease() {
        let passed = Gate::Passed(Some((1, 1)));
        let mut ledger = Ledger::default();
        grant(&mut ledger, &Gated(0, passed), &claim_of("holder"), Some((1, 1)), None);
        let waits = claim(&mut ledger, &Gated(1000, Gate::Closed), &claim_of("waiter"), Intent::Enqueue);
        assert!(matches!(waits, Decision::Done { value: Attempt::Busy(_), .. }), "{waits:?}");
        let renewal = renew(&mut ledger, &Gated(1001, passed), &claim_of("holder"), Duration::ZERO);
        assert!(matches!(renewal, Decision::Done { value: Renewal::Held { .. }, .. }), "{renewal:?}");
        assert_eq!(ledger.holders[0].lease_ends, Some(Duration::from_secs(1031)));
        let after = Gated(2000, passed);
        let ended = release(&mut ledger, &after, &claim_of("holder"), Duration::ZERO, Ending::default());
        assert!(matches!(ended, Decision::Done { value: Release::Released, .. }), "{ended:?}");
        assert_eq!(ledger.holders, []);
    }

    /// A store in which the sessions of all holders have ended, at this second.
    struct Ended(u64);

    impl Observed for Ended {
        fn now(&self) -> Now {
            Gated(self.0, Gate::Untried).now()
        }

        fn gate(&self) -> Gate {
            Gate::Untried
        }

        fn gate_lifetime(&self) -> Option<GateLifetime> {
            Some(GateLifetime::Session)
        }

        fn is_gate_replaced(&self, _: &HolderEntry) -> bool {
            true
        }
    }

    #[test]
    fn a_hold_whose_session_has_ended_ends_with_its_lease() {
        let mut ledger = Ledger::default();
        grant(&mut ledger, &Gated(0, Gate::Passed(Some((1, 1)))), &claim_of("holder"), Some((1, 1)), None);
        let renewal = renew(&mut ledger, &Ended(40), &claim_of("holder"), Duration::ZERO);
        assert!(matches!(renewal, Decision::Done { value: Renewal::Lost(_), .. }), "{renewal:?}");
    }

    #[test]
    fn a_waiter_that_finds_the_gate_closed_is_not_late() {
        let mut ledger = Ledger::default();
        // The gate seems to be open to those who have not tried, as that of Consul while a lock is delayed.
        let mut claims = |token: &str, second: u64| {
            claim(&mut ledger, &Gated(second, Gate::Closed), &claim_of(token), Intent::Enqueue);
            ledger.position_of(token)
        };
        for second in 0..20 {
            assert_eq!(claims("first", second), Some(0), "in second {second}");
            assert_eq!(claims("second", second), Some(1), "in second {second}");
        }
    }

    /// A store whose waiters have no leases, at this second.
    struct Polled(u64);

    impl Observed for Polled {
        fn now(&self) -> Now {
            Now { clock: Duration::from_secs(self.0), wall: self.0 * 1_000_000 }
        }

        fn polled(&self) -> Option<Duration> {
            Some(Duration::from_secs(5))
        }
    }

    #[test]
    fn a_dead_waiter_for_a_slot_holds_up_another_number_of_slots_for_its_turn_only() {
        let mut ledger = Ledger::default();
        let slots = |token: &str, slots| Claim { mode: Mode::Slots(slots), ..claim_of(token) };
        claim(&mut ledger, &Polled(0), &claim_of("holder"), Intent::TakeNow);
        claim(&mut ledger, &Polled(1), &slots("dead", 3), Intent::Enqueue);
        release(&mut ledger, &Polled(2), &claim_of("holder"), Duration::ZERO, Ending::default());
        let mut takes = |second| {
            let decision = claim(&mut ledger, &Polled(second), &slots("next", 2), Intent::TakeNow);
            matches!(decision, Decision::Done { value: Attempt::Granted(_), .. })
        };
        assert_eq!([3, 6, 8].map(&mut takes), [false, false, true]);
    }

    #[test]
    fn a_waiter_that_could_not_claim_keeps_its_place() {
        let mut ledger = Ledger::default();
        let mut take = |token: &str, second, intent| {
            claim(&mut ledger, &Polled(second), &claim_of(token), intent);
            ledger.waiters.iter().map(|waiter| waiter.token.clone()).collect::<Vec<_>>()
        };
        take("holder", 0, Intent::TakeNow);
        take("first", 1, Intent::Enqueue);
        assert_eq!(take("second", 1, Intent::Enqueue), ["first", "second"]);
        release(&mut ledger, &Polled(2), &claim_of("holder"), Duration::ZERO, Ending::default());
        // Another program has been faster than the one that was called.
        let foreign = Ledger::of_foreign_holder(0).holders;
        ledger.holders = foreign;
        claim(&mut ledger, &Polled(3), &claim_of("first"), Intent::Enqueue);
        claim(&mut ledger, &Polled(20), &claim_of("second"), Intent::Enqueue);
        assert_eq!(ledger.position_of("first"), Some(0));
    }

    #[test]
    fn runs_whose_outer_hold_has_ended_are_inside_that_of_the_first_that_takes_over() {
        let (passed, own) = (Gate::Passed(Some((1, 1))), Gate::Passed(Some((2, 2))));
        let mut ledger = Ledger::default();
        grant(&mut ledger, &Gated(0, passed), &claim_of("outer"), Some((1, 1)), None);
        for token in ["one", "two"] {
            let outer = ledger.holders[0].clone();
            assert!(enter(&mut ledger, &Gated(10, Gate::Untried), &claim_of(token), &outer).is_ok());
        }
        let [one, two] = ["one", "two"].map(claim_of);
        let mut renewal = |claim: &Claim, gate| renew(&mut ledger, &Gated(35, gate), claim, Duration::ZERO);
        assert!(matches!(renewal(&one, Gate::Untried), Decision::PassGate(GateMode::Exclusive)));
        let held = |decision| matches!(decision, Decision::Done { value: Renewal::Held { .. }, .. });
        assert!(held(renewal(&one, own)));
        assert!(held(renewal(&two, Gate::Untried)), "it has not lost the lock to the other one");
        assert!(ledger.holders[1..].iter().all(|holder| holder.gate == Some((2, 2))));
        let mut ends = |claim: &Claim, gate| {
            let ended = release(&mut ledger, &Gated(36, gate), claim, Duration::ZERO, Ending::default());
            matches!(ended, Decision::Done { value: Release::Released, .. })
        };
        assert!(!ends(&one, own), "the other one is inside its hold");
        assert!(ends(&two, Gate::Untried), "neither waits for the other one for ever");
        assert!(ends(&one, own));
    }
}
