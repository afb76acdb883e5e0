//! One Memcached. It has one exclusive holder of each lock, and no queue, list, history and fencing tokens.

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

    fn has_slots(&self) -> bool {
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

    fn waiters(&self, _: &str) -> usize {
        0
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

    fn own_items(&self, names: &[&str]) -> Vec<String> {
        let mut keys = self.memcached.keys();
        keys.retain(|key| !names.contains(&key.as_str()));
        keys
    }
}

super::topics! { MemcachedRig::new;
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
        the_next_renewal_reports_a_revocation
        a_hold_is_removed_unless_it_lives_in_a_descriptor
        a_hold_that_was_not_inspected_is_not_removed
    }
    holder {
        busy_names_the_holder
        busy_names_what_a_run_reports_of_itself
        busy_never_reveals_a_token
        a_foreign_holder_has_no_name
        display_reveals_no_secret
    }
    cancellation {
        a_dropped_connect_leaves_the_store_usable
        a_dropped_acquire_leaves_the_store_usable
        a_dropped_renew_leaves_the_store_usable
        a_dropped_release_leaves_the_store_usable
    }
    names {
        different_names_never_collide
        different_names_never_collide_without_prefix_and_suffix
        a_notification_for_one_name_does_not_reach_another
    }
    queue_of_runs {
        an_expired_wait_leaves_no_trace
    }
    several_locks {
        all_are_held_and_all_are_freed
        all_locks_or_none_are_acquired
        no_order_of_the_names_causes_a_deadlock
        losing_one_lock_loses_all
        removing_one_lock_loses_all
        held_locks_are_renewed_while_the_next_is_waited_for
        a_holder_that_waits_for_its_next_lock_is_shown_as_waiting
        the_time_of_a_grant_is_the_same_in_every_answer
    }
    nesting {
        the_last_inner_hold_decides
        entering_is_idempotent
        entering_a_hold_that_is_gone_is_refused
        a_nested_run_enters_at_once
        fifty_deep_is_not_too_deep
        the_outer_hold_continues_after_the_inner_one
        an_inner_run_that_outlives_the_outer_keeps_the_lock
        an_inner_run_may_take_more_names
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
        a_run_returns_as_soon_as_the_store_keeps_the_lock_by_itself
        min_hold_outlasts_a_killed_dlock
        renewals_do_not_shorten_min_hold
        min_hold_does_not_apply_when_the_command_cannot_be_executed
        the_min_hold_of_an_inner_run_is_respected
        the_min_hold_of_an_inner_run_that_has_passed_keeps_nothing
    }
    revocation {
        a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
        all_nested_holds_are_notified
        min_hold_does_not_apply_to_a_revoked_hold
        a_hold_is_removed_only_where_the_store_keeps_it
        a_foreign_lock_is_removed_only_where_the_store_keeps_it
        an_ended_hold_cannot_be_removed
    }
}
