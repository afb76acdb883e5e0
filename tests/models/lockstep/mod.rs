//! The scripts in which Redis decides mean what the ledger means: both are driven through the same cases, and after each
//! step everything that users see of the lock is compared.

mod answers;
mod differences;
mod form;
mod ledgers;
mod lua;
mod model;
mod redis;
mod script;

#[path = "../../../src/backend/redis/script/source.rs"]
mod source;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dlock::lock::Mode;
use dlock::lock::record::RecordKind;

use self::differences::{
    CALLED_TOGETHER, DEAD_WAITERS_FORGOTTEN, DIFFERENCES, KEPT_BY_ITS_KEY, LEASE_OF_MINIMUM_TIME,
    ORDER_OF_OUTCOMES,
};
use self::lua::Interpreter;
use self::model::{CASE, Case, Lockstep, Request, TTL};
use crate::explorer::explore;

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const OF_2: Mode = Mode::Slots(2);
const OF_3: Mode = Mode::Slots(3);

/// Explores cases, and prints how many states they have. These differences occur, and no others.
#[track_caller]
fn assert_equal(differences: &[&str], cases: &[Case]) {
    let mut occurred = BTreeSet::new();
    for case in cases {
        let began = Instant::now();
        let interpreter = Interpreter::new(case.calls_ahead);
        let lockstep = Lockstep::of(case.clone(), &interpreter);
        let explored = explore(&lockstep);
        let seconds = began.elapsed().as_secs_f64();
        println!("lockstep, {}, {:?}: {} states, {seconds:.1} s", case.name, case.modes, explored.states);
        if let Some(failure) = explored.failure {
            panic!("{}, {:?}:\n{}", case.name, case.modes, failure.join("\n"));
        }
        occurred.extend(lockstep.differences.take());
    }
    for difference in DIFFERENCES.iter().filter(|difference| occurred.contains(difference.name)) {
        println!("lockstep, intended: {}: {}", difference.name, difference.reason);
    }
    assert_eq!(occurred, differences.iter().copied().collect());
}

fn case(name: &'static str, modes: &[Mode], requests: &'static [Request], depth: usize) -> Case {
    Case { name, modes: modes.to_vec(), requests, depth, ..CASE }
}

#[test]
fn locks_are_taken_renewed_and_released_alike() {
    use Request::{Claim, Release, Renew, Try};
    assert_equal(
        &[ORDER_OF_OUTCOMES],
        &[
            case("two", &[X, X], &[Claim, Renew, Release], 6),
            case("one does not wait", &[X, S], &[Claim, Try, Release], 5),
            case("three", &[X, X, X], &[Claim, Release], 6),
        ],
    );
}

#[test]
fn modes_are_queued_alike() {
    use Request::{Claim, Release};
    let modes = |modes: &[Mode]| case("modes", modes, &[Claim, Release], 5);
    let cases = [
        [S, S, S],
        [X, S, S],
        [X, X, S],
        [OF_2, OF_2, OF_2],
        [X, OF_2, OF_2],
        [S, OF_2, OF_2],
        [OF_2, OF_2, OF_3],
    ];
    assert_equal(&[ORDER_OF_OUTCOMES], &cases.map(|of| modes(&of)));
}

#[test]
fn operators_end_holds_alike() {
    use Request::{Claim, Raise, Record, Release, Remove, Renew, Revoke};
    let all = &[Claim, Renew, Release, Revoke, Remove, Raise, Record];
    let revoked = |modes: &[Mode]| case("revoked", modes, &[Claim, Renew, Release, Revoke, Remove], 5);
    assert_equal(
        &[LEASE_OF_MINIMUM_TIME, ORDER_OF_OUTCOMES],
        &[
            case("all requests", &[X, X], all, 4),
            revoked(&[X, X]),
            revoked(&[S, S]),
            Case { min_hold: MIN_HOLD, ..revoked(&[X, S]) },
        ],
    );
}

#[test]
fn nested_claims_enter_the_outer_hold_alike() {
    use Request::{Claim, Release, Renew, Revoke};
    let nested = |modes: &[Mode], requires| Case {
        nested: Some(requires),
        ..case("nested", modes, &[Claim, Renew, Release, Revoke], 4)
    };
    for requires in [false, true] {
        let cases = [[X, X, X], [X, S, S], [S, S, X], [X, OF_2, OF_2], [OF_2, OF_2, OF_2], [S, X, X]];
        assert_equal(&[ORDER_OF_OUTCOMES], &cases.map(|modes| nested(&modes, requires)));
    }
}

#[test]
fn an_exclusive_lock_lasts_as_long_as_its_key_in_redis() {
    use Request::{Claim, Release, Renew};
    let cases = [[X, X], [X, S], [S, S]].map(|modes| Case {
        nested: Some(false),
        ..case("outer lease", &modes, &[Claim, Renew, Release], 6)
    });
    assert_equal(&[KEPT_BY_ITS_KEY, ORDER_OF_OUTCOMES], &cases);
}

