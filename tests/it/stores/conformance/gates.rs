//! The checks of stores with a gate in front of the ledger.

/// The tests of a store whose locks have one holder, and whose queue and history are those of a ledger behind a gate.
macro_rules! gate_checks {
    ($rig:path) => {
        crate::stores::conformance::list::every_check!($rig; Gate);
        crate::stores::conformance::gates::lost_gate_checks!($rig);
    };
}
pub(super) use gate_checks;

/// The tests of a store with a gate that a run may lose.
macro_rules! lost_gate_checks {
    ($rig:path) => {
        crate::stores::conformance::topics! { $rig;
            lost_gate {
                a_waiter_starts_when_the_tree_of_a_run_that_lost_its_gate_is_dead
                a_waiter_starts_when_a_run_that_lost_its_gate_and_one_inside_are_dead
                a_waiter_starts_when_the_program_that_took_the_gate_has_left_it
            }
        }
    };
}
pub(super) use lost_gate_checks;

/// The tests of such a store on a server of another product: each kind of statement about the gate.
macro_rules! gate_checks_of_another_product {
    ($rig:path) => {
        crate::stores::conformance::topics! { $rig;
            exclusion {
                a_held_lock_excludes_others
                release_frees_the_lock
                the_lock_ends_with_its_owner
                a_run_and_another_client_exclude_each_other
            }
            ownership {
                a_stale_owner_cannot_release
                a_replaced_lock_is_lost_and_not_touched
                a_repeated_request_is_recognised
                renewal_keeps_the_lock
            }
            admin {
                held_and_awaited_locks_are_listed
                a_foreign_hold_is_removed_only_if_unchanged_since_its_inspection
            }
            fencing {
                fencing_tokens_grow_with_every_grant
            }
            queue {
                waiters_are_served_first_come_first_served
                a_release_by_a_foreign_client_is_noticed
            }
            nesting {
                a_nested_run_enters_at_once
            }
            min_hold {
                the_lock_is_kept_for_min_hold
            }
            revocation {
                a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
            }
        }
    };
}
pub(super) use gate_checks_of_another_product;
