//! Locks of `GET_LOCK` on MariaDB, with a table beside them.

use super::rig::{Rig, with};
use crate::support::mariadb::{MariaDb, Session};
use crate::support::place::Place;
use crate::support::pool::Lent;
use dlock::lock::Mode;
use std::collections::HashMap;
use std::time::Duration;

/// The server's clock in microseconds.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

struct GetLockRig {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    /// The sessions of other programs, by the lock that they hold.
    foreign: HashMap<String, Session>,
    server: Lent<MariaDb>,
}

impl GetLockRig {
    fn new() -> Self {
        Self { place: Place::new(), foreign: HashMap::new(), server: MariaDb::lent() }
    }

    /// The connection that holds a lock.
    fn holder(&self, name: &str) -> Option<u64> {
        self.server.sql(&format!("SELECT IS_USED_LOCK('it:{name}')")).trim().parse().ok()
    }

    /// Ends the session of a holder.
    fn kill_holder(&self, name: &str) {
        let holder = self.holder(name).expect("a holder");
        self.server.sql(&format!("KILL {holder}"));
    }

    /// One column of the row of a lock, if there is a row.
    fn column(&self, name: &str, column: &str) -> Option<String> {
        let sql = format!("SELECT {column} FROM dlock_locks WHERE name = 'it:{name}' AND ends_at > {NOW}");
        self.server.try_sql(&sql).ok()?.lines().next().map(str::to_owned)
    }
}

impl Rig for GetLockRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        with(&self.exact_url(), "prefix=it:")
    }

    fn exact_url(&self) -> String {
        with(&self.server.url(), "recipe=get_lock")
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("mysql://somebody:{secret}@127.0.0.1:1/db?recipe=get_lock"))
    }

    fn has_leases(&self) -> bool {
        false
    }

    fn lease(&self, ttl: Duration) -> Option<Duration> {
        Some(ttl)
    }

    /// The server counts in whole seconds.
    fn rounding(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// The entry of a waiter ends with its lease.
    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn has_slots(&self) -> bool {
        false
    }

    fn has(&self, mode: Mode) -> bool {
        mode == Mode::Exclusive
    }

    fn delete(&mut self, name: &str) {
        self.kill_holder(name);
        self.server.sql(&format!("DELETE FROM dlock_locks WHERE name = 'it:{name}'"));
        self.server.await_free(&format!("it:{name}"));
    }

    fn replace(&mut self, name: &str) {
        if self.holder(name).is_some() {
            self.kill_holder(name);
            self.server.await_free(&format!("it:{name}"));
        }
        assert!(self.foreign_lock(name, None));
    }

    fn is_untouched(&self, name: &str) -> bool {
        let holder = self.holder(name);
        holder.is_some() && holder == self.foreign.get(name).map(Session::id)
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        assert_eq!(lease, None, "a session has no lease");
        let mut session = self.server.session();
        let is_taken = session.ask(&format!("SELECT GET_LOCK('it:{name}', 0)")) == "1";
        if is_taken {
            self.foreign.insert(name.to_owned(), session);
        }
        is_taken
    }

    fn foreign_unlock(&mut self, name: &str) {
        let mut session = self.foreign.remove(name).expect("a foreign lock");
        assert_eq!(session.ask(&format!("SELECT RELEASE_LOCK('it:{name}')")), "1");
    }

    fn waiters(&self, name: &str) -> usize {
        let entries = self.column(name, "entries").unwrap_or_default();
        let ledger: serde_json::Value = serde_json::from_str(&entries).unwrap_or_default();
        ledger["line"].as_array().map_or(0, Vec::len)
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let holder = self.holder(name).map(|id| format!("connection {id}"));
        self.column(name, "leases").into_iter().chain(holder).collect()
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn wipe(&mut self) {
        let holders = self.server.sql(
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'",
        );
        for holder in holders.lines() {
            let _ = self.server.try_sql(&format!("KILL {holder}"));
        }
        self.server.await_free("it:x");
        self.server.sql("DROP TABLE dlock_locks");
    }

    /// A lock is one row.
    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }

    fn has_own_items(&self) -> bool {
        false
    }
}

// Not those that share the lock, nor those that expect a notification when a foreign client frees it, nor those in which
// a holder does not notice at once that its session has ended.
super::topics! { GetLockRig::new;
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
        inspect_reports_holders_and_waiters
        inspect_changes_nothing
        held_and_awaited_locks_are_listed
        the_last_outcomes_are_kept
        the_next_renewal_reports_a_revocation
        a_hold_is_removed_unless_it_lives_in_a_descriptor
        a_hold_that_was_not_inspected_is_not_removed
        a_dropped_inspection_leaves_the_store_usable
        breaks_and_tokens_are_recorded
        a_foreign_hold_is_removed_only_if_unchanged_since_its_inspection
    }
    fencing {
        fencing_tokens_grow_over_a_restart
        fencing_tokens_grow_over_a_wiped_store
        fencing_tokens_grow_over_a_deleted_lock
        the_last_fencing_token_outlives_its_hold
        fencing_tokens_grow_with_every_grant
        a_script_can_check_that_no_later_fencing_token_was_granted
    }
    holder {
        busy_names_the_holder
        busy_names_what_a_run_reports_of_itself
        busy_never_reveals_a_token
        display_reveals_no_secret
        a_foreign_holder_has_no_name
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
    slots by prove_slots {
        slots_limit_the_number_of_holders
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
    min_hold {
        a_grant_and_a_renewal_cover_at_least_the_rest_of_min_hold
        a_release_within_min_hold_leaves_the_lock_without_a_holder
        the_lock_is_kept_for_min_hold
        min_hold_does_not_delay_a_longer_command
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
    revocation {
        a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
        a_revocation_does_not_apply_to_another_hold
        all_nested_holds_are_notified
        min_hold_does_not_apply_to_a_revoked_hold
        a_lock_without_a_running_holder_ends_at_once
        a_hold_is_removed_only_where_the_store_keeps_it
        an_ended_hold_cannot_be_removed
        a_foreign_lock_is_removed_only_where_the_store_keeps_it
    }
    names {
        different_names_never_collide
        different_names_never_collide_without_prefix_and_suffix
        a_notification_for_one_name_does_not_reach_another
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
    nesting_refused by prove_slots {
        a_different_slot_count_inside_is_refused_at_once
    }
    nesting_refused {
        a_hold_whose_dlock_is_dead_is_ignored
        an_outer_hold_of_a_live_dlock_must_exist
        an_inner_run_does_not_enter_a_lock_that_is_gone
        an_inner_run_does_not_enter_a_lock_that_was_removed
        a_deadlock_by_opposite_nesting_ends_with_the_wait
    }
}
