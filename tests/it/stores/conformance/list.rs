//! The list of checks, each with the aspects that it depends on; see [`super::tiers`].

/// All that a store may be asked to prove: on its main form every check, on a further form those for its aspects.
macro_rules! every_check {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::list::trait_checks!($rig $(; $($aspect)+)?);
        crate::stores::conformance::list::run_checks!($rig $(; $($aspect)+)?);
        crate::stores::conformance::list::foreign_checks!($rig $(; $($aspect)+)?);
    };
}
pub(super) use every_check;

/// All that a store may be asked to prove whose locks have one holder at a time.
macro_rules! one_holder_checks {
    ($rig:path) => {
        crate::stores::conformance::list::one_holder_trait_checks!($rig);
        crate::stores::conformance::list::one_holder_run_checks!($rig);
        crate::stores::conformance::list::one_holder_foreign_checks!($rig);
    };
}
pub(super) use one_holder_checks;

/// The tests of one store with runs of the binary.
macro_rules! run_checks {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::list::one_holder_run_checks!($rig $(; $($aspect)+)?);
        crate::stores::conformance::list::several_holders_run_checks!($rig $(; $($aspect)+)?);
    };
}
pub(super) use run_checks;

/// Those of them for locks of one holder at a time.
macro_rules! one_holder_run_checks {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::tiers::tiered! { $rig, [$($($aspect)+)?];
            exclusion {
                a_run_excludes_a_run:;
                a_run_and_another_client_exclude_each_other: Request Majority Data Foreign Gate;
                of_many_runs_one_holds_at_a_time: Request Pooling Failover Placement Majority Foreign Gate;
            }
            admin {
                breaks_and_tokens_are_recorded: Request Majority Data Gate;
            }
            fencing {
                fencing_tokens_grow_with_every_grant: Request Pooling Failover Placement Majority Foreign Gate;
                a_script_can_check_that_no_later_fencing_token_was_granted: Placement Majority;
                an_operator_raises_the_fencing_tokens_of_a_free_lock: Majority Data Gate;
            }
            holder {
                busy_names_what_a_run_reports_of_itself: Data;
                busy_never_reveals_a_token: Majority Data;
                display_reveals_no_secret: Request;
            }
            names {
                different_names_never_collide: Placement Data;
                different_names_never_collide_without_prefix_and_suffix: Placement Data;
                a_notification_for_one_name_does_not_reach_another: Placement Data;
            }
            queue_of_runs {
                runs_are_served_first_come_first_served: Request Pooling Failover Majority Data Foreign Gate;
                a_run_without_waiting_gets_an_unclaimed_lock:;
                a_run_without_waiting_gives_up_when_the_turn_is_claimed: Majority;
                a_killed_waiting_run_blocks_no_other: Failover Majority;
                an_expired_wait_leaves_no_trace: Pooling Majority Data Gate;
                a_signal_ends_a_wait_and_leaves_no_trace: Majority;
            }
            freeze {
                an_operator_freezes_a_lock_and_thaws_it: Request Majority Data Gate;
            }
            supersede {
                a_newer_run_ends_the_older_ones: Majority Data;
            }
            several_locks {
                all_are_held_and_all_are_freed: Placement;
                all_locks_or_none_are_acquired: Pooling Placement Majority Gate;
                no_order_of_the_names_causes_a_deadlock: Placement;
                the_environment_of_the_command_names_all_locks:;
                losing_one_lock_loses_all: Placement Majority Gate;
                removing_one_lock_loses_all: Placement Data Foreign;
                held_locks_are_renewed_while_the_next_is_waited_for: Pooling Placement;
                a_lock_lost_while_the_next_is_waited_for_is_acquired_again: Placement;
                a_holder_that_waits_for_its_next_lock_is_shown_as_waiting: Placement Majority;
                the_time_of_a_grant_is_the_same_in_every_answer: Majority Data;
            }
            any {
                the_first_free_lock_is_taken: Placement;
                without_waiting_each_is_tried_once:;
                a_run_waits_in_all_queues_and_leaves_the_others: Request Pooling Placement Majority Data Gate;
                an_earlier_waiter_for_one_of_them_is_served_first: Placement;
                of_two_released_in_the_same_instant_one_is_given_back: Placement Majority Gate;
                a_wait_for_any_that_ends_leaves_no_trace: Placement Majority Gate;
                a_nested_run_enters_the_lock_of_its_outer_run: Placement;
            }
            nesting {
                a_nested_run_enters_at_once: Request Pooling Majority Data Foreign Gate;
                fifty_deep_is_not_too_deep:;
                the_outer_hold_continues_after_the_inner_one:;
                an_inner_run_that_outlives_the_outer_keeps_the_lock: Majority Data Gate;
                an_inner_run_may_take_more_names: Placement;
                the_inner_command_gets_the_same_fencing_token: Majority;
                the_same_name_on_another_store_is_another_lock: Request;
            }
            nesting_refused {
                a_hold_whose_dlock_is_dead_is_ignored:;
                an_outer_hold_of_a_live_dlock_must_exist: Majority Gate;
                an_inner_run_does_not_enter_a_lock_that_is_gone: Majority;
                an_inner_run_does_not_enter_a_lock_that_was_removed: Gate;
                a_deadlock_by_opposite_nesting_ends_with_the_wait:;
            }
            min_hold {
                the_lock_is_kept_for_min_hold: Majority Data Gate;
                min_hold_does_not_delay_a_longer_command:;
                a_run_reports_who_keeps_the_lock: Gate;
                busy_reports_that_min_hold_keeps_the_lock: Majority Data Gate;
                a_run_returns_as_soon_as_the_store_keeps_the_lock_by_itself: Data;
                min_hold_outlasts_a_killed_dlock: Majority Data Gate;
                renewals_do_not_shorten_min_hold: Majority Data Gate;
                min_hold_outlasts_a_lost_lock: Majority Data Gate;
                min_hold_does_not_apply_when_the_command_cannot_be_executed: Gate;
                a_waiting_run_is_granted_the_lock_when_min_hold_ends: Pooling Majority Data Gate;
                the_min_hold_of_an_inner_run_is_respected: Data Gate;
                the_min_hold_of_an_inner_run_that_has_passed_keeps_nothing:;
            }
            once_per {
                one_run_a_night: Pooling Placement Majority;
            }
            overdue {
                the_last_success_outlives_later_failures: Pooling Placement Majority Data Gate;
                a_success_counts_while_the_minimum_hold_time_lasts: Data Gate;
            }
            loss {
                a_lost_lock_is_free_when_its_run_has_ended: Failover Majority Data Gate;
                a_lock_that_was_taken_is_free_when_both_have_ended: Majority Data Gate;
            }
        }
    };
}
pub(super) use one_holder_run_checks;

