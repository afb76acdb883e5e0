//! Each rule of the decisions, by tables.

use std::time::Duration;

use dlock::backend::admin::{Removal, Revoked};
use dlock::backend::ledger::{
    Decision, Effect, Gate, GateLifetime, HolderEntry, Ledger, Lifetime, Now, Observed, WaiterEntry, Watch,
    administer, decide,
};
use dlock::backend::{Attempt, CLAIM_WITHIN, Ending, Intent, Loss, Refusal, Release, Renewal};
use dlock::lock::{Claim, FencingToken, Holder, Identity, LockName, Mode, Record, Revocation, Token};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const OF_2: Mode = Mode::Slots(2);
const NOW: Duration = Duration::from_secs(100);
const TTL: Duration = Duration::from_secs(30);

/// What the store observes.
struct Observation {
    lifetime: Lifetime,
    gate: Gate,
    foreign: bool,
    /// The tickets of dead holders and waiters: all from this one on.
    dead_from: u64,
    dead_until: u64,
    proven: Option<HolderEntry>,
    /// What ends the passage of a gate beside a ledger of leases, and how the hold was lost.
    gate_lifetime: Option<GateLifetime>,
    loss: Option<Loss>,
    was_refused: bool,
}

const DESCRIPTORS: Observation = Observation {
    lifetime: Lifetime::OfOwner(None),
    gate: Gate::Passed(None),
    foreign: false,
    dead_from: 0,
    dead_until: 0,
    proven: None,
    gate_lifetime: None,
    loss: None,
    was_refused: false,
};

const LEASES: Observation = Observation { lifetime: Lifetime::OfLease, ..DESCRIPTORS };

impl Observed for Observation {
    fn now(&self) -> Now {
        Now { clock: NOW, wall: 0 }
    }
    fn lifetime(&self) -> Lifetime {
        self.lifetime
    }
    fn is_holder_dead(&self, entry: &HolderEntry) -> bool {
        (self.dead_from..self.dead_until).contains(&entry.ticket)
    }
    fn is_waiter_dead(&self, entry: &WaiterEntry) -> bool {
        (self.dead_from..self.dead_until).contains(&entry.ticket)
    }
    fn gate(&self) -> Gate {
        self.gate
    }
    fn admits(&self, _: Mode) -> bool {
        !self.foreign
    }
    fn proven_hold(&self) -> Option<&HolderEntry> {
        self.proven.as_ref()
    }
    fn gate_lifetime(&self) -> Option<GateLifetime> {
        self.gate_lifetime
    }
    fn loss(&self) -> Option<Loss> {
        self.loss
    }
    fn was_refused(&self) -> bool {
        self.was_refused
    }
}

fn claim_of(ticket: u64, mode: Mode) -> Claim {
    Claim {
        name: LockName::new("x").unwrap(),
        token: Token::from_text(format!("token-{ticket}")),
        mode,
        ttl: TTL,
        min_hold: Duration::ZERO,
        identity: Identity::default(),
        outer: Vec::new(),
        requires_outer_hold: false,
        once_per: None,
    }
}

fn waiter(ticket: u64, mode: Mode) -> WaiterEntry {
    WaiterEntry {
        ticket,
        token: format!("token-{ticket}"),
        mode,
        since: 0,
        called: None,
        lease_ends: None,
        identity: Identity::default(),
    }
}

fn holder(ticket: u64, mode: Mode, slot: Option<u32>) -> HolderEntry {
    HolderEntry {
        ticket,
        family: ticket,
        token: format!("token-{ticket}"),
        mode,
        slot,
        fencing_token: ticket,
        gate: None,
        acquired_at: 0,
        ended_at: None,
        kept_until: None,
        lease_ends: None,
        lease: None,
        revoked: None,
        identity: Identity::default(),
    }
}

fn ledger(holders: &[HolderEntry], waiters: &[WaiterEntry]) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.ticket = 1000;
    ledger.fencing_token = 1000;
    ledger.holders = holders.to_vec();
    ledger.waiters = waiters.to_vec();
    ledger
}

