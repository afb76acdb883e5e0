//! One etcd, and a cluster of three members.

use super::client::Client;
use super::disturbance::Disturbance;
use super::rig::{Rig, with};
use crate::support::etcd::gateway::Gateway;
use crate::support::etcd::{Ensemble, Etcd, Plan};
use crate::support::place::Place;
use crate::support::pool::Lent;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The lease of a foreign lock that ends only by its release, in seconds.
const FOR_LONG: u64 = 3600;

enum Servers {
    One(Lent<Etcd>),
    Three(Lent<Ensemble>),
}

impl Servers {
    fn etcd(&mut self) -> &mut Etcd {
        match self {
            Servers::One(etcd) => etcd,
            Servers::Three(ensemble) => &mut ensemble.0,
        }
    }
}

struct EtcdRig {
    // The runs started here end before the servers are lent to the next test.
    place: Place,
    url: String,
    servers: Arc<Mutex<Servers>>,
    disturbance: Option<Rc<Disturbance>>,
    /// The leases of foreign locks.
    foreign: HashMap<String, i64>,
}

fn locked(servers: &Mutex<Servers>) -> MutexGuard<'_, Servers> {
    servers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn prefix(name: &str) -> String {
    format!("/dlock/{name}")
}

impl EtcdRig {
    fn new() -> Self {
        Self::on(Servers::One(Etcd::lent()))
    }

    fn of_today() -> Self {
        Self::on(Servers::One(Etcd::lent_with(Plan::current())))
    }

    fn of_three() -> Self {
        Self::on(Servers::Three(Ensemble::lent_with(Plan::current())))
    }

    fn on(mut servers: Servers) -> Self {
        let url = servers.etcd().url();
        let servers = Arc::new(Mutex::new(servers));
        Self { place: Place::new(), url, servers, disturbance: None, foreign: HashMap::new() }
    }

    /// One of three members, with this happening to it after the given number of actions of clients.
    fn disturbed(moment: usize, act: fn(&mut Etcd)) -> Self {
        let rig = Self::of_three();
        let servers = rig.servers.clone();
        let act = move || act(locked(&servers).etcd());
        Self { disturbance: Some(Rc::new(Disturbance::at(moment, act))), ..rig }
    }

    fn client(&self) -> Gateway {
        locked(&self.servers).etcd().client()
    }

    fn disturb(&self) {
        if let Some(disturbance) = &self.disturbance {
            disturbance.step_now();
        }
    }

    /// The keys of all contenders.
    fn contenders(&self, name: &str) -> Vec<crate::support::etcd::gateway::Key> {
        self.disturb();
        self.client().keys(&format!("{}/", prefix(name)))
    }
}

