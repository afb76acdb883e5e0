//! What every store promises, whichever it is.
//!
//! A check is a plain async function over a [`rig::Rig`]. The list below turns each (store x check) into a test of its
//! own, such as `conformance::file::a_stale_owner_cannot_release`. A new store brings a rig, a new promise one function
//! and one line here.

mod client;
mod disturbance;
pub mod rig;
#[cfg(feature = "redis")]
mod servers;
mod suite;

#[cfg(feature = "redis")]
mod cluster;
mod file;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redisson;
#[cfg(feature = "redis")]
mod redlock;
#[cfg(feature = "redis")]
mod sentinel;
#[cfg(feature = "redis")]
mod tls;

/// The tests of one store.
macro_rules! every_check {
    ($rig:path) => {
        crate::conformance::every_check! { $rig;
            exclusion {
                a_held_lock_excludes_others
                release_frees_the_lock
                release_may_be_repeated
                another_lock_is_free
                a_run_excludes_a_run
                a_run_and_another_client_exclude_each_other
                of_many_runs_one_holds_at_a_time
                the_lock_ends_with_its_owner
            }
            ownership {
                a_stale_owner_cannot_renew
                a_stale_owner_cannot_release
                another_token_cannot_renew
                another_token_cannot_release
                the_token_of_one_lock_is_nothing_to_another
                a_deleted_lock_is_gone_and_is_not_created_anew
                a_replaced_lock_is_taken_and_is_not_touched
                a_repeated_request_is_recognised_as_ours
                renewal_keeps_the_lock
                whoever_asks_without_being_granted_leaves_nothing
            }
            oversight {
                looking_tells_of_those_who_hold_and_wait
                looking_tells_whose_hold_a_token_proves
                looking_leaves_nothing_and_takes_nothing
                what_is_held_or_awaited_is_listed
                the_last_outcomes_are_kept
                a_revocation_is_told_with_the_next_renewal
                only_the_hold_that_is_meant_is_revoked
                a_hold_is_removed_only_where_it_is_not_in_a_descriptor
                a_hold_that_was_not_seen_is_not_removed
                a_foreign_hold_is_seen_and_is_removed_only_as_it_was_seen
                a_dropped_look_leaves_the_store_usable
            }
            fencing {
                fencing_tokens_grow_with_every_grant
                fencing_tokens_grow_over_a_restart
                fencing_tokens_grow_over_a_wiped_store
                fencing_tokens_grow_over_a_deleted_lock
            }
            holder {
                busy_names_the_holder
                busy_names_what_a_run_says_of_itself
                busy_never_tells_a_token
                a_foreign_holder_has_no_name
                display_tells_no_secret
            }
            dropped {
                a_dropped_connect_leaves_the_store_usable
                a_dropped_acquire_leaves_the_store_usable
                a_dropped_renew_leaves_the_store_usable
                a_dropped_release_leaves_the_store_usable
            }
            names {
                different_names_never_meet
                different_names_never_meet_without_prefix_and_suffix
                names_of_what_dlock_itself_stores_are_strangers_or_refused
                what_is_told_of_one_name_is_not_told_of_another
            }
            line {
                grants_come_in_the_order_of_the_line
                nobody_passes_those_who_come_first
                who_is_called_is_told_and_the_many_are_not
                taking_now_does_not_pass_somebody_in_line
                taking_now_gets_what_is_not_claimed
                a_dead_waiter_is_skipped_at_once
                a_silent_waiter_loses_the_turn_and_the_place
                who_leaves_the_line_leaves_nothing_and_passes_the_turn_on
                what_a_foreign_client_gives_back_is_noticed
                a_foreign_client_is_not_polled
                the_end_of_a_foreign_lease_is_noticed
            }
            line_of_runs {
                runs_are_served_in_the_order_of_the_line
                a_run_that_does_not_wait_gets_what_is_not_claimed
                a_run_that_does_not_wait_gives_up_when_the_turn_is_claimed
                a_waiting_run_that_is_killed_stops_nobody
                a_wait_that_is_over_leaves_nothing
                a_signal_ends_a_wait_and_leaves_nothing
                a_run_waits_for_a_foreign_client
            }
            places {
                asking_again_keeps_the_place
                a_place_outlasts_its_connection
                a_place_ends_with_its_lease
                a_foreign_client_that_comes_first_costs_no_place
                nobody_loses_a_place_while_a_foreign_client_holds_the_lock
            }
            sharing {
                readers_share
                all_readers_are_counted
                each_reader_has_a_fencing_token_of_its_own
                a_writer_and_readers_exclude_each_other
                runs_share_as_their_options_say
                a_waiting_writer_stops_later_readers
                a_writer_is_not_starved
                the_readers_at_the_head_are_called_together
                every_reader_at_the_head_is_told
                a_foreign_client_stays_out_until_the_last_reader_has_gone
                a_short_lease_does_not_end_the_others
                a_reader_that_dies_gives_back
                a_run_that_reads_and_is_killed_gives_back
            }
            slots by prove_slots {
                there_are_as_many_holders_as_slots
                a_slot_stays_the_same
                of_many_runs_no_two_have_the_same_slot
                a_freed_slot_is_given_to_the_next_in_line
                two_freed_slots_are_given_to_the_next_two
                exclusive_waits_for_every_slot
                another_number_of_slots_is_refused
                who_waits_has_agreed_on_the_number_of_slots_too
                the_number_of_slots_may_change_when_nobody_uses_them
                a_dead_holder_gives_its_slot_back
                a_run_that_is_killed_gives_its_slot_back
                a_foreign_client_stays_out_until_the_last_slot_is_free
                one_slot_is_exclusive
            }
            together {
                all_are_held_and_all_are_freed
                all_or_none_is_taken
                no_order_of_the_names_is_a_deadlock
                the_command_is_told_of_all
                whoever_loses_one_has_lost_all
                whoever_has_one_taken_away_has_lost_all
                what_is_had_is_kept_while_the_next_is_waited_for
                what_is_lost_while_the_next_is_waited_for_is_taken_again
            }
            nesting {
                a_nested_run_enters_at_once
                fifty_deep_is_not_too_deep
                the_outer_hold_goes_on_after_the_inner_one
                an_inner_run_that_outlives_the_outer_keeps_the_lock
                the_last_inside_decides
                entering_twice_is_entering_once
                entering_passes_those_in_line
                an_inner_run_may_take_more_names
                the_inner_command_finds_the_same_fencing_token
                shared_inside_exclusive_is_granted
                the_same_name_on_another_store_is_another_lock
                who_is_inside_a_hold_that_is_gone_is_refused
            }
            nesting by prove_slots {
                who_is_inside_has_the_slot_of_the_outer_one
            }
            nesting_refused by prove_slots {
                another_number_of_slots_inside_is_refused_at_once
            }
            nesting_refused {
                exclusive_inside_shared_is_refused_at_once
                a_hold_whose_dlock_is_dead_is_ignored
                a_hold_whose_dlock_lives_must_be_one
                nobody_enters_a_lock_that_is_gone
                nobody_enters_a_lock_that_was_taken_away
                whoever_waits_for_its_own_ancestor_is_told
                opposite_nesting_ends_by_the_wait
            }
            min_hold by prove_slots {
                a_slot_is_kept_as_well
            }
            min_hold {
                the_lock_is_kept_for_the_least_time
                a_longer_command_is_not_kept_up
                whoever_comes_meanwhile_is_told_why
                a_run_returns_as_soon_as_the_store_can_do_without_it
                the_least_time_outlasts_a_dlock_that_is_killed
                renewals_do_not_shorten_the_least_time
                what_could_not_be_executed_is_not_kept
                a_waiting_run_gets_it_when_the_least_time_is_over
                a_grant_and_a_renewal_are_for_the_rest_and_not_less
                a_release_with_a_rest_keeps_the_lock_for_nobody
                the_least_time_of_an_inner_run_counts
            }
            revoking {
                who_is_to_give_up_hears_of_it_and_keeps_the_lock_until_then
                another_hold_is_not_meant
                only_one_of_several_is_told
                all_who_are_inside_are_told
                what_is_to_be_given_up_is_not_kept
                what_nobody_runs_under_any_more_ends_at_once
                a_hold_is_taken_away_only_where_a_store_has_it
                a_foreign_lock_is_taken_away_only_where_a_store_has_it
                what_is_gone_is_not_there_to_be_taken_away
            }
        }
    };
    ($rig:path; $($topic:ident $(by $prove:ident)? { $($check:ident)+ })+) => {
        $(crate::conformance::checks! { $rig; $topic $(by $prove)? { $($check)+ } })+
    };
}
use every_check;

/// Some tests of one store: of one topic.
macro_rules! checks {
    ($rig:path; $topic:ident { $($check:ident)+ }) => {
        crate::conformance::checks! { $rig; $topic by prove { $($check)+ } }
    };
    ($rig:path; $topic:ident by $prove:ident { $($check:ident)+ }) => {
        $(
            #[test]
            fn $check() {
                crate::conformance::rig::$prove($rig(), crate::conformance::suite::$topic::$check);
            }
        )+
    };
}
use checks;

/// Some checks of one store, in the midst of which something happens to it: after so many things that were done to it.
#[cfg(feature = "redis")]
macro_rules! disturbed {
    ($rig:path; $($topic:ident { $($check:ident after $moment:literal)+ })+) => {
        $($(
            #[test]
            fn $check() {
                crate::conformance::rig::prove($rig($moment), crate::conformance::suite::$topic::$check);
            }
        )+)+
    };
}
#[cfg(feature = "redis")]
use disturbed;