/// Longer than the lease.
const MIN_HOLD: Duration = Duration::from_millis(4300);

#[test]
fn the_lock_is_kept_for_the_minimum_time_alike() {
    use Request::{Claim, Release, Renew};
    let kept = |modes: &[Mode]| Case {
        min_hold: MIN_HOLD,
        ..case("minimum time", modes, &[Claim, Renew, Release], 5)
    };
    assert_equal(
        &[LEASE_OF_MINIMUM_TIME, ORDER_OF_OUTCOMES],
        &[kept(&[X, X]), kept(&[S, S]), kept(&[X, S]), kept(&[OF_2, OF_2, OF_2])],
    );
}

#[test]
fn a_success_is_looked_for_alike() {
    use Request::{Claim, Release, Try};
    let once = |period| Case { once_per: Some(period), ..case("once", &[X, X], &[Claim, Try, Release], 6) };
    assert_equal(&[ORDER_OF_OUTCOMES], &[once(Duration::from_secs(4)), once(Duration::from_secs(3600))]);
}

#[test]
fn a_frozen_lock_is_granted_to_nobody_alike() {
    use Request::{Claim, Freeze, Release, Thaw};
    let frozen = |modes: &[Mode], depth| case("frozen", modes, &[Claim, Release, Freeze, Thaw], depth);
    assert_equal(
        &[DEAD_WAITERS_FORGOTTEN, ORDER_OF_OUTCOMES],
        &[
            frozen(&[X, X], 6),
            frozen(&[X, S, S], 5),
            frozen(&[OF_2, OF_2, OF_2], 5),
            Case { operators: 2, freezes: TTL * 3, ..frozen(&[X, X], 5) },
        ],
    );
}

#[test]
fn what_goes_on_while_a_lock_is_frozen_goes_on_alike() {
    use Request::{Claim, Freeze, Release, Remove, Renew, Revoke, Thaw, Try};
    let frozen = |modes: &[Mode], requests, depth| case("frozen", modes, requests, depth);
    let queued = &[Claim, Release, Freeze, Thaw];
    assert_equal(
        &[LEASE_OF_MINIMUM_TIME, ORDER_OF_OUTCOMES],
        &[
            frozen(&[X, X], &[Try, Claim, Renew, Freeze, Thaw], 5),
            frozen(&[X, S], &[Claim, Renew, Revoke, Remove, Freeze, Thaw], 4),
            Case { min_hold: MIN_HOLD, ..frozen(&[X, X], queued, 5) },
            Case { once_per: Some(Duration::from_secs(4)), ..frozen(&[X, X], queued, 5) },
            Case { supersedes: &[true], leases: &[1, 3, 1], ..frozen(&[X, X, X], queued, 4) },
            Case { nested: Some(false), ..frozen(&[X, X, S], queued, 4) },
            Case { nested: Some(true), ..frozen(&[S, S, X], queued, 4) },
        ],
    );
}

#[test]
fn superseded_waiters_leave_alike() {
    use Request::{Claim, Release, Try};
    let superseding = |supersedes| Case {
        supersedes,
        leases: &[1, 3, 1],
        ..case("supersede", &[X, X, X], &[Claim, Try, Release], 5)
    };
    assert_equal(&[ORDER_OF_OUTCOMES], &[superseding(&[true]), superseding(&[true, false, true])]);
}

#[test]
fn waiters_with_other_leases_are_called_alike() {
    use Request::{Claim, Release};
    let case = |name| Case { leases: &[1, 2, 4, 8], ..case(name, &[X, X, X, X], &[Claim, Release], 5) };
    assert_equal(&[ORDER_OF_OUTCOMES], &[case("leases")]);
}

#[test]
fn waiters_behind_dead_ones_are_called_together_in_redis() {
    use Request::{Claim, Release, Try};
    let together =
        |modes: &[Mode]| Case { calls_ahead: true, ..case("called", modes, &[Claim, Try, Release], 5) };
    let cases = [together(&[X, X, X, X]), together(&[X, S, S, S]), together(&[OF_2, OF_2, OF_2, OF_2])];
    assert_equal(&[CALLED_TOGETHER, ORDER_OF_OUTCOMES], &cases);
}

/// Twenty outcomes of each kind: many of one kind displace none of another.
#[test]
fn the_same_outcomes_are_kept() {
    let interpreter = Interpreter::new(true);
    let lockstep = Lockstep::of(case("outcomes", &[X, X], &[], 0), &interpreter);
    // In turns, many of one kind, many of the other.
    let all = [RecordKind::Succeeded, RecordKind::Held, RecordKind::Missed];
    let many = all.into_iter().flat_map(|kind| [kind; 30]);
    let kinds = (0..30).map(|at| all[at % 3]).chain(many).chain([RecordKind::Held; 3]);
    let kept = lockstep.keep_outcomes(kinds);
    assert_eq!(kept, [20, 20, 20]);
}
