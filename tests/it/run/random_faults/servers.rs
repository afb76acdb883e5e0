//! Locks in servers of the Redis family, which are stopped, killed, restarted and disconnected.
//!
//! They write each change to disk before they acknowledge it: a store that loses data would lose locks, and two
//! commands would legitimately run at the same time.

use super::fault_plan::Rng;
use super::network;
use super::store_faults::FaultyStore;
use crate::support::cluster::Cluster;
use crate::support::masters::{Masters, SINCE};
use crate::support::proxy::Proxy;
use crate::support::redis::{Redis, is_memory};
use crate::support::sentinels::Sentinels;

/// Arguments of a server that loses no data.
pub const PERSISTENT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// The servers of one store.
pub trait Servers {
    /// Number of servers.
    fn count(&self) -> usize;

    /// One of them.
    fn server(&self, number: usize) -> &Redis;

    /// One of them, to be killed or restarted.
    fn server_mut(&mut self, number: usize) -> &mut Redis;
}

impl Servers for Redis {
    fn count(&self) -> usize {
        1
    }

    fn server(&self, _: usize) -> &Redis {
        self
    }

    fn server_mut(&mut self, _: usize) -> &mut Redis {
        self
    }
}

impl Servers for Masters {
    fn count(&self) -> usize {
        Masters::count(self)
    }

    fn server(&self, number: usize) -> &Redis {
        self.node(number)
    }

    fn server_mut(&mut self, number: usize) -> &mut Redis {
        self.node_mut(number)
    }
}

impl Servers for Cluster {
    fn count(&self) -> usize {
        Cluster::count(self)
    }

    fn server(&self, number: usize) -> &Redis {
        self.node(number)
    }

    fn server_mut(&mut self, number: usize) -> &mut Redis {
        self.node_mut(number)
    }
}

/// No server is silent long enough for a failover, in which a write may be lost.
impl Servers for Sentinels {
    fn count(&self) -> usize {
        3
    }

    fn server(&self, number: usize) -> &Redis {
        Sentinels::server(self, number)
    }

    fn server_mut(&mut self, number: usize) -> &mut Redis {
        Sentinels::server_mut(self, number)
    }
}

/// The servers and their current faults.
pub struct FaultyServers<S: Servers> {
    pub servers: S,
    /// In front of a single server.
    pub proxy: Option<Proxy>,
}

impl<S: Servers> FaultyServers<S> {
    fn all(&self) -> impl Iterator<Item = &Redis> {
        (0..self.servers.count()).map(|number| self.servers.server(number))
    }

    /// Closes the connections of all clients.
    fn cut(&self) {
        for server in self.all() {
            let mut client = server.connect();
            for kind in ["normal", "pubsub"] {
                client.command(&["CLIENT", "KILL", "TYPE", kind]);
            }
        }
    }
}

impl<S: Servers> FaultyStore for FaultyServers<S> {
    fn disturb(&mut self, draw: &mut Rng) -> String {
        let number = draw.between(0, self.servers.count() - 1);
        let choice = draw.between(0, if self.proxy.is_some() { 6 } else { 2 });
        match (choice, &self.proxy) {
            (0, _) => {
                self.servers.server(number).stop();
                format!("server {number} stopped")
            }
            (1, _) => {
                self.servers.server_mut(number).kill();
                format!("server {number} killed")
            }
            (3..=6, Some(proxy)) => network::disturb(proxy, choice - 3),
            _ => {
                self.cut();
                "connections cut".into()
            }
        }
    }

    fn heal(&mut self) {
        if let Some(proxy) = &self.proxy {
            network::heal(proxy);
        }
        for number in 0..self.servers.count() {
            if self.servers.server(number).is_up() {
                self.servers.server(number).resume();
            } else {
                self.servers.server_mut(number).restart();
            }
        }
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn traces(&self) -> Vec<String> {
        let keys = self.all().flat_map(|server| server.command(&["KEYS", "*"]).texts());
        keys.filter(|key| !is_memory(key) && key != SINCE).collect()
    }
}
