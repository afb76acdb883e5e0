//! Redis behind three sentinels.

use super::disturbance::Disturbance;
use super::servers::{FamilyRig, Servers};
use crate::support::pool::Lent;
use crate::support::resp::Value;
use crate::support::sentinels::Sentinels;
use std::rc::Rc;
use std::sync::Arc;

struct Watched {
    group: Arc<Lent<Sentinels>>,
    disturbance: Option<Rc<Disturbance>>,
}

impl Watched {
    fn new() -> Self {
        Self { group: Arc::new(Sentinels::lent()), disturbance: None }
    }
}

impl Servers for Watched {
    fn url(&self) -> String {
        self.group.url()
    }

    fn url_with_secret(&self, secret: &str) -> String {
        format!("redis-sentinel://somebody:{secret}@127.0.0.1:1,127.0.0.1:2/locks/2?prefix=p")
    }

    fn at(&self, _: &str, words: &[&str]) -> Vec<Value> {
        vec![self.group.command(words)]
    }

    fn keys(&self) -> Vec<Vec<String>> {
        vec![self.group.command(&["KEYS", "*"]).texts()]
    }

    /// Who hears nothing may be on the way from the master that was.
    fn knows_the_dead(&self) -> bool {
        false
    }

    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        self.disturbance.clone()
    }

    /// The master dies, and one of its replicas takes its place. What it has not been told is forgotten.
    fn restart(&mut self) {
        let group = Arc::get_mut(&mut self.group).expect("nobody else disturbs it");
        let dead = group.crash();
        group.restart_as_replica(dead);
    }

    fn wipe(&mut self) {
        self.group.command(&["FLUSHALL"]);
    }
}

type SentinelRig = FamilyRig<Watched>;

impl SentinelRig {
    fn new() -> Self {
        Self::on(Watched::new())
    }
}

super::every_check!(SentinelRig::new);

/// The master is replaced in the midst of a check: after so many things that its clients have done to the store.
mod failing_over {
    use super::{Disturbance, FamilyRig, Rc, Watched};

    fn rig(moment: usize) -> FamilyRig<Watched> {
        let mut servers = Watched::new();
        let group = servers.group.clone();
        servers.disturbance = Some(Rc::new(Disturbance::at(moment, move || group.fail_over())));
        FamilyRig::on(servers)
    }

    crate::conformance::disturbed! { rig;
        exclusion {
            a_held_lock_excludes_others after 2
            release_frees_the_lock after 6
        }
        ownership {
            a_stale_owner_cannot_release after 3
            another_token_cannot_renew after 2
            a_replaced_lock_is_taken_and_is_not_touched after 1
            a_repeated_request_is_recognised_as_ours after 1
            renewal_keeps_the_lock after 2
        }
        fencing {
            fencing_tokens_grow_with_every_grant after 50
        }
        line {
            grants_come_in_the_order_of_the_line after 17
            nobody_passes_those_who_come_first after 5
            what_a_foreign_client_gives_back_is_noticed after 2
        }
        places {
            asking_again_keeps_the_place after 5
            a_place_outlasts_its_connection after 3
        }
        sharing {
            readers_share after 4
            a_waiting_writer_stops_later_readers after 4
            every_reader_at_the_head_is_told after 4
        }
        slots {
            there_are_as_many_holders_as_slots after 4
            a_slot_stays_the_same after 4
        }
        revoking {
            who_is_to_give_up_hears_of_it_and_keeps_the_lock_until_then after 3
            all_who_are_inside_are_told after 2
        }
    }
}