impl Rig for EtcdRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn exact_url(&self) -> String {
        with(&self.url, "prefix=")
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("etcd://somebody:{secret}@127.0.0.1:1,127.0.0.1:2?prefix=p"))
    }

    fn has_leases(&self) -> bool {
        true
    }

    /// Leases have whole seconds, and twice a second a server looks for those that have ended.
    fn end_of_lease(&self, ttl: Duration) -> Duration {
        Duration::from_secs(ttl.as_secs() + 1) + Duration::from_millis(1200)
    }

    /// A lease ends by itself, also that of a client whose connection is closed.
    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn has_turns_by_order(&self) -> bool {
        true
    }

    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        self.disturbance.clone()
    }

    fn delete(&mut self, name: &str) {
        let client = self.client();
        let keys = client.keys(&format!("{}/", prefix(name)));
        assert!(!keys.is_empty(), "{name} was not held");
        keys.iter().for_each(|key| assert!(client.delete(&key.name)));
    }

    /// At no moment is the lock free.
    fn replace(&mut self, name: &str) {
        let client = self.client();
        let replaced = client.keys(&format!("{}/", prefix(name)));
        let (lease, _) = client.join(&prefix(name), FOR_LONG);
        self.foreign.insert(name.to_owned(), lease);
        replaced.iter().for_each(|key| assert!(client.delete(&key.name)));
    }

    fn is_untouched(&self, name: &str) -> bool {
        let keys = self.client().keys(&format!("{}/", prefix(name)));
        keys.first().is_some_and(|key| {
            key.lease == self.foreign[name] && key.value.is_empty() && key.create_revision == key.mod_revision
        })
    }

    /// Like `etcdctl lock`.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        let ttl = lease.map_or(FOR_LONG, |lease| lease.as_millis().div_ceil(1000).try_into().unwrap());
        let lease = self.client().lock(&prefix(name), ttl);
        lease.map(|lease| self.foreign.insert(name.to_owned(), lease)).is_some()
    }

    fn foreign_unlock(&mut self, name: &str) {
        let lease = self.foreign.remove(name).unwrap();
        self.client().revoke(lease);
    }

    fn waiters(&self, name: &str) -> usize {
        let is_waiter = |text: &str| {
            let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
            value["line"].as_array().is_some_and(|line| !line.is_empty())
        };
        self.contenders(name).iter().filter(|key| is_waiter(&key.value)).count()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        self.contenders(name).into_iter().map(|key| key.name).collect()
    }

    fn restart(&mut self) {
        locked(&self.servers).etcd().restart_all();
    }

    fn wipe(&mut self) {
        assert!(locked(&self.servers).etcd().wipe());
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        self.client().keys("dlock#").into_iter().map(|key| key.name).collect()
    }
}

super::list::every_check!(EtcdRig::new);

/// A hand-off costs the server the same, however many clients wait. The figure includes what the former holder sends.
#[test]
fn waiters_that_are_not_next_cost_nothing() {
    let mut costs = Vec::new();
    for waiters in [1, 200] {
        let rig = EtcdRig::new();
        let client = rig.client();
        super::rig::prove(rig, async |rig: &mut dyn Rig| {
            costs.push(
                super::crowds::ten_hand_offs(|| Client::new(rig, "x"), waiters, || client.messages()).await,
            );
        });
    }
    // Heartbeats are counted as well. If all waiters were notified of each hand-off, it would be thousands.
    assert!(costs[0] <= 10 * 8 && costs[1] <= costs[0] + 50, "messages for 10 hand-offs: {costs:?}");
}

#[test]
fn killed_together_they_cost_the_longest_lease() {
    let check = super::crowds::killed_together_they_cost_the_longest_lease::<200>;
    super::rig::prove(EtcdRig::new(), check);
}

mod of_version_3_5 {
    use super::EtcdRig;

    crate::stores::conformance::list::every_check!(EtcdRig::of_today; Request);
}

mod of_three_members {
    use super::EtcdRig;

    crate::stores::conformance::list::every_check!(EtcdRig::of_three; Failover);
}

/// The leader dies during a check, and comes back.
mod dead_leader {
    use super::EtcdRig;

    fn rig(moment: usize) -> EtcdRig {
        EtcdRig::disturbed(moment, |etcd| {
            let leader = etcd.leader();
            etcd.kill(leader);
            etcd.leader();
            etcd.restart(leader);
        })
    }

    crate::stores::conformance::disturbed_by_a_failover!(rig);

    // Not where the position ends with a session.
    crate::stores::conformance::disturbed! { rig;
        queue_positions {
            a_queue_position_outlasts_its_connection after 3
        }
    }
}

/// The leader hangs during a check, for longer than it takes to elect another.
mod hung_leader {
    use super::EtcdRig;
    use std::time::Duration;

    fn rig(moment: usize) -> EtcdRig {
        EtcdRig::disturbed(moment, |etcd| {
            let leader = etcd.leader();
            etcd.daemon(leader).stop();
            std::thread::sleep(Duration::from_millis(1500));
            etcd.daemon(leader).resume();
            etcd.leader();
        })
    }

    crate::stores::conformance::disturbed_by_a_failover!(rig);

    // Not where the position ends with a session.
    crate::stores::conformance::disturbed! { rig;
        queue_positions {
            a_queue_position_outlasts_its_connection after 3
        }
    }
}