/// The decision on a claim, in short.
fn claimed(ledger: &mut Ledger, observation: &Observation, claim: &Claim) -> String {
    let is_queued = ledger.waiters.iter().any(|waiter| waiter.token == claim.token.reveal());
    let intent = if is_queued { Intent::Enqueue } else { Intent::TakeNow };
    match decide::claim(ledger, observation, claim, intent) {
        Decision::Done { value: Attempt::Granted(grant), .. } => match grant.slot {
            Some(slot) => format!("slot {slot}"),
            None => "granted".to_owned(),
        },
        Decision::Done { value: Attempt::Busy(busy), .. } if busy.promised => "promised".to_owned(),
        Decision::Done { value: Attempt::Busy(_), .. } => "busy".to_owned(),
        Decision::Done { value: Attempt::Refused(refusal), .. } => format!("{refusal:?}"),
        Decision::Done { value: Attempt::NotDue(_), .. } => "not due".to_owned(),
        Decision::PassGate(mode) => format!("gate {mode:?}"),
        Decision::Exhausted => "exhausted".to_owned(),
    }
}

/// A claim that is not queued comes after all waiters; one with the ticket of a waiter has its position.
#[test]
fn modes_and_order_decide_who_is_granted() {
    let [w1, w2, w3] = [waiter(1, X), waiter(2, X), waiter(3, S)];
    let readers = [waiter(1, S), waiter(2, S), waiter(3, X), waiter(4, S)];
    let slots = [waiter(1, OF_2), waiter(2, OF_2)];
    let one_slot = holder(9, OF_2, Some(1));
    let nested = [holder(9, OF_2, Some(0)), holder(8, OF_2, Some(0))];
    for (holders, waiters, me, mode, expected) in [
        (&[][..], &[][..], 7, X, "granted"),
        (&[holder(9, X, None)], &[], 7, X, "busy"),
        (&[holder(9, X, None)], &[], 7, S, "busy"),
        (&[holder(9, S, None)], &[], 7, S, "granted"),
        (&[holder(9, S, None)], &[], 7, X, "busy"),
        (&[holder(9, S, None)], &[], 7, OF_2, "busy"),
        // First come, first served.
        (&[], &[w1.clone(), w2.clone()], 1, X, "granted"),
        (&[], &[w1.clone(), w2.clone()], 2, X, "promised"),
        (&[], &[w1.clone(), w2.clone()], 7, X, "promised"),
        (&[holder(9, X, None)], &[w1.clone(), w2.clone()], 1, X, "busy"),
        // A waiting writer stops later readers.
        (&[holder(9, S, None)], &[w1.clone(), w3.clone()], 7, S, "busy"),
        (&[holder(9, S, None)], &[w1.clone(), w3.clone()], 3, S, "busy"),
        (&[], &[w1.clone(), w3.clone()], 3, S, "promised"),
        // Readers at the head go together.
        (&[], &readers, 2, S, "granted"),
        (&[], &readers, 3, X, "promised"),
        (&[], &readers, 4, S, "promised"),
        // Slots are limited, and the lowest is taken; nested holders share one.
        (&[], &[], 7, OF_2, "slot 0"),
        (std::slice::from_ref(&one_slot), &[], 7, OF_2, "slot 0"),
        (&[holder(9, OF_2, Some(0))], &[], 7, OF_2, "slot 1"),
        (&[one_slot.clone(), holder(8, OF_2, Some(0))], &[], 7, OF_2, "busy"),
        (std::slice::from_ref(&one_slot), &slots, 1, OF_2, "slot 0"),
        (std::slice::from_ref(&one_slot), &slots, 2, OF_2, "promised"),
        (&nested, &[], 7, OF_2, "slot 1"),
        // All users agree on their number.
        (std::slice::from_ref(&one_slot), &[], 7, Mode::Slots(3), "Slots(2)"),
        (&[holder(9, X, None)], &slots, 7, Mode::Slots(3), "Slots(2)"),
        (std::slice::from_ref(&one_slot), &[], 7, X, "busy"),
    ] {
        let mut ledger = ledger(holders, waiters);
        assert_eq!(
            claimed(&mut ledger, &DESCRIPTORS, &claim_of(me, mode)),
            expected,
            "{me} {mode:?} beside {:?} after {:?}",
            holders.iter().map(|one| one.mode).collect::<Vec<_>>(),
            waiters.iter().map(|one| one.mode).collect::<Vec<_>>()
        );
    }
}

