//! A ledger in memory, by the traits alone: the core with the least store that there can be.
//!
//! Checks that start a run are left out, because a run cannot reach the store, and so are those of foreign programs, file
//! names and secrets, of which it has none.

mod store;

use self::store::{MemoryStore, Shared};
use super::client::{Client, claim};
use super::rig::Rig;
use crate::support::place::Place;
use dlock::backend::admin::LockAdmin;
use dlock::backend::ledger::{Contender, Ledger, Step, decide};
use dlock::backend::{Attempt, Intent, StoreError};
use dlock::lock::{Claim, LockName, Record, Token, Unknown};
use std::rc::Rc;
use std::time::Duration;

struct MemoryRig(Rc<Shared>);

/// Its holds belong to neither client nor check.
const ANOTHER: &str = "another";

impl MemoryRig {
    fn new() -> Self {
        Self(Shared::new())
    }

    fn ledger(&self, name: &str) -> Ledger {
        self.0.load(name).unwrap().0
    }

    fn claim_of_another(name: &str) -> Claim {
        Claim { token: Token::from_text(ANOTHER), ..claim(name) }
    }
}

impl Rig for MemoryRig {
    fn place(&self) -> &Place {
        unreachable!("a run cannot reach this store")
    }

    fn url(&self) -> String {
        unreachable!("a run cannot reach this store")
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(Contender::new(MemoryStore::new(self.0.clone())))
    }

    fn exact_url(&self) -> String {
        unreachable!("names are not encoded")
    }

    fn url_with_secret(&self, _: &str) -> Option<String> {
        None
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn delete(&mut self, name: &str) {
        self.0.documents.borrow_mut().remove(name);
    }

    fn replace(&mut self, name: &str) {
        self.delete(name);
        assert!(self.foreign_lock(name, None));
    }

    fn is_untouched(&self, name: &str) -> bool {
        let ledger = self.ledger(name);
        ledger.waiters.is_empty() && ledger.holders.iter().map(|holder| &holder.token).eq([ANOTHER])
    }

    /// By a client with another token: there are no foreign programs.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        assert_eq!(lease, None);
        let (claim, mut ledger) = (Self::claim_of_another(name), self.ledger(name));
        let step = decide::claim(&mut ledger, &self.0.now(), &claim, Intent::TakeNow);
        let is_granted = matches!(step, Step::Done { value: Attempt::Granted(_), .. });
        if is_granted {
            self.0.store(name, &ledger, &[]);
        }
        is_granted
    }

    fn foreign_unlock(&mut self, name: &str) {
        let (claim, mut ledger) = (Self::claim_of_another(name), self.ledger(name));
        decide::release(&mut ledger, &self.0.now(), &claim, Duration::ZERO, None);
        self.0.store(name, &ledger, &[]);
    }

    fn waiters(&self, name: &str) -> usize {
        self.ledger(name).waiters.len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let ledger = self.ledger(name);
        let holders = ledger.holders.iter().map(|holder| format!("{holder:?}"));
        holders.chain(ledger.waiters.iter().map(|waiter| format!("{waiter:?}"))).collect()
    }

    fn restart(&mut self) {}

    fn wipe(&mut self) {
        self.0.documents.borrow_mut().clear();
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }
}

