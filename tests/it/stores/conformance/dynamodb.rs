//! One table, of two servers. No other program has a lock there: an item that dlock has not written is refused, see
//! `stores::dynamodb::errors`.

use super::rig::Rig;
use crate::support::dynamodb::{Dynamo, Moto, key};
use crate::support::place::Place;
use crate::support::pool::{Group, Lent};
use dlock::backend::ledger::Ledger;
use serde_json::json;
use std::ops::Deref;
use std::time::Duration;

struct DynamoRig<G: Group> {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    server: Lent<G>,
}

impl DynamoRig<Dynamo> {
    fn new() -> Self {
        Self { place: Place::new(), server: Dynamo::lent() }
    }
}

impl DynamoRig<Moto> {
    fn of_moto() -> Self {
        Self { place: Place::new(), server: Moto::lent() }
    }
}

/// A server that can be started again with its data.
trait Restart {
    fn start_again(&mut self);
}

impl Restart for Dynamo {
    fn start_again(&mut self) {
        self.restart();
    }
}

impl Restart for Moto {
    fn start_again(&mut self) {
        unreachable!("moto keeps nothing");
    }
}

impl Deref for DynamoRig<Dynamo> {
    type Target = Dynamo;

    fn deref(&self) -> &Dynamo {
        &self.server
    }
}

impl Deref for DynamoRig<Moto> {
    type Target = Dynamo;

    fn deref(&self) -> &Dynamo {
        &self.server
    }
}

impl<G: Group + Restart> Rig for DynamoRig<G>
where
    Self: Deref<Target = Dynamo>,
{
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        Dynamo::url(self)
    }

    fn exact_url(&self) -> String {
        Rig::url(self)
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("dynamodb://somebody:{secret}@127.0.0.1/p?endpoint=http://127.0.0.1:1"))
    }

    super::polled::dated_leases!(10);
    super::polled::polled_turns!();

    fn delete(&mut self, name: &str) {
        Dynamo::delete(self, &key(name));
    }

    fn replace(&mut self, name: &str) {
        let held = String::from_utf8(Ledger::of_foreign_holder(0).to_json()).unwrap();
        self.put(&key(name), json!({"version": {"S": "another"}, "ledger": {"S": held}}));
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.ledger(name).holders == Ledger::of_foreign_holder(0).holders
    }

    fn foreign_lock(&mut self, name: &str, _: Option<Duration>) -> bool {
        self.ledger(name).holders.is_empty()
    }

    fn foreign_unlock(&mut self, name: &str) {
        // `foreign_lock` changes nothing.
        if self.is_untouched(name) {
            Rig::delete(self, name);
        }
    }

    fn waiters(&self, name: &str) -> usize {
        self.ledger(name).waiters.len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let ledger = self.ledger(name);
        let holders = ledger.holders.iter().map(|one| format!("{one:?}"));
        holders.chain(ledger.waiters.iter().map(|one| format!("{one:?}"))).collect()
    }

    fn restart(&mut self) {
        self.server.start_again();
    }

    fn wipe(&mut self) {
        Dynamo::wipe(self);
    }
}

super::polled! { DynamoRig::<Dynamo>::new }
super::checks! { DynamoRig::<Dynamo>::new; supersede { an_older_waiter_is_notified_of_a_newer_one } }

/// A server that others have written: its conditional writes are those that dlock takes DynamoDB's to be. It checks a condition
/// before it writes, in two steps: what several clients write at the same time is not tried there.
mod moto {
    use super::{DynamoRig, Moto};

    crate::stores::conformance::topics! { DynamoRig::<Moto>::of_moto;
        exclusion {
            a_run_excludes_a_run
            release_frees_the_lock
        }
        admin {
            held_and_awaited_locks_are_listed
            the_last_outcomes_are_kept
        }
        fencing {
            fencing_tokens_grow_with_every_grant
            fencing_tokens_grow_over_a_deleted_lock
        }
        ownership {
            a_stale_owner_cannot_release
            a_deleted_lock_is_lost_and_not_created_again
            a_replaced_lock_is_lost_and_not_touched
            a_repeated_request_is_recognised
        }
        queue {
            waiters_are_served_first_come_first_served
        }
    }
}