#[test]
fn dead_and_late_waiters_lose_their_positions() {
    let tickets = |ledger: &Ledger| ledger.waiters.iter().map(|one| one.ticket).collect::<Vec<_>>();
    let waiters = [waiter(1, X), waiter(2, X), waiter(3, X)];
    let mut queue = ledger(&[], &waiters);
    let dead = Observation { dead_from: 1, dead_until: 2, ..DESCRIPTORS };
    assert_eq!(claimed(&mut queue, &dead, &claim_of(2, X)), "granted");
    assert_eq!(tickets(&queue), [3]);

    let mut queue = ledger(&[], &waiters);
    queue.waiters[0].called = Some(NOW - CLAIM_WITHIN);
    assert_eq!(claimed(&mut queue.clone(), &DESCRIPTORS, &claim_of(1, X)), "granted", "late, but the first");
    assert_eq!(claimed(&mut queue, &DESCRIPTORS, &claim_of(2, X)), "granted");
    assert_eq!(tickets(&queue), [3]);

    let mut queue = ledger(&[], &waiters);
    queue.waiters[0].lease_ends = Some(NOW);
    assert_eq!(claimed(&mut queue, &LEASES, &claim_of(2, X)), "granted", "its lease has ended");

    // With a separate removal for each of them this would take minutes.
    const DEAD: u64 = 100_000;
    let many: Vec<_> = (0..DEAD + 2).map(|ticket| waiter(ticket, X)).collect();
    let mut queue = ledger(&[], &many);
    let dead = Observation { dead_until: DEAD, ..DESCRIPTORS };
    assert_eq!(claimed(&mut queue, &dead, &claim_of(DEAD, X)), "granted");
    assert_eq!(tickets(&queue), [DEAD + 1]);
}

#[test]
fn no_waiter_gets_its_turn_while_a_foreign_program_is_in_the_gate() {
    let foreign = Observation { foreign: true, gate: Gate::Closed, ..DESCRIPTORS };
    let mut queue = ledger(&[], &[waiter(1, X), waiter(2, X)]);
    assert_eq!(claimed(&mut queue, &foreign, &claim_of(2, X)), "busy");
    assert_eq!(queue.waiters[0].called, None);
    let decision = decide::claim(&mut queue, &foreign, &claim_of(1, X), Intent::Enqueue);
    let Decision::Done { value: Attempt::Busy(busy), effect, watch } = decision else {
        panic!("{decision:?}")
    };
    assert_eq!((busy.position, effect, watch.len()), (Some(1), Effect::Wait(1), 1));
    assert!(matches!(watch[0], Watch::Gate(_)) && busy.holders == [Holder::default()]);
    queue.waiters[0].called = Some(NOW - CLAIM_WITHIN);
    assert_eq!(claimed(&mut queue, &foreign, &claim_of(2, X)), "busy");
    assert_eq!((queue.waiters.len(), queue.waiters[0].called), (2, None), "it is not late");
}

/// Slots are counted in the ledger: the first holder makes sure that it is the only one in the gate.
#[test]
fn the_gate_is_passed_before_the_grant() {
    let untried = Observation { gate: Gate::Untried, ..DESCRIPTORS };
    for (holders, incomplete, mode, expected) in [
        (&[][..], false, X, "gate Exclusive"),
        (&[], false, S, "gate Shared"),
        (&[], false, OF_2, "gate Exclusive"),
        (&[holder(9, OF_2, Some(0))], false, OF_2, "gate Shared"),
        (&[holder(9, OF_2, Some(0))], true, OF_2, "gate Exclusive"),
        (&[holder(9, X, None)], false, X, "busy"),
    ] {
        let mut ledger = ledger(holders, &[]);
        ledger.incomplete = incomplete;
        assert_eq!(claimed(&mut ledger, &untried, &claim_of(7, mode)), expected);
    }
}