/// Those of them for locks of several holders: readers, slots.
macro_rules! several_holders_run_checks {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::tiers::tiered! { $rig, [$($($aspect)+)?];
            sharing {
                runs_share_according_to_their_options: Pooling Majority Data;
                a_killed_shared_run_is_released: Majority Data;
            }
            slots by prove_slots {
                concurrent_runs_have_different_slots: Pooling Data;
                a_different_slot_count_is_refused:;
                the_slot_of_a_killed_run_is_freed:;
                one_slot_is_exclusive: Data Gate;
            }
            nesting {
                shared_inside_exclusive_is_granted: Data;
            }
            nesting by prove_slots {
                an_inner_run_has_the_slot_of_the_outer_one: Data;
            }
            nesting_refused by prove_slots {
                a_different_slot_count_inside_is_refused_at_once:;
            }
            nesting_refused {
                exclusive_inside_shared_is_refused_at_once:;
                waiting_for_an_ancestor_is_refused_with_an_explanation:;
            }
        }
    };
}
pub(super) use several_holders_run_checks;

/// The tests of one store that other programs use as well.
macro_rules! foreign_checks {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::list::one_holder_foreign_checks!($rig $(; $($aspect)+)?);
        crate::stores::conformance::list::several_holders_foreign_checks!($rig $(; $($aspect)+)?);
    };
}
pub(super) use foreign_checks;

/// Those of them for locks of one holder at a time.
macro_rules! one_holder_foreign_checks {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::tiers::tiered! { $rig, [$($($aspect)+)?];
            admin {
                a_foreign_hold_is_removed_only_if_unchanged_since_its_inspection: Majority Data Foreign Gate;
            }
            freeze {
                other_programs_are_kept_out: Majority Data Foreign Gate;
            }
            holder {
                a_foreign_holder_has_no_name: Majority Data Foreign;
            }
            names {
                names_of_side_keys_are_foreign_or_refused: Placement Data Foreign;
            }
            queue {
                a_release_by_a_foreign_client_is_noticed: Request Failover Placement Majority Data Foreign Gate;
                a_foreign_client_is_not_polled: Data Foreign;
                the_end_of_a_foreign_lease_is_noticed: Majority Data Foreign;
            }
            queue_of_runs {
                a_run_waits_for_a_foreign_client: Majority Data Foreign Gate;
            }
            queue_positions {
                a_foreign_client_that_acquires_first_costs_no_queue_position: Majority Data Foreign;
                waiters_keep_their_positions_while_a_foreign_client_holds_the_lock: Majority Data Foreign;
            }
            revocation {
                a_foreign_lock_is_removed_only_where_the_store_keeps_it: Majority Data Foreign Gate;
            }
        }
    };
}
pub(super) use one_holder_foreign_checks;

