//! The members of an etcd cluster.

use super::Members;
use crate::support::SOON;
use crate::support::daemon::Host;
use crate::support::etcd::{Etcd, Plan};
use crate::support::wait::until;

impl Members for Etcd {
    fn start(hosts: Vec<Host>) -> Self {
        Self::start_with(Plan { ensemble: true, hosts, ..Plan::current() })
    }

    fn url(&self) -> String {
        Self::url(self)
    }

    fn leader(&self) -> usize {
        Self::leader(self)
    }

    fn serves(&self, member: usize) -> bool {
        self.client_of(member).try_range("k", "").is_ok()
    }

    /// The rest of its lease grows again.
    fn await_renewal(&self, lock: &str, members: &[usize]) {
        let client = self.client_of(members[0]);
        let lease = client.keys(&format!("/dlock/{lock}/"))[0].lease;
        let mut least = client.time_to_live(lease);
        until(SOON, "a renewal", || {
            let rest = client.time_to_live(lease);
            least = least.min(rest);
            rest > least
        });
    }

    fn entries(&self, member: usize) -> Vec<String> {
        let client = self.client_of(member);
        let keys = client.keys("/dlock/").into_iter().map(|key| key.name);
        keys.chain(client.leases().unwrap().iter().map(|lease| format!("lease {lease:x}"))).collect()
    }
}

#[test]
fn runs_survive_or_lose_in_time_what_a_partitioned_leader_serves() {
    super::prove::<Etcd>();
}