#[test]
fn a_nested_claim_enters_the_hold_of_its_outer_one() {
    for (outer, inner, expected) in [
        (holder(9, X, None), X, "granted"),
        (holder(9, X, None), S, "granted"),
        (holder(9, X, None), OF_2, "slot 0"),
        (holder(9, S, None), S, "granted"),
        (holder(9, S, None), X, "Inside(Shared)"),
        (holder(9, OF_2, Some(1)), OF_2, "slot 1"),
        (holder(9, OF_2, Some(1)), Mode::Slots(3), "Slots(2)"),
    ] {
        let mut ledger = ledger(&[outer], &[waiter(1, X)]);
        let claim = Claim { outer: vec![Token::from_text("token-9")], ..claim_of(7, inner) };
        assert_eq!(claimed(&mut ledger, &DESCRIPTORS, &claim), expected);
        if let [outer, inner] = ledger.holders.as_slice() {
            assert_eq!((inner.family, inner.mode, inner.fencing_token), (9, outer.mode, 9));
        }
    }
    let lost = Claim { requires_outer_hold: true, ..claim_of(7, X) };
    assert_eq!(claimed(&mut ledger(&[], &[]), &DESCRIPTORS, &lost), format!("{:?}", Refusal::OuterLost));
}

#[test]
fn fencing_tokens_grow_and_end() {
    let mut ledger = ledger(&[], &[]);
    assert_eq!(claimed(&mut ledger, &DESCRIPTORS, &claim_of(7, S)), "granted");
    assert_eq!(claimed(&mut ledger, &DESCRIPTORS, &claim_of(8, S)), "granted");
    assert_eq!(ledger.holders.iter().map(|one| one.fencing_token).collect::<Vec<_>>(), [1001, 1002]);
    assert_eq!(claimed(&mut ledger, &DESCRIPTORS, &claim_of(7, S)), "granted", "again");
    assert_eq!((ledger.holders.len(), ledger.fencing_token), (2, 1002));
    ledger.fencing_token = FencingToken::END - 1;
    assert_eq!(claimed(&mut ledger, &DESCRIPTORS, &claim_of(6, S)), "exhausted");
}

fn renewed(ledger: &mut Ledger, observation: &Observation, ticket: u64) -> Renewal {
    match decide::renew(ledger, observation, &claim_of(ticket, X), Duration::ZERO) {
        Decision::Done { value, .. } => value,
        decision => panic!("{decision:?}"),
    }
}

#[test]
fn a_renewal_never_creates_a_lock_that_is_lost() {
    let mut mine = holder(7, X, None);
    mine.lease_ends = Some(NOW + Duration::from_secs(1));
    let mut held = ledger(std::slice::from_ref(&mine), &[]);
    assert_eq!(renewed(&mut held, &LEASES, 7), Renewal::Held { lease: Some(TTL), revoked: None });
    assert_eq!(held.holders[0].lease_ends, Some(NOW + TTL));
    assert_eq!(renewed(&mut held, &LEASES, 8), Renewal::Lost(Loss::Taken));
    assert_eq!(renewed(&mut ledger(&[], &[]), &LEASES, 7), Renewal::Lost(Loss::Gone));
    held.holders[0].lease_ends = Some(NOW);
    assert_eq!(renewed(&mut held, &LEASES, 7), Renewal::Lost(Loss::Gone), "its lease has ended");
    assert!(ledger(&[], &[]).holders.is_empty());
    // What a descriptor proves is recorded again.
    let proven = Observation { proven: Some(holder(7, X, None)), ..DESCRIPTORS };
    let mut lost = ledger(&[], &[]);
    assert_eq!(renewed(&mut lost, &proven, 7), Renewal::Held { lease: None, revoked: None });
    assert!(lost.incomplete && lost.holders == [holder(7, X, None)]);
}

fn released(
    ledger: &mut Ledger,
    observation: &Observation,
    ticket: u64,
    rest: Duration,
) -> (Release, Effect) {
    match decide::release(ledger, observation, &claim_of(ticket, X), rest, Ending::default()) {
        Decision::Done { value, effect, .. } => (value, effect),
        decision => panic!("{decision:?}"),
    }
}

