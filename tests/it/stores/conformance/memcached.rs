//! One Memcached. It has no list of its locks, no fencing tokens, no last success, and no queue behind the item of another
//! program; every other check applies.

use super::rig::{Rig, with};
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use std::time::Duration;

const FOREIGN: &str = "worker 3";

struct MemcachedRig {
    // The runs started here end before the server.
    place: Place,
    memcached: Memcached,
}

impl MemcachedRig {
    fn new() -> Self {
        let (place, memcached) = (Place::new(), Memcached::start());
        // Checks compare all that a run says.
        let directory = place.home().join(".config/dlock");
        std::fs::create_dir_all(&directory).unwrap();
        let table = format!("[backends.mc]\nurl = '{}'\naccept = ['efficiency']\n", memcached.url());
        std::fs::write(directory.join("config.toml"), table).unwrap();
        Self { place, memcached }
    }
}

fn key(name: &str) -> String {
    format!("dlock:{name}")
}

impl Rig for MemcachedRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.memcached.url()
    }

    fn backend(&self) -> String {
        "mc".to_owned()
    }

    fn exact_url(&self) -> String {
        with(&self.url(), "prefix=")
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("memcached://somebody:{secret}@127.0.0.1:1?prefix=p"))
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn ttl(&self, seconds: u64) -> String {
        format!("{}s", seconds.max(3))
    }

    /// The rest of a second, and two more.
    fn rounding(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn end_of_lease(&self, ttl: Duration) -> Duration {
        ttl.max(Duration::from_secs(3)) + self.rounding()
    }

    fn has_fencing_tokens(&self) -> bool {
        false
    }

    /// An entry ends with its lease.
    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn delete(&mut self, name: &str) {
        assert!(self.memcached.delete(&key(name)), "{name} was not held");
    }

    fn replace(&mut self, name: &str) {
        let set = format!("set {} 0 0 {}\r\n{FOREIGN}", key(name), FOREIGN.len());
        assert_eq!(self.memcached.command(&set), "STORED");
    }

    fn is_untouched(&self, name: &str) -> bool {
        let key = key(name);
        self.memcached.get(&key).as_deref() == Some(FOREIGN) && self.memcached.remaining(&key) == Some(-1)
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        self.memcached.add(&key(name), lease, FOREIGN)
    }

    fn foreign_unlock(&mut self, name: &str) {
        self.delete(name);
    }

    fn waiters(&self, name: &str) -> usize {
        let item = self.memcached.get(&key(name)).unwrap_or_default();
        let ledger: serde_json::Value = serde_json::from_str(&item).unwrap_or_default();
        ledger["line"].as_array().map_or(0, Vec::len)
    }

    fn traces(&self, name: &str) -> Vec<String> {
        self.memcached.get(&key(name)).map(|_| key(name)).into_iter().collect()
    }

    fn restart(&mut self) {
        self.memcached.restart();
    }

    fn wipe(&mut self) {
        assert_eq!(self.memcached.command("flush_all"), "OK");
    }

    fn has_list(&self) -> bool {
        false
    }

    fn own_items(&self, names: &[&str]) -> Vec<String> {
        let mut keys = self.memcached.keys();
        keys.retain(|key| !names.contains(&key.as_str()));
        keys
    }

    /// One item tells the time for all locks.
    fn has_own_items(&self) -> bool {
        false
    }
}

super::checks! { MemcachedRig::new; supersede { an_older_waiter_is_notified_of_a_newer_one } }