/// Those of them for locks of several holders: readers, slots.
macro_rules! several_holders_foreign_checks {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::tiers::tiered! { $rig, [$($($aspect)+)?];
            sharing {
                a_foreign_client_is_excluded_until_the_last_reader_has_left: Majority Data Foreign;
            }
            slots by prove_slots {
                a_foreign_client_is_excluded_until_the_last_slot_is_free: Data Foreign;
            }
        }
    };
}
pub(super) use several_holders_foreign_checks;

/// The tests of one store through its traits alone: no run of the binary, no foreign program, no URL.
macro_rules! trait_checks {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::list::one_holder_trait_checks!($rig $(; $($aspect)+)?);
        crate::stores::conformance::list::several_holders_trait_checks!($rig $(; $($aspect)+)?);
    };
}
pub(super) use trait_checks;

/// Those of them for locks of one holder at a time.
macro_rules! one_holder_trait_checks {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::tiers::tiered! { $rig, [$($($aspect)+)?];
            exclusion {
                a_held_lock_excludes_others: Request Pooling Failover Majority Data Foreign Gate;
                release_frees_the_lock: Request Pooling Majority Data Foreign Gate;
                release_may_be_repeated: Majority Gate;
                another_lock_is_free: Placement;
                the_lock_ends_with_its_owner: Request Pooling Failover Majority Data Foreign Gate;
            }
            ownership {
                a_stale_owner_cannot_renew: Majority Data Gate;
                a_stale_owner_cannot_release: Pooling Failover Majority Data Gate;
                another_token_cannot_renew: Majority Data;
                another_token_cannot_release: Majority Data Gate;
                the_token_of_one_lock_is_invalid_for_another: Placement;
                a_deleted_lock_is_lost_and_not_created_again: Majority Data Gate;
                a_replaced_lock_is_lost_and_not_touched: Request Majority Data Foreign Gate;
                a_repeated_request_is_recognised: Request Failover Majority Data Foreign Gate;
                renewal_keeps_the_lock: Request Pooling Failover Majority Data Gate;
                a_refused_request_leaves_no_trace: Majority Data Gate;
            }
            admin {
                inspect_reports_holders_and_waiters: Request Majority Data Foreign;
                inspect_changes_nothing: Majority Gate;
                held_and_awaited_locks_are_listed: Request Placement Majority Data Gate;
                the_last_outcomes_are_kept: Request Placement Majority Data;
                the_next_renewal_reports_a_revocation: Majority Data Gate;
                a_hold_is_removed_unless_it_lives_in_a_descriptor: Request Majority Data Gate;
                a_hold_that_was_not_inspected_is_not_removed: Majority Data Gate;
                a_dropped_inspection_leaves_the_store_usable: Request;
            }
            fencing {
                fencing_tokens_grow_over_a_restart: Request Failover Majority;
                fencing_tokens_grow_over_a_wiped_store: Failover Majority;
                fencing_tokens_grow_over_a_deleted_lock: Majority Data Gate;
                the_last_fencing_token_outlives_its_hold: Majority Data;
                later_fencing_tokens_are_larger_than_a_floor: Request Majority Data;
            }
            holder {
                busy_names_the_holder: Majority Data Foreign Gate;
            }
            cancellation {
                a_dropped_connect_leaves_the_store_usable: Request;
                a_dropped_acquire_leaves_the_store_usable: Request Majority Gate;
                a_dropped_renew_leaves_the_store_usable: Majority;
                a_dropped_release_leaves_the_store_usable: Request Majority Gate;
            }
            queue {
                waiters_are_served_first_come_first_served: Request Failover Majority Data Foreign Gate;
                later_clients_do_not_overtake_waiters: Majority;
                only_the_called_waiter_is_notified: Request Failover Placement Majority;
                a_request_without_waiting_does_not_overtake_waiters: Majority;
                a_request_without_waiting_gets_an_unclaimed_lock: Data;
                a_waiter_that_leaves_does_not_end_a_renewed_hold: Majority;
                a_dead_waiter_is_skipped_without_delay: Request Failover Majority;
                a_silent_waiter_loses_its_turn_and_its_queue_position: Majority Data;
                a_withdrawn_waiter_leaves_no_trace_and_passes_its_turn_on: Request Majority Data Gate;
            }
            queue_positions {
                a_repeated_request_keeps_the_queue_position: Failover Majority;
                a_queue_position_outlasts_its_connection: Failover Majority;
                a_queue_position_ends_with_its_lease: Failover Majority Data;
            }
            freeze {
                a_freeze_keeps_everyone_out: Request Placement Majority Data Gate;
                the_holder_of_a_frozen_lock_ends_as_it_would: Request Majority Data Gate;
                a_waiter_that_was_called_is_kept_out_and_keeps_its_place: Majority Data;
                a_thaw_lets_waiters_in_at_once: Pooling Majority Data Gate;
                a_freeze_ends_by_itself: Request Majority Data;
                nobody_starts_once_a_lock_is_frozen: Majority Gate;
                a_token_keeps_a_frozen_lock: Majority Data Gate;
            }
            supersede {
                older_waiters_leave_to_a_newer_one: Request Majority Data Gate;
                a_waiter_that_has_lost_its_place_is_not_the_newest: Majority Data Gate;
            }
            nesting {
                the_last_inner_hold_decides: Request Majority Data Gate;
                entering_is_idempotent: Majority Gate;
                a_nested_entry_overtakes_waiters: Majority;
                entering_a_hold_that_is_gone_is_refused: Majority Data Gate;
            }
            min_hold {
                a_grant_and_a_renewal_cover_at_least_the_rest_of_min_hold: Request Majority Data Gate;
                a_release_within_min_hold_leaves_the_lock_without_a_holder: Majority Data Gate;
                a_waiter_is_granted_what_was_released_within_min_hold: Request Majority Data Gate;
            }
            once_per {
                a_success_is_found_within_the_period: Request Placement Majority Data Gate;
                claims_without_a_period_neither_look_nor_count:;
                the_period_begins_with_the_grant: Majority;
                a_run_that_does_not_succeed_leaves_it_open: Majority;
                a_waiter_that_finds_it_done_passes_its_turn_on: Majority Data Gate;
                a_held_lock_is_busy_even_if_the_next_run_is_not_due: Majority;
            }
            overdue {
                a_success_of_a_revoked_hold_does_not_count: Majority Data Gate;
            }
            revocation {
                a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases: Request Failover Majority Data Foreign Gate;
                a_revocation_does_not_apply_to_another_hold: Majority;
                all_nested_holds_are_notified: Majority Data;
                min_hold_does_not_apply_to_a_revoked_hold: Majority Data Gate;
                a_lock_without_a_running_holder_ends_at_once: Majority Data Gate;
                a_hold_is_removed_only_where_the_store_keeps_it: Majority Data Gate;
                an_ended_hold_cannot_be_removed: Majority;
            }
        }
    };
}
pub(super) use one_holder_trait_checks;

