//! One bucket, of two servers. No other program has a lock there: an object that dlock has not written is refused, see
//! `stores::s3::errors`.

use super::rig::Rig;
use crate::support::place::Place;
use crate::support::pool::{Group, Lent};
use crate::support::s3::{Bucket, MotoS3, S3, key};
use dlock::backend::ledger::Ledger;
use std::time::Duration;

struct S3Rig<G: Group> {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    s3: Lent<G>,
}

impl S3Rig<S3> {
    fn new() -> Self {
        Self { place: Place::new(), s3: S3::lent() }
    }
}

impl S3Rig<MotoS3> {
    fn of_moto() -> Self {
        Self { place: Place::new(), s3: MotoS3::lent() }
    }
}

impl<G: Group + Bucket> Rig for S3Rig<G> {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.s3.url()
    }

    fn exact_url(&self) -> String {
        self.url()
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("s3://somebody:{secret}@127.0.0.1/p?endpoint=http://127.0.0.1:1"))
    }

    super::polled::dated_leases!(10);
    super::polled::polled_turns!();

    fn delete(&mut self, name: &str) {
        self.s3.delete(&key(name));
    }

    fn replace(&mut self, name: &str) {
        let held = Ledger::of_foreign_holder(0).to_json();
        self.s3.put(&key(name), &String::from_utf8(held).unwrap());
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.s3.ledger(name).holders == Ledger::of_foreign_holder(0).holders
    }

    fn foreign_lock(&mut self, name: &str, _: Option<Duration>) -> bool {
        self.s3.ledger(name).holders.is_empty()
    }

    fn foreign_unlock(&mut self, name: &str) {
        // `foreign_lock` changes nothing.
        if self.is_untouched(name) {
            self.delete(name);
        }
    }

    fn waiters(&self, name: &str) -> usize {
        self.s3.ledger(name).waiters.len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let ledger = self.s3.ledger(name);
        let holders = ledger.holders.iter().map(|one| format!("{one:?}"));
        holders.chain(ledger.waiters.iter().map(|one| format!("{one:?}"))).collect()
    }

    fn restart(&mut self) {
        self.s3.restart();
    }

    fn wipe(&mut self) {
        self.s3.wipe();
    }
}

super::polled! { S3Rig::<S3>::new }
super::checks! { S3Rig::<S3>::new; supersede { an_older_waiter_is_notified_of_a_newer_one } }

/// A server that others have written: its conditional writes are those that dlock takes S3's to be.
mod moto {
    use super::{MotoS3, S3Rig};

    crate::stores::conformance::topics! { S3Rig::<MotoS3>::of_moto;
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