super::topics! { MemcachedRig::new;
    exclusion {
        a_run_excludes_a_run
        a_run_and_another_client_exclude_each_other
        of_many_runs_one_holds_at_a_time
        a_held_lock_excludes_others
        release_frees_the_lock
        release_may_be_repeated
        another_lock_is_free
        the_lock_ends_with_its_owner
    }
    admin {
        a_foreign_hold_is_removed_only_if_unchanged_since_its_inspection
        inspect_reports_holders_and_waiters
        inspect_reports_the_hold_that_a_token_proves
        inspect_changes_nothing
        the_last_outcomes_are_kept
        the_next_renewal_reports_a_revocation
        a_hold_is_removed_unless_it_lives_in_a_descriptor
        a_hold_that_was_not_inspected_is_not_removed
        a_dropped_inspection_leaves_the_store_usable
    }
    freeze {
        an_operator_freezes_a_lock_and_thaws_it
        a_freeze_keeps_everyone_out
        the_holder_of_a_frozen_lock_ends_as_it_would
        a_thaw_lets_waiters_in_at_once
        a_freeze_ends_by_itself
        nobody_starts_once_a_lock_is_frozen
        a_token_keeps_a_frozen_lock
    }
    supersede {
        a_newer_run_ends_the_older_ones
        older_waiters_leave_to_a_newer_one
        a_waiter_that_has_lost_its_place_is_not_the_newest
    }
    overdue {
        the_last_success_outlives_later_failures
    }
    holder {
        busy_names_what_a_run_reports_of_itself
        busy_never_reveals_a_token
        display_reveals_no_secret
        a_foreign_holder_has_no_name
        busy_names_the_holder
    }
    names {
        different_names_never_collide
        different_names_never_collide_without_prefix_and_suffix
        a_notification_for_one_name_does_not_reach_another
        names_of_side_keys_are_foreign_or_refused
    }
    queue_of_runs {
        runs_are_served_first_come_first_served
        a_run_without_waiting_gets_an_unclaimed_lock
        a_run_without_waiting_gives_up_when_the_turn_is_claimed
        a_killed_waiting_run_blocks_no_other
        an_expired_wait_leaves_no_trace
        a_signal_ends_a_wait_and_leaves_no_trace
    }
    sharing {
        runs_share_according_to_their_options
        a_killed_shared_run_is_released
        a_foreign_client_is_excluded_until_the_last_reader_has_left
        readers_share
        all_readers_are_counted
        a_writer_and_readers_exclude_each_other
        a_waiting_writer_blocks_later_readers
        a_writer_is_not_starved
        all_readers_at_the_head_are_called_together
        every_reader_at_the_head_is_notified
        a_short_lease_does_not_end_other_readers
        a_dead_reader_is_released
    }
    slots by prove_slots {
        concurrent_runs_have_different_slots
        a_different_slot_count_is_refused
        the_slot_of_a_killed_run_is_freed
        one_slot_is_exclusive
        a_foreign_client_is_excluded_until_the_last_slot_is_free
        slots_limit_the_number_of_holders
        a_hold_keeps_its_slot
        a_freed_slot_goes_to_the_next_waiter
        two_freed_slots_go_to_the_next_two_waiters
        exclusive_waits_for_every_slot
        a_different_slot_count_than_that_of_a_waiter_is_refused
        the_slot_count_may_change_when_the_lock_is_unused
        the_slot_of_a_dead_holder_is_freed
    }
    several_locks {
        all_are_held_and_all_are_freed
        all_locks_or_none_are_acquired
        no_order_of_the_names_causes_a_deadlock
        losing_one_lock_loses_all
        removing_one_lock_loses_all
        held_locks_are_renewed_while_the_next_is_waited_for
        a_lock_lost_while_the_next_is_waited_for_is_acquired_again
        a_holder_that_waits_for_its_next_lock_is_shown_as_waiting
        the_time_of_a_grant_is_the_same_in_every_answer
    }
    any {
        the_first_free_lock_is_taken
        without_waiting_each_is_tried_once
        a_run_waits_in_all_queues_and_leaves_the_others
        an_earlier_waiter_for_one_of_them_is_served_first
        of_two_released_in_the_same_instant_one_is_given_back
        a_wait_for_any_that_ends_leaves_no_trace
        a_nested_run_enters_the_lock_of_its_outer_run
    }
    nesting {
        a_nested_run_enters_at_once
        fifty_deep_is_not_too_deep
        the_outer_hold_continues_after_the_inner_one
        an_inner_run_that_outlives_the_outer_keeps_the_lock
        an_inner_run_may_take_more_names
        the_inner_command_gets_the_same_fencing_token
        shared_inside_exclusive_is_granted
        the_same_name_on_another_store_is_another_lock
        the_last_inner_hold_decides
        entering_is_idempotent
        a_nested_entry_overtakes_waiters
        entering_a_hold_that_is_gone_is_refused
    }
    nesting by prove_slots {
        an_inner_run_has_the_slot_of_the_outer_one
    }
    nesting_refused by prove_slots {
        a_different_slot_count_inside_is_refused_at_once
    }
    nesting_refused {
        exclusive_inside_shared_is_refused_at_once
        a_hold_whose_dlock_is_dead_is_ignored
        an_outer_hold_of_a_live_dlock_must_exist
        an_inner_run_does_not_enter_a_lock_that_is_gone
        an_inner_run_does_not_enter_a_lock_that_was_removed
        waiting_for_an_ancestor_is_refused_with_an_explanation
        a_deadlock_by_opposite_nesting_ends_with_the_wait
    }
    min_hold {
        the_lock_is_kept_for_min_hold
        min_hold_does_not_delay_a_longer_command
        a_run_reports_who_keeps_the_lock
        busy_reports_that_min_hold_keeps_the_lock
        a_run_returns_as_soon_as_the_store_keeps_the_lock_by_itself
        min_hold_outlasts_a_killed_dlock
        renewals_do_not_shorten_min_hold
        min_hold_outlasts_a_lost_lock
        min_hold_does_not_apply_when_the_command_cannot_be_executed
        a_waiting_run_is_granted_the_lock_when_min_hold_ends
        the_min_hold_of_an_inner_run_is_respected
        the_min_hold_of_an_inner_run_that_has_passed_keeps_nothing
        a_grant_and_a_renewal_cover_at_least_the_rest_of_min_hold
        a_release_within_min_hold_leaves_the_lock_without_a_holder
        a_waiter_is_granted_what_was_released_within_min_hold
    }
    loss {
        a_lost_lock_is_free_when_its_run_has_ended
        a_lock_that_was_taken_is_free_when_both_have_ended
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
    }
    queue_positions {
        a_repeated_request_keeps_the_queue_position
        a_queue_position_outlasts_its_connection
        a_queue_position_ends_with_its_lease
    }
    revocation {
        a_foreign_lock_is_removed_only_where_the_store_keeps_it
        a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
        only_one_of_several_holders_is_notified
        all_nested_holds_are_notified
        min_hold_does_not_apply_to_a_revoked_hold
        a_lock_without_a_running_holder_ends_at_once
        a_hold_is_removed_only_where_the_store_keeps_it
        an_ended_hold_cannot_be_removed
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
    cancellation {
        a_dropped_connect_leaves_the_store_usable
        a_dropped_acquire_leaves_the_store_usable
        a_dropped_renew_leaves_the_store_usable
        a_dropped_release_leaves_the_store_usable
    }
    min_hold by prove_slots {
        a_slot_is_kept_for_min_hold
    }
}
