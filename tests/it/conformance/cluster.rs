//! A Redis Cluster of three masters.

use super::servers::{FamilyRig, Servers};
use crate::support::cluster::Cluster;
use crate::support::pool::Lent;
use crate::support::resp::Value;

struct Nodes {
    cluster: Lent<Cluster>,
}

impl Servers for Nodes {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn url_with_secret(&self, secret: &str) -> String {
        format!("redis-cluster://somebody:{secret}@127.0.0.1:1,127.0.0.1:2?prefix=p")
    }

    fn at(&self, key: &str, words: &[&str]) -> Vec<Value> {
        vec![self.cluster.command_at(key, words)]
    }

    fn keys(&self) -> Vec<Vec<String>> {
        vec![self.cluster.keys()]
    }

    /// A node counts its own listeners only, and one whose slot has moved may listen elsewhere.
    fn knows_the_dead(&self) -> bool {
        false
    }

    /// Every node dies, and comes back without its keys.
    fn restart(&mut self) {
        for node in 0..self.cluster.count() {
            self.cluster.node_mut(node).restart();
        }
        self.cluster.await_agreement();
    }

    fn wipe(&mut self) {
        self.cluster.wipe();
    }
}

type ClusterRig = FamilyRig<Nodes>;

impl ClusterRig {
    fn new() -> Self {
        Self::on(Nodes { cluster: Cluster::lent() })
    }
}

super::every_check!(ClusterRig::new);
