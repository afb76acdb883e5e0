//! Parts of the suite for stores of which another form runs all of it.

/// The tests of one store that differs from another only in the names of its entries, or in the number of servers.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
macro_rules! essential_checks {
    ($rig:path) => {
        crate::stores::conformance::topics! { $rig;
            exclusion {
                a_held_lock_excludes_others
                release_frees_the_lock
                a_run_and_another_client_exclude_each_other
                of_many_runs_one_holds_at_a_time
                the_lock_ends_with_its_owner
            }
            ownership {
                a_replaced_lock_is_lost_and_not_touched
                a_repeated_request_is_recognised
            }
            fencing {
                fencing_tokens_grow_with_every_grant
                fencing_tokens_grow_over_a_restart
            }
            queue {
                waiters_are_served_first_come_first_served
                a_release_by_a_foreign_client_is_noticed
                a_dead_waiter_is_skipped_without_delay
            }
            queue_of_runs {
                runs_are_served_first_come_first_served
                a_run_waits_for_a_foreign_client
            }
            sharing {
                a_writer_and_readers_exclude_each_other
                a_waiting_writer_blocks_later_readers
                a_foreign_client_is_excluded_until_the_last_reader_has_left
            }
            slots by prove_slots {
                slots_limit_the_number_of_holders
                exclusive_waits_for_every_slot
                a_foreign_client_is_excluded_until_the_last_slot_is_free
            }
            several_locks {
                removing_one_lock_loses_all
            }
            nesting {
                a_nested_run_enters_at_once
            }
            revocation {
                a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
                a_foreign_lock_is_removed_only_where_the_store_keeps_it
            }
        }
    };
}
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(super) use essential_checks;

/// The tests of one lease table on a server of another version.
#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! table_checks {
    ($rig:path) => {
        crate::stores::conformance::topics! { $rig;
            exclusion {
                a_held_lock_excludes_others
                release_frees_the_lock
                of_many_runs_one_holds_at_a_time
                the_lock_ends_with_its_owner
            }
            ownership {
                a_stale_owner_cannot_release
                a_replaced_lock_is_lost_and_not_touched
                a_repeated_request_is_recognised
                renewal_keeps_the_lock
            }
            fencing {
                fencing_tokens_grow_with_every_grant
                fencing_tokens_grow_over_a_restart
            }
            queue {
                waiters_are_served_first_come_first_served
                only_the_called_waiter_is_notified
            }
            queue_of_runs {
                runs_are_served_first_come_first_served
                a_killed_waiting_run_blocks_no_other
            }
            sharing {
                a_writer_and_readers_exclude_each_other
            }
            slots by prove_slots {
                slots_limit_the_number_of_holders
            }
            nesting {
                a_nested_run_enters_at_once
            }
            revocation {
                a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
            }
        }
    };
}
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) use table_checks;

/// Some checks of one store with a failover at another moment of each, after the given number of actions.
#[cfg(feature = "net")]
macro_rules! disturbed_by_a_failover {
    ($rig:path) => {
        crate::stores::conformance::disturbed! { $rig;
            exclusion {
                a_held_lock_excludes_others after 2
                release_frees_the_lock after 6
            }
            ownership {
                a_stale_owner_cannot_release after 3
                another_token_cannot_renew after 2
                a_replaced_lock_is_lost_and_not_touched after 1
                a_repeated_request_is_recognised after 1
                renewal_keeps_the_lock after 2
            }
            fencing {
                fencing_tokens_grow_with_every_grant after 50
            }
            queue {
                waiters_are_served_first_come_first_served after 17
                later_clients_do_not_overtake_waiters after 5
                a_release_by_a_foreign_client_is_noticed after 2
            }
            queue_positions {
                a_repeated_request_keeps_the_queue_position after 5
            }
            sharing {
                readers_share after 4
                a_waiting_writer_blocks_later_readers after 4
                every_reader_at_the_head_is_notified after 4
            }
            slots {
                slots_limit_the_number_of_holders after 4
                a_hold_keeps_its_slot after 4
            }
            revocation {
                a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases after 3
                all_nested_holds_are_notified after 2
            }
        }
    };
}
#[cfg(feature = "net")]
pub(super) use disturbed_by_a_failover;

/// Some checks of one store that is disturbed after the given number of actions.
#[cfg(feature = "net")]
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
#[cfg(feature = "net")]
pub(super) use disturbed;

