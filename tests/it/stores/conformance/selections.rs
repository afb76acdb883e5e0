//! Checks of a store that is disturbed while they run.

/// Some checks of one store with a failover at another moment of each, after the given number of actions.
///
/// Chosen so that each kind of request meets a failover (claim, renewal, release, revocation, and the repetition of one), and
/// each kind of entry outlives one (a hold, a waiter, a reader, a slot, the counter of fencing tokens, a foreign lock). What
/// they mean is decided by code that knows nothing of servers.
macro_rules! disturbed_by_a_failover {
    ($rig:path) => {
        crate::stores::conformance::disturbed! { $rig;
            exclusion {
                release_frees_the_lock after 6
            }
            ownership {
                a_stale_owner_cannot_release after 3
                a_replaced_lock_is_lost_and_not_touched after 1
                a_repeated_request_is_recognised after 1
                renewal_keeps_the_lock after 2
            }
            fencing {
                fencing_tokens_grow_with_every_grant after 50
            }
            queue {
                waiters_are_served_first_come_first_served after 17
                a_release_by_a_foreign_client_is_noticed after 2
            }
            queue_positions {
                a_repeated_request_keeps_the_queue_position after 5
            }
            sharing {
                every_reader_at_the_head_is_notified after 4
            }
            slots {
                a_hold_keeps_its_slot after 4
            }
            revocation {
                a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases after 3
            }
        }
    };
}
pub(super) use disturbed_by_a_failover;

/// Some checks of one store that is disturbed after the given number of actions.
macro_rules! disturbed {
    ($rig:path; $($topic:ident { $($check:ident after $moment:literal)+ })+) => {
        $($(
            #[test]
            fn $check() {
                crate::stores::conformance::rig::prove($rig($moment), crate::stores::conformance::suite::$topic::$check);
            }
        )+)+
    };
}
pub(super) use disturbed;
