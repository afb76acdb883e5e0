//! Locks in servers of the Redis family, which are stopped, killed, started again and cut off.
//!
//! They write each change to disk before they acknowledge it: a store that forgets would lose locks, and two commands
//! would rightly run at once.

use super::draw::Draw;
use super::weather::Stage;
use crate::support::cluster::Cluster;
use crate::support::masters::{Masters, SINCE};
use crate::support::proxy::{Proxy, Way};
use crate::support::redis::{Redis, is_memory};
use crate::support::sentinels::Sentinels;

/// Arguments of a server that forgets nothing.
pub const PERSISTENT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Servers that are one store.
pub trait Servers {
    /// How many.
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

/// No server is silent long enough for a fail-over, in which a write may be lost.
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

/// Them, and what is wrong with them.
pub struct Troupe<S: Servers> {
    pub servers: S,
    /// In front of a single server.
    pub proxy: Option<Proxy>,
}

impl<S: Servers> Troupe<S> {
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

impl<S: Servers> Stage for Troupe<S> {
    fn disturb(&mut self, draw: &mut Draw) -> String {
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
            (3, Some(proxy)) => {
                proxy.hold(Way::Down);
                "replies held".into()
            }
            (4, Some(proxy)) => {
                proxy.drop_all(Way::Down);
                "replies lost".into()
            }
            (5, Some(proxy)) => {
                proxy.hold_both();
                "nothing comes through".into()
            }
            (6, Some(proxy)) => {
                proxy.refuse();
                "connections refused".into()
            }
            _ => {
                self.cut();
                "connections cut".into()
            }
        }
    }

    fn heal(&mut self) {
        if let Some(proxy) = &self.proxy {
            proxy.heal();
            // What was lost on the way is not sent again; a connection on which that happened is of no use.
            proxy.close();
            proxy.forget_flights();
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