super::every_check! { MemoryRig::new;
    exclusion {
        a_held_lock_excludes_others
        release_frees_the_lock
        release_may_be_repeated
        another_lock_is_free
        the_lock_ends_with_its_owner
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
        inspect_reports_the_hold_that_a_token_proves
        inspect_changes_nothing
        held_and_awaited_locks_are_listed
        the_last_outcomes_are_kept
        the_next_renewal_reports_a_revocation
        only_the_given_hold_is_revoked
        a_hold_is_removed_unless_it_lives_in_a_descriptor
        a_hold_that_was_not_inspected_is_not_removed
        a_dropped_inspection_leaves_the_store_usable
    }
    fencing {
        fencing_tokens_grow_over_a_restart
        fencing_tokens_grow_over_a_wiped_store
        fencing_tokens_grow_over_a_deleted_lock
    }
    holder {
        busy_names_the_holder
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
        a_dead_waiter_is_skipped_without_delay
        a_silent_waiter_loses_its_turn_and_its_queue_position
        a_withdrawn_waiter_leaves_no_trace_and_passes_its_turn_on
    }
    queue_positions {
        a_repeated_request_keeps_the_queue_position
        a_queue_position_outlasts_its_connection
        a_queue_position_ends_with_its_lease
    }
    sharing {
        readers_share
        all_readers_are_counted
        each_reader_has_its_own_fencing_token
        a_writer_and_readers_exclude_each_other
        a_waiting_writer_blocks_later_readers
        a_writer_is_not_starved
        all_readers_at_the_head_are_called_together
        every_reader_at_the_head_is_notified
        a_short_lease_does_not_end_other_readers
        a_dead_reader_is_released
    }
    slots {
        slots_limit_the_number_of_holders
        a_hold_keeps_its_slot
        a_freed_slot_goes_to_the_next_waiter
        two_freed_slots_go_to_the_next_two_waiters
        exclusive_waits_for_every_slot
        a_different_slot_count_than_that_of_a_waiter_is_refused
        the_slot_count_may_change_when_the_lock_is_unused
        the_slot_of_a_dead_holder_is_freed
    }
    nesting {
        the_last_inner_hold_decides
        entering_is_idempotent
        a_nested_entry_overtakes_waiters
        entering_a_hold_that_is_gone_is_refused
    }
    min_hold {
        a_grant_and_a_renewal_cover_at_least_the_rest_of_min_hold
        a_release_within_min_hold_leaves_the_lock_without_a_holder
        a_slot_is_kept_for_min_hold
    }
    revocation {
        a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
        a_revocation_does_not_apply_to_another_hold
        only_one_of_several_holders_is_notified
        all_nested_holds_are_notified
        min_hold_does_not_apply_to_a_revoked_hold
        a_lock_without_a_running_holder_ends_at_once
        a_hold_is_removed_only_where_the_store_keeps_it
        an_ended_hold_cannot_be_removed
    }
}

#[test]
fn a_conflict_is_decided_anew() {
    let rig = MemoryRig::new();
    let shared = rig.0.clone();
    super::rig::prove(rig, async |rig: &mut dyn Rig| {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let mut client = Client::new(rig, "x");
                tokio::task::spawn_local(async move { client.wait_in_line().await })
            })
            .collect();
        let mut positions = Vec::new();
        for task in tasks {
            positions.push(match task.await.unwrap() {
                Attempt::Granted(_) => 0,
                Attempt::Busy(busy) => busy.position.unwrap(),
                refused => panic!("{refused:?}"),
            });
        }
        positions.sort_unstable();
        assert_eq!(positions, (0..8).collect::<Vec<_>>(), "one holder, and each waiter has a position");
    });
    assert_ne!(*shared.conflicts.borrow(), 0);
}

#[test]
fn a_ledger_in_an_unknown_format_is_refused_and_not_overwritten() {
    for text in [&br#"{"format":2,"fencing_token":7}"#[..], b"not ours"] {
        let rig = MemoryRig::new();
        let shared = rig.0.clone();
        shared.documents.borrow_mut().insert("x".into(), (1, text.to_vec()));
        super::rig::prove(rig, async |rig: &mut dyn Rig| {
            let mut client = Client::new(rig, "x");
            let (name, record) = (LockName::new("x").unwrap(), Record::default());
            for intent in [Intent::TakeNow, Intent::Enqueue] {
                let refused = client.backend.try_acquire(&client.claim, intent).await;
                assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
            }
            let refused = client.backend.renew(&client.claim, Duration::ZERO).await;
            assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
            let refused = client.backend.release(&client.claim, Duration::ZERO, Some(&record)).await;
            assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
            let refused = client.backend.record(&name, &record).await;
            assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
            let seen = rig.open().inspect(std::slice::from_ref(&name), None).await.unwrap();
            assert!(matches!(seen.locks[0].unknown, Some(Unknown::Unreadable(_))), "{seen:?}");
        });
        assert_eq!(shared.documents.borrow()["x"], (1, text.to_vec()));
    }
}
