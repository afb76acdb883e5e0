//! The table of ShedLock on PostgreSQL and MariaDB. The foreign client sends the statements of ShedLock's own providers.

use super::rig::{Rig, with};
use crate::support::place::Place;
use dlock::lock::Mode;
use std::time::Duration;

/// A server with the table.
trait Server {
    /// The URL of its database.
    fn url(&self) -> String;
    /// A URL with this password, and of no server.
    fn url_with_secret(secret: &str) -> String;
    /// The first column of the rows.
    fn sql(&self, sql: &str) -> Result<String, String>;
    fn restart(&mut self);
    /// An expression for a time so many milliseconds from now.
    fn after(milliseconds: u128) -> String;
    /// Takes the lock if it is free.
    fn take(name: &str, until: &str) -> String;
    const TABLE: &str;
    /// The server's clock in microseconds since 1970.
    const MICROS: &str;
}

struct ShedLockRig<S> {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    server: S,
}

const FOREIGN: &str = "app-server-1";
/// `lockAtMostFor` of a lock that ends only by its release.
const FOR_LONG: Duration = Duration::from_secs(3600);

impl<S: Server> ShedLockRig<S> {
    fn on(server: S) -> Self {
        let rig = Self { place: Place::new(), server };
        rig.sql(S::TABLE);
        rig
    }

    #[track_caller]
    fn sql(&self, sql: &str) -> String {
        self.server.sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn held(&self, name: &str) -> String {
        let now = S::after(0);
        self.sql(&format!("SELECT locked_by FROM shedlock WHERE name = '{name}' AND lock_until > {now}"))
    }

    /// A column of the row of the ledger.
    fn ledger(&self, name: &str, column: &str) -> String {
        self.server
            .sql(&format!("SELECT {column} FROM dlock_locks WHERE name = '{name}'"))
            .unwrap_or_default()
    }
}

impl<S: Server> Rig for ShedLockRig<S> {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        with(&with(&self.server.url(), "recipe=shedlock"), "clock=db-utc")
    }

    fn exact_url(&self) -> String {
        self.url()
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(with(&with(&S::url_with_secret(secret), "recipe=shedlock"), "clock=db-utc"))
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn has_slots(&self) -> bool {
        false
    }

    fn has(&self, mode: Mode) -> bool {
        mode == Mode::Exclusive
    }

    /// A release is decided with a time that may be ahead of the server's by as long as a request takes.
    fn rounding(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn delete(&mut self, name: &str) {
        assert_ne!(self.held(name), "", "{name} was not held");
        self.sql(&format!("DELETE FROM shedlock WHERE name = '{name}'"));
        self.sql(&format!("DELETE FROM dlock_locks WHERE name = '{name}'"));
    }

    fn replace(&mut self, name: &str) {
        let until = S::after(FOR_LONG.as_millis());
        self.sql(&format!(
            "UPDATE shedlock SET locked_by = '{FOREIGN}', lock_until = {until} WHERE name = '{name}'"
        ));
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.held(name) == FOREIGN
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        self.sql(&S::take(name, &S::after(lease.unwrap_or(FOR_LONG).as_millis())));
        self.held(name) == FOREIGN
    }

    fn foreign_unlock(&mut self, name: &str) {
        let now = S::after(0);
        self.sql(&format!(
            "UPDATE shedlock SET lock_until = {now} WHERE name = '{name}' AND locked_by = '{FOREIGN}'"
        ));
    }

    fn waiters(&self, name: &str) -> usize {
        let ledger: serde_json::Value =
            serde_json::from_str(&self.ledger(name, "entries")).unwrap_or_default();
        ledger["line"].as_array().map_or(0, Vec::len)
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let mut traces = vec![self.held(name)];
        let leases = format!("CASE WHEN ends_at > {} THEN leases ELSE '' END", S::MICROS);
        traces.push(self.ledger(name, &leases));
        traces.retain(|trace| !trace.is_empty());
        traces
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    /// Rows of ShedLock are never deleted, and neither is its table.
    fn wipe(&mut self) {
        self.sql("DELETE FROM shedlock");
        self.sql("DROP TABLE IF EXISTS dlock_locks");
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }

    fn has_own_items(&self) -> bool {
        false
    }
}

/// What applies to a lock with one holder.
macro_rules! exclusive_checks {
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
                the_end_of_a_foreign_lease_is_noticed
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
                removing_one_lock_loses_all
                held_locks_are_renewed_while_the_next_is_waited_for
                a_lock_lost_while_the_next_is_waited_for_is_acquired_again
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
                busy_reports_that_min_hold_keeps_the_lock
                a_run_returns_as_soon_as_the_store_keeps_the_lock_by_itself
                min_hold_outlasts_a_killed_dlock
                renewals_do_not_shorten_min_hold
                min_hold_does_not_apply_when_the_command_cannot_be_executed
                a_waiting_run_is_granted_the_lock_when_min_hold_ends
                the_min_hold_of_an_inner_run_is_respected
                the_min_hold_of_an_inner_run_that_has_passed_keeps_nothing
            }
            slots by prove_slots {
                one_slot_is_exclusive
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
            }
        }
    };
}