/// Those of them for locks of several holders: readers, slots.
macro_rules! several_holders_trait_checks {
    ($rig:path $(; $($aspect:ident)+)?) => {
        crate::stores::conformance::tiers::tiered! { $rig, [$($($aspect)+)?];
            admin {
                inspect_reports_the_hold_that_a_token_proves: Majority Data;
                only_the_given_hold_is_revoked: Majority Data;
            }
            sharing {
                readers_share: Majority Data;
                all_readers_are_counted: Majority Data;
                each_reader_has_its_own_fencing_token: Majority;
                a_writer_and_readers_exclude_each_other: Request Majority Data Foreign;
                a_waiting_writer_blocks_later_readers: Majority Data Foreign;
                a_writer_is_not_starved:;
                all_readers_at_the_head_are_called_together: Majority Data;
                every_reader_at_the_head_is_notified: Request Failover Majority;
                a_short_lease_does_not_end_other_readers: Majority Data;
                a_dead_reader_is_released: Majority Data;
            }
            slots by prove_slots {
                slots_limit_the_number_of_holders: Request Majority Data Foreign;
                a_hold_keeps_its_slot: Data;
                a_freed_slot_goes_to_the_next_waiter:;
                two_freed_slots_go_to_the_next_two_waiters: Data;
                exclusive_waits_for_every_slot: Data Foreign;
                a_different_slot_count_than_that_of_a_waiter_is_refused: Data;
                the_slot_count_may_change_when_the_lock_is_unused: Data;
                the_slot_of_a_dead_holder_is_freed: Data;
            }
            min_hold by prove_slots {
                a_slot_is_kept_for_min_hold: Data;
            }
            revocation {
                only_one_of_several_holders_is_notified: Majority Data;
            }
        }
    };
}
pub(super) use several_holders_trait_checks;