/// The tests of one store whose locks have one holder, and whose queue and history are those of a ledger behind a gate.
#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! gate_checks {
    ($rig:path) => {
        crate::stores::conformance::topics! { $rig;
            exclusion {
                a_held_lock_excludes_others
                release_frees_the_lock
                release_may_be_repeated
                another_lock_is_free
                the_lock_ends_with_its_owner
                a_run_excludes_a_run
                a_run_and_another_client_exclude_each_other
                of_many_runs_one_holds_at_a_time
            }
            ownership {
                a_stale_owner_cannot_renew
                a_stale_owner_cannot_release
                another_token_cannot_renew
                another_token_cannot_release
                the_token_of_one_lock_is_invalid_for_another
                a_deleted_lock_is_lost_and_not_created_again
                a_replaced_lock_is_lost_and_not_touched
                a_repeated_request_is_recognised
                renewal_keeps_the_lock
                a_refused_request_leaves_no_trace
            }
            admin {
                inspect_changes_nothing
                held_and_awaited_locks_are_listed
                the_last_outcomes_are_kept
                the_next_renewal_reports_a_revocation
                a_hold_is_removed_unless_it_lives_in_a_descriptor
                a_hold_that_was_not_inspected_is_not_removed
                a_dropped_inspection_leaves_the_store_usable
                breaks_and_tokens_are_recorded
            }
            fencing {
                fencing_tokens_grow_over_a_restart
                fencing_tokens_grow_over_a_wiped_store
                fencing_tokens_grow_over_a_deleted_lock
                the_last_fencing_token_outlives_its_hold
                later_fencing_tokens_are_larger_than_a_floor
                an_operator_raises_the_fencing_tokens_of_a_free_lock
                fencing_tokens_grow_with_every_grant
                a_script_can_check_that_no_later_fencing_token_was_granted
            }
            holder {
                busy_names_the_holder
                busy_names_what_a_run_reports_of_itself
                busy_never_reveals_a_token
                display_reveals_no_secret
            }
            cancellation {
                a_dropped_connect_leaves_the_store_usable
                a_dropped_acquire_leaves_the_store_usable
                a_dropped_renew_leaves_the_store_usable
                a_dropped_release_leaves_the_store_usable
            }
            queue {
                waiters_are_served_first_come_first_served
                later_clients_do_not_overtake_waiters
                only_the_called_waiter_is_notified
                a_request_without_waiting_does_not_overtake_waiters
                a_request_without_waiting_gets_an_unclaimed_lock
                a_waiter_that_leaves_does_not_end_a_renewed_hold
                a_dead_waiter_is_skipped_without_delay
                a_silent_waiter_loses_its_turn_and_its_queue_position
                a_withdrawn_waiter_leaves_no_trace_and_passes_its_turn_on
                a_release_by_a_foreign_client_is_noticed
            }
            queue_positions {
                a_repeated_request_keeps_the_queue_position
                a_queue_position_outlasts_its_connection
                a_queue_position_ends_with_its_lease
            }
            queue_of_runs {
                runs_are_served_first_come_first_served
                a_run_without_waiting_gets_an_unclaimed_lock
                a_run_without_waiting_gives_up_when_the_turn_is_claimed
                a_killed_waiting_run_blocks_no_other
                an_expired_wait_leaves_no_trace
                a_signal_ends_a_wait_and_leaves_no_trace
                a_run_waits_for_a_foreign_client
            }
            several_locks {
                all_are_held_and_all_are_freed
                all_locks_or_none_are_acquired
                no_order_of_the_names_causes_a_deadlock
                the_environment_of_the_command_names_all_locks
                losing_one_lock_loses_all
                held_locks_are_renewed_while_the_next_is_waited_for
            }
            nesting {
                the_last_inner_hold_decides
                entering_is_idempotent
                a_nested_entry_overtakes_waiters
                entering_a_hold_that_is_gone_is_refused
                a_nested_run_enters_at_once
                fifty_deep_is_not_too_deep
                the_outer_hold_continues_after_the_inner_one
                an_inner_run_that_outlives_the_outer_keeps_the_lock
                an_inner_run_may_take_more_names
                the_inner_command_gets_the_same_fencing_token
                the_same_name_on_another_store_is_another_lock
            }
            nesting_refused {
                a_hold_whose_dlock_is_dead_is_ignored
                an_outer_hold_of_a_live_dlock_must_exist
                an_inner_run_does_not_enter_a_lock_that_is_gone
                an_inner_run_does_not_enter_a_lock_that_was_removed
                a_deadlock_by_opposite_nesting_ends_with_the_wait
            }
            min_hold {
                a_grant_and_a_renewal_cover_at_least_the_rest_of_min_hold
                a_release_within_min_hold_leaves_the_lock_without_a_holder
                the_lock_is_kept_for_min_hold
                min_hold_does_not_delay_a_longer_command
                a_run_reports_who_keeps_the_lock
                busy_reports_that_min_hold_keeps_the_lock
                min_hold_outlasts_a_killed_dlock
                renewals_do_not_shorten_min_hold
                min_hold_does_not_apply_when_the_command_cannot_be_executed
                a_waiting_run_is_granted_the_lock_when_min_hold_ends
                the_min_hold_of_an_inner_run_is_respected
                the_min_hold_of_an_inner_run_that_has_passed_keeps_nothing
            }
            once_per {
                a_success_is_found_within_the_period
                claims_without_a_period_neither_look_nor_count
                the_period_begins_with_the_grant
                a_run_that_does_not_succeed_leaves_it_open
                a_waiter_that_finds_it_done_passes_its_turn_on
                a_held_lock_is_busy_even_if_the_next_run_is_not_due
                one_run_a_night
            }
            loss {
                a_lost_lock_is_free_when_its_run_has_ended
                a_lock_that_was_taken_is_free_when_both_have_ended
            }
            lost_gate {
                a_waiter_starts_when_the_tree_of_a_run_that_lost_its_gate_is_dead
                a_waiter_starts_when_a_run_that_lost_its_gate_and_one_inside_are_dead
                a_waiter_starts_when_the_program_that_took_the_gate_has_left_it
            }
            revocation {
                a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
                a_revocation_does_not_apply_to_another_hold
                all_nested_holds_are_notified
                min_hold_does_not_apply_to_a_revoked_hold
                a_lock_without_a_running_holder_ends_at_once
                a_hold_is_removed_only_where_the_store_keeps_it
                an_ended_hold_cannot_be_removed
            }
        }
    };
}
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) use gate_checks;