#[cfg(feature = "postgres")]
mod postgres_shedlock {
    use super::{FOREIGN, Server, ShedLockRig};
    use crate::support::pool::Lent;
    use crate::support::postgres::Postgres;

    fn rig() -> ShedLockRig<Lent<Postgres>> {
        ShedLockRig::on(Postgres::lent())
    }

    impl Server for Lent<Postgres> {
        const TABLE: &str = "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at \
                             TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";
        const MICROS: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)";

        fn url(&self) -> String {
            Postgres::url(self)
        }

        fn url_with_secret(secret: &str) -> String {
            format!("postgres://somebody:{secret}@127.0.0.1:1,127.0.0.1:2/app")
        }

        fn sql(&self, sql: &str) -> Result<String, String> {
            self.try_sql(sql)
        }

        fn restart(&mut self) {
            Postgres::restart(self);
        }

        fn after(milliseconds: u128) -> String {
            format!("timezone('utc', CURRENT_TIMESTAMP) + {milliseconds} * interval '1 millisecond'")
        }

        /// `PostgresSqlServerTimeStatementsSource` of ShedLock.
        fn take(name: &str, until: &str) -> String {
            let now = Self::after(0);
            format!(
                "INSERT INTO shedlock (name, lock_until, locked_at, locked_by) VALUES ('{name}', {until}, {now}, '{FOREIGN}') \
                 ON CONFLICT (name) DO UPDATE SET lock_until = {until}, locked_at = {now}, locked_by = '{FOREIGN}' WHERE \
                 shedlock.name = '{name}' AND shedlock.lock_until <= {now}"
            )
        }
    }

    exclusive_checks!(rig);
}

#[cfg(feature = "mysql")]
mod mariadb_shedlock {
    use super::{FOREIGN, Server, ShedLockRig};
    use crate::support::mariadb::MariaDb;
    use crate::support::pool::Lent;

    fn rig() -> ShedLockRig<Lent<MariaDb>> {
        ShedLockRig::on(MariaDb::lent())
    }

    impl Server for Lent<MariaDb> {
        const TABLE: &str = "CREATE TABLE shedlock (name VARCHAR(64) COLLATE utf8mb4_bin NOT NULL, lock_until TIMESTAMP(3) \
                             NOT NULL, locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) \
                             NOT NULL, PRIMARY KEY (name)) CHARACTER SET utf8mb4";
        const MICROS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

        fn url(&self) -> String {
            MariaDb::url(self)
        }

        fn url_with_secret(secret: &str) -> String {
            format!("mysql://somebody:{secret}@127.0.0.1:1/db")
        }

        fn sql(&self, sql: &str) -> Result<String, String> {
            self.try_sql(sql).map(|rows| rows.trim_end().to_owned())
        }

        fn restart(&mut self) {
            MariaDb::restart(self);
        }

        fn after(milliseconds: u128) -> String {
            format!("TIMESTAMPADD(MICROSECOND, {milliseconds} * 1000, UTC_TIMESTAMP(3))")
        }

        /// `MySqlServerTimeStatementsSource` of ShedLock.
        fn take(name: &str, until: &str) -> String {
            let now = Self::after(0);
            format!(
                "INSERT IGNORE INTO shedlock (name, lock_until, locked_at, locked_by) VALUES ('{name}', {until}, {now}, \
                 '{FOREIGN}'); UPDATE shedlock SET lock_until = {until}, locked_at = {now}, locked_by = '{FOREIGN}' WHERE name \
                 = '{name}' AND lock_until <= {now}"
            )
        }
    }

    exclusive_checks!(rig);
}
