//! The servers of a ZooKeeper ensemble.

use super::Members;
use crate::support::SOON;
use crate::support::daemon::Host;
use crate::support::wait::until;
use crate::support::zookeeper::session::Session;
use crate::support::zookeeper::{Plan, ZooKeeper};
use std::time::Duration;

impl Members for ZooKeeper {
    fn start(hosts: Vec<Host>) -> Self {
        // A second without a packet between two servers, and half of one for a new connection: the default takes longer
        // than the shortest sessions.
        let lines = ["syncLimit=10", "cnxTimeout=500"].map(str::to_owned).to_vec();
        Self::start_with(&Plan { ensemble: true, hosts, lines, ..Plan::current() })
    }

    fn url(&self) -> String {
        Self::url(self)
    }

    fn leader(&self) -> usize {
        Self::leader(self)
    }

    fn serves(&self, member: usize) -> bool {
        let session =
            Session::open_within(self.address(member), Duration::from_secs(10), Duration::from_secs(1));
        session.is_ok_and(|session| session.close().is_ok())
    }

    /// Its session has moved.
    fn await_renewal(&self, lock: &str, members: &[usize]) {
        let mut client = self.session_on(members[0]);
        let directory = format!("/dlock/{lock}");
        let nodes = client.children(&directory).unwrap();
        let (_, stat) = client.get(&format!("{directory}/{}", nodes[0])).unwrap();
        client.close().unwrap();
        until(SOON, "a session elsewhere", || {
            members.iter().any(|member| self.sessions(*member).contains(&stat.owner))
        });
    }

    fn entries(&self, member: usize) -> Vec<String> {
        let mut session = self.session_on(member);
        let locks = session.children("/dlock").unwrap();
        let locks = locks.into_iter().filter(|lock| !lock.starts_with("dlock#"));
        let nodes = locks.flat_map(|lock| session.children(&format!("/dlock/{lock}")).unwrap());
        let nodes = nodes.collect();
        session.close().unwrap();
        nodes
    }
}

#[test]
fn runs_survive_or_lose_in_time_what_a_partitioned_leader_serves() {
    super::prove::<ZooKeeper>();
}
