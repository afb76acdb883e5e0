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

super::list::every_check!(SentinelRig::new; Request Failover);

/// The master is replaced during a check: after the given number of actions of its clients on the store.
mod failover {
    use super::{Disturbance, FamilyRig, Rc, Watched};

    fn rig(moment: usize) -> FamilyRig<Watched> {
        let mut servers = Watched::new();
        let group = servers.group.clone();
        servers.disturbance = Some(Rc::new(Disturbance::at(moment, move || group.fail_over())));
        FamilyRig::on(servers)
    }

    crate::stores::conformance::disturbed_by_a_failover!(rig);

    // Not where the position ends with a session.
    crate::stores::conformance::disturbed! { rig;
        queue_positions {
            a_queue_position_outlasts_its_connection after 3
        }
    }
}
