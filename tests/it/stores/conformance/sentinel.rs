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

    /// A client without pushes may be moving away from the former master.
    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        self.disturbance.clone()
    }

    /// The master dies, and one of its replicas is promoted. Data that was not replicated is lost.
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

/// The master is replaced during a check: after the given number of actions of its clients on the store.
mod failover {
    use super::{Disturbance, FamilyRig, Rc, Watched};

    fn rig(moment: usize) -> FamilyRig<Watched> {
        let mut servers = Watched::new();
        let group = servers.group.clone();
        servers.disturbance = Some(Rc::new(Disturbance::at(moment, move || group.fail_over())));
        FamilyRig::on(servers)
    }

    crate::stores::conformance::disturbed! { rig;
        exclusion {
            a_held_lock_excludes_others after 2
            release_frees_the_lock after 6
        }
        ownership {
            a_stale_owner_cannot_release after 3
            another_token_cannot_renew after 2
            a_replaced_lock_is_lost_and_not_touched after 1
            a_repeated_request_is_recognised after 1
            renewal_keeps_the_lock after 2
        }
        fencing {
            fencing_tokens_grow_with_every_grant after 50
        }
        queue {
            waiters_are_served_first_come_first_served after 17
            later_clients_do_not_overtake_waiters after 5
            a_release_by_a_foreign_client_is_noticed after 2
        }
        queue_positions {
            a_repeated_request_keeps_the_queue_position after 5
            a_queue_position_outlasts_its_connection after 3
        }
        sharing {
            readers_share after 4
            a_waiting_writer_blocks_later_readers after 4
            every_reader_at_the_head_is_notified after 4
        }
        slots {
            slots_limit_the_number_of_holders after 4
            a_hold_keeps_its_slot after 4
        }
        revocation {
            a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases after 3
            all_nested_holds_are_notified after 2
        }
    }
}