#[test]
fn a_release_ends_only_what_the_claim_has_and_calls_the_next_waiters() {
    let rest = Duration::from_secs(5);
    let mut queue = ledger(&[holder(7, X, None)], &[waiter(1, S), waiter(2, S), waiter(3, X)]);
    assert_eq!(released(&mut queue, &DESCRIPTORS, 8, Duration::ZERO), (Release::NotHeld, Effect::Leave));
    assert_eq!(released(&mut queue.clone(), &DESCRIPTORS, 7, rest), (Release::NotYet(rest), Effect::Leave));
    assert_eq!(released(&mut queue, &DESCRIPTORS, 7, Duration::ZERO), (Release::Released, Effect::Free));
    let called: Vec<_> = queue.waiters.iter().map(|one| one.called).collect();
    assert_eq!(called, [Some(NOW), Some(NOW), None]);

    let mut kept = ledger(&[holder(7, X, None)], &[]);
    kept.holders[0].lease_ends = Some(NOW + TTL);
    assert_eq!(released(&mut kept, &LEASES, 7, rest).0, Release::Kept);
    assert_eq!(kept.holders[0].lease_ends, Some(NOW + rest));
    assert_eq!(claimed(&mut kept, &LEASES, &claim_of(8, X)), "busy");

    // The descriptor of the outer hold keeps the lock for the inner one.
    let mut inner = holder(8, X, None);
    inner.family = 7;
    let mut nested = ledger(&[holder(7, X, None), inner], &[]);
    let decision =
        decide::release(&mut nested, &DESCRIPTORS, &claim_of(7, X), Duration::ZERO, Ending::default());
    let Decision::Done { value: Release::NotYet(_), watch, .. } = decision else { panic!("{decision:?}") };
    assert_eq!(watch, [Watch::Holder(8)]);
    assert_eq!(released(&mut nested, &LEASES, 7, Duration::ZERO).0, Release::Released);
    assert_eq!(claimed(&mut nested, &LEASES, &claim_of(6, X)), "busy", "the inner one has it");
}

/// A proxy may repeat a request whose reply it has lost.
#[test]
fn a_release_that_was_carried_out_and_arrives_again_is_recorded_once() {
    let mut queue = ledger(&[holder(7, X, None)], &[waiter(1, X)]);
    let record =
        Record { outcome: "succeeded".to_owned(), fencing_token: FencingToken::new(7), ..Record::default() };
    let release = |queue: &mut Ledger, was_refused| {
        let ending = Ending::with_record(Some(&record));
        let observation = Observation { was_refused, ..LEASES };
        match decide::release(queue, &observation, &claim_of(7, X), Duration::ZERO, ending) {
            Decision::Done { value, .. } => (value, queue.history.len()),
            decision => panic!("{decision:?}"),
        }
    };
    assert_eq!(release(&mut queue, false), (Release::Released, 1));
    assert_eq!(release(&mut queue, true), (Release::Released, 1));
    assert_eq!(release(&mut queue.clone(), false), (Release::NotHeld, 2), "another request");
    queue.history.clear();
    assert_eq!(release(&mut queue, true), (Release::NotHeld, 1), "others have ended the hold");
}

