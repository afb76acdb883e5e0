//! The decisions on a ledger keep their promises, whatever the order in which clients act: no two holders that exclude
//! each other, first come, first served, no waiter left behind, fencing tokens that grow.

mod clients;
mod crashes;
mod rules;

use std::time::Duration;

use dlock::backend::ledger::entries::Fencing;
use dlock::lock::Mode;

use self::clients::Clients;
use crate::explorer::explore;

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const OF_2: Mode = Mode::Slots(2);

/// Some combinations of modes. Their order does not matter, since clients are alike before they begin.
const FEW: &[[Mode; 3]] = &[[X, X, X], [X, S, S], [OF_2, OF_2, OF_2]];
const OTHERS: &[[Mode; 3]] =
    &[[X, X, S], [S, S, S], [X, X, OF_2], [X, OF_2, OF_2], [S, S, OF_2], [S, OF_2, OF_2], [X, S, OF_2]];

/// The modes of an outer hold, of one inside it, and of a client that is in their way.
const NESTED: &[[Mode; 3]] = &[[X, X, X], [X, S, S], [S, S, X], [X, OF_2, OF_2], [OF_2, OF_2, OF_2]];

/// Explores some combinations of modes; with optimisation, all of them.
#[track_caller]
fn assert_holds(case: &str, model: &Clients) {
    let others = if cfg!(debug_assertions) { &[][..] } else { OTHERS };
    let modes = if model.nested { [NESTED, &[]] } else { [FEW, others] };
    for modes in modes.into_iter().flatten() {
        let explored = explore(&Clients { modes: *modes, ..model.clone() });
        println!("{case}, {modes:?}: {} states", explored.states);
        assert_eq!(explored.failure, None, "{case}, {modes:?}");
    }
}

/// Leases that end by the clock of the store, and versions that are swapped.
const LEASES: Clients = Clients {
    modes: [X; 3],
    count: 3,
    delays: 1,
    ttl: Some(Duration::from_secs(3)),
    entries: false,
    fencing: Fencing::Revision,
    deaths: 0,
    losses: 0,
    foreign: false,
    nested: false,
    min_hold: Duration::ZERO,
    revocations: 0,
    freezes: 0,
};

/// Entries that live as long as a descriptor, and a gate.
const DESCRIPTORS: Clients = Clients { ttl: None, ..LEASES };

/// Each client writes an entry of its own, and the store orders them.
const ENTRIES: Clients = Clients { entries: true, ..LEASES };

#[test]
fn clients_with_leases_exclude_each_other_in_order() {
    assert_holds("leases", &LEASES);
}

#[test]
fn the_death_of_a_client_with_a_lease_leaves_none_behind() {
    assert_holds("leases, one death", &Clients { deaths: 1, ..LEASES });
}

#[test]
fn a_lost_message_leaves_no_client_with_a_lease_behind() {
    assert_holds("leases, one loss", &Clients { losses: 1, delays: 0, ..LEASES });
}

#[test]
fn clients_with_entries_exclude_each_other_in_order() {
    assert_holds("entries", &ENTRIES);
}

/// Readers whose turn comes together may be granted the lock in another order than that of their entries.
#[test]
fn fencing_tokens_by_the_order_of_entries_grow() {
    assert_holds("entries, tokens by order", &Clients { fencing: Fencing::Order, deaths: 1, ..ENTRIES });
}

#[test]
fn the_death_of_a_client_with_an_entry_leaves_none_behind() {
    assert_holds("entries, one death", &Clients { deaths: 1, ..ENTRIES });
}

#[test]
fn a_lost_message_leaves_no_client_with_an_entry_behind() {
    assert_holds("entries, one loss and one death", &Clients { losses: 1, deaths: 1, delays: 0, ..ENTRIES });
}

#[test]
fn clients_with_descriptors_exclude_each_other_in_order() {
    assert_holds("descriptors, one death", &Clients { deaths: 1, ..DESCRIPTORS });
}

#[test]
fn a_foreign_program_in_the_gate_is_waited_for() {
    assert_holds("descriptors, foreign program", &Clients { count: 2, foreign: true, ..DESCRIPTORS });
}

#[test]
fn a_nested_client_enters_the_outer_hold_and_keeps_the_lock() {
    let nested = |clients: Clients| Clients { nested: true, deaths: 1, delays: 0, ..clients };
    assert_holds("leases, nested", &nested(LEASES));
    assert_holds("leases, nested, one loss", &Clients { losses: 1, ..nested(LEASES) });
    assert_holds("descriptors, nested", &nested(DESCRIPTORS));
    assert_holds("entries, nested", &nested(ENTRIES));
    assert_holds("entries, nested, one loss", &Clients { losses: 1, ..nested(ENTRIES) });
}

/// Longer than the lease, and not a time after which a client tries again anyway.
const MIN_HOLD: Duration = Duration::from_millis(4300);

#[test]
fn the_lock_is_kept_for_the_minimum_time() {
    let kept = |clients: Clients| Clients { min_hold: MIN_HOLD, deaths: 1, delays: 0, ..clients };
    assert_holds("leases, minimum time", &kept(LEASES));
    assert_holds("descriptors, minimum time", &kept(DESCRIPTORS));
    assert_holds("entries, minimum time", &kept(ENTRIES));
}

#[test]
fn a_revocation_ends_a_hold_and_leaves_no_waiter_behind() {
    let revoked =
        |clients: Clients| Clients { revocations: 1, min_hold: MIN_HOLD, count: 2, delays: 0, ..clients };
    for nested in [false, true] {
        for (shape, clients) in [("leases", LEASES), ("descriptors", DESCRIPTORS), ("entries", ENTRIES)] {
            let clients = Clients { nested, deaths: 1, ..revoked(clients) };
            assert_holds(&format!("{shape}, revoked"), &clients);
        }
    }
}

/// Whatever was decided before the freeze, and whoever was called.
#[test]
fn nobody_starts_under_a_frozen_lock_and_none_is_left_behind_by_a_thaw() {
    for (shape, clients) in [("leases", LEASES), ("descriptors", DESCRIPTORS), ("entries", ENTRIES)] {
        let frozen = Clients { freezes: 1, delays: 0, ..clients };
        // Three clients with leases have several times as many states as with entries.
        let count = if shape == "leases" { 2 } else { 3 };
        assert_holds(&format!("{shape}, frozen"), &Clients { count, ..frozen.clone() });
        assert_holds(
            &format!("{shape}, frozen, one death"),
            &Clients { count: 2, deaths: 1, ..frozen.clone() },
        );
        assert_holds(
            &format!("{shape}, frozen, one loss"),
            &Clients { count: 2, losses: 1, ..frozen.clone() },
        );
        let nested = Clients { nested: true, count: 2, ..frozen.clone() };
        assert_holds(&format!("{shape}, frozen, nested"), &nested);
        let kept = Clients { min_hold: MIN_HOLD, count: 2, freezes: 2, ..frozen };
        assert_holds(&format!("{shape}, frozen, minimum time"), &kept);
    }
}