/// The gate is lost, and the tree is dead: the entry beside it keeps nobody out any more.
#[test]
fn the_release_of_a_lost_hold_ends_its_entry_and_wakes_the_next_waiter() {
    let lost = |foreign, gate_lifetime, loss| Observation {
        gate: Gate::Untried,
        gate_lifetime: Some(gate_lifetime),
        loss: Some(loss),
        foreign,
        ..LEASES
    };
    let mut mine = holder(7, X, None);
    mine.lease_ends = Some(NOW + TTL);
    let readers = [waiter(1, S), waiter(2, S), waiter(3, X)];
    for (foreign, loss, called) in [
        (false, Loss::Gone, [Some(NOW), Some(NOW), None]),
        // The first one has waited for the end of the hold, and now watches the gate.
        (true, Loss::Taken, [Some(NOW), None, None]),
    ] {
        for gate_lifetime in [GateLifetime::Session, GateLifetime::Lease] {
            let observation = lost(foreign, gate_lifetime, loss);
            let mut queue = ledger(std::slice::from_ref(&mine), &readers);
            assert_eq!(
                released(&mut queue, &observation, 8, Duration::ZERO),
                (Release::NotHeld, Effect::Leave)
            );
            assert_eq!((queue.holders.len(), queue.waiters[0].called), (1, None), "it is of another token");
            assert_eq!(
                released(&mut queue, &observation, 7, Duration::ZERO),
                (Release::NotHeld, Effect::Free)
            );
            assert!(queue.holders.is_empty());
            assert_eq!(queue.waiters.iter().map(|one| one.called).collect::<Vec<_>>(), called, "{loss:?}");
        }
    }

    // Those who are inside the hold pass the gate themselves, and keep the lock.
    let observation = lost(false, GateLifetime::Session, Loss::Gone);
    let mut inner = mine.clone();
    (inner.ticket, inner.token) = (8, "token-8".to_owned());
    let mut nested = ledger(&[mine.clone(), inner.clone()], &readers);
    assert_eq!(released(&mut nested, &observation, 7, Duration::ZERO), (Release::NotHeld, Effect::Free));
    assert_eq!((nested.holders, nested.waiters[0].called), (vec![inner], None));

    // A minimum time is kept by the entry alone; nobody stays for it, and an operator may end it.
    mine.kept_until = Some(NOW + TTL * 2);
    let mut kept = ledger(std::slice::from_ref(&mine), &readers);
    assert_eq!(released(&mut kept, &observation, 7, Duration::ZERO), (Release::NotHeld, Effect::Leave));
    assert_eq!((kept.holders[0].ended_at, kept.waiters[0].called), (Some(0), None));
    assert_eq!(claimed(&mut kept, &observation, &claim_of(6, X)), "busy");
    let revocation = Revocation { by: "root@here".into(), reason: None };
    let ended = administer::revoke(&mut kept, &observation, FencingToken::new(7).unwrap(), &revocation);
    assert!(matches!(ended, Decision::Done { value: Revoked::Ended, .. }), "{ended:?}");
}

#[test]
fn a_revocation_reaches_live_holders_and_ends_the_others() {
    let revocation = Revocation { by: "root@here".into(), reason: None };
    let revoke = |ledger: &mut Ledger, observation: &Observation, ticket| match administer::revoke(
        ledger,
        observation,
        FencingToken::new(ticket).unwrap(),
        &revocation,
    ) {
        Decision::Done { value, .. } => value,
        decision => panic!("{decision:?}"),
    };
    let mut held = ledger(&[holder(7, X, None)], &[waiter(1, X)]);
    assert_eq!(revoke(&mut held, &DESCRIPTORS, 8), Revoked::Gone);
    assert_eq!(revoke(&mut held, &DESCRIPTORS, 7), Revoked::Notified(1));
    let revoked = Some(revocation.clone());
    assert_eq!(renewed(&mut held, &DESCRIPTORS, 7), Renewal::Held { lease: None, revoked });
    let rest = Duration::from_secs(5);
    assert_eq!(released(&mut held.clone(), &DESCRIPTORS, 7, rest).0, Release::Released, "not kept");
    let dead = Observation { dead_from: 7, dead_until: 8, ..DESCRIPTORS };
    assert_eq!(revoke(&mut held, &dead, 7), Revoked::Ended);
    assert_eq!((held.holders.len(), held.waiters[0].called), (0, None));

    let shown = Holder { fencing: FencingToken::new(7), ..Holder::default() };
    let remove = |ledger: &mut Ledger, observation: &Observation| match administer::remove(
        ledger,
        observation,
        &shown,
    ) {
        Decision::Done { value, .. } => value,
        decision => panic!("{decision:?}"),
    };
    let mut held = ledger(&[holder(7, X, None)], &[waiter(1, X)]);
    assert_eq!(remove(&mut held, &DESCRIPTORS), Removal::Impossible);
    assert_eq!(remove(&mut held, &LEASES), Removal::Removed);
    assert_eq!(held.waiters[0].called, Some(NOW));
    assert_eq!(remove(&mut held, &LEASES), Removal::Changed);
}
