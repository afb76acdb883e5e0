//! Locks in a server that loses nothing when it is killed, or in an ensemble that survives the loss of one: they are
//! stopped, killed, restarted and disconnected, one at a time.

use super::fault_plan::Rng;
use super::network;
use super::store_faults::FaultyStore;
use crate::support::daemon::Daemon;
use crate::support::proxy::Proxy;

/// The servers of one store.
pub trait Members {
    fn count(&self) -> usize;

    fn daemon(&self, member: usize) -> &Daemon;

    fn kill(&mut self, member: usize);

    fn restart(&mut self, member: usize);

    /// The entries of holders and waiters.
    fn entries(&self) -> Vec<String>;
}

impl Members for crate::support::etcd::Etcd {
    fn count(&self) -> usize {
        Self::count(self)
    }

    fn daemon(&self, member: usize) -> &Daemon {
        Self::daemon(self, member)
    }

    fn kill(&mut self, member: usize) {
        Self::kill(self, member);
    }

    fn restart(&mut self, member: usize) {
        Self::restart(self, member);
    }

    fn entries(&self) -> Vec<String> {
        self.client().keys("/dlock/").into_iter().map(|key| format!("{key:?}")).collect()
    }
}

impl Members for crate::support::zookeeper::ZooKeeper {
    fn count(&self) -> usize {
        Self::count(self)
    }

    fn daemon(&self, member: usize) -> &Daemon {
        Self::daemon(self, member)
    }

    fn kill(&mut self, member: usize) {
        Self::kill(self, member);
    }

    fn restart(&mut self, member: usize) {
        Self::restart(self, member);
    }

    fn entries(&self) -> Vec<String> {
        let mut session = self.session();
        let entries = super::NAMES.iter().flat_map(|name| {
            let directory = format!("/dlock/{name}");
            let children = session.children(&directory).unwrap_or_default();
            children.into_iter().map(move |child| format!("{directory}/{child}"))
        });
        let entries = entries.collect();
        session.close().unwrap();
        entries
    }
}

/// Defines a database, which is a single server. Rows are never deleted; one without living entries, which are what the
/// statement selects, is no trace.
macro_rules! database {
    ($server:path, $living:literal) => {
        impl Members for $server {
            fn count(&self) -> usize {
                1
            }

            fn daemon(&self, _: usize) -> &Daemon {
                Self::daemon(self)
            }

            fn kill(&mut self, _: usize) {
                Self::kill(self);
            }

            fn restart(&mut self, _: usize) {
                Self::restart(self);
            }

            fn entries(&self) -> Vec<String> {
                self.sql($living).lines().map(str::to_owned).collect()
            }
        }
    };
}

database!(
    crate::support::postgres::Postgres,
    "SELECT entries FROM public.dlock_locks WHERE ends_at > extract(epoch FROM clock_timestamp()) * 1000000"
);
database!(
    crate::support::mariadb::MariaDb,
    "SELECT entries FROM dlock_locks WHERE ends_at > unix_timestamp(now(6)) * 1000000"
);

/// The members and their current faults.
pub struct FaultyMembers<M> {
    pub members: M,
    /// In front of a single one.
    pub proxy: Option<Proxy>,
}

impl<M: Members> FaultyStore for FaultyMembers<M> {
    fn disturb(&mut self, draw: &mut Rng) -> String {
        let member = draw.between(0, self.members.count() - 1);
        let choice = draw.between(0, if self.proxy.is_some() { 6 } else { 1 });
        match (choice, &self.proxy) {
            (2, Some(proxy)) => {
                proxy.close();
                "connections cut".into()
            }
            (3..=6, Some(proxy)) => network::disturb(proxy, choice - 3),
            (0, _) => {
                self.members.daemon(member).stop();
                format!("member {member} stopped")
            }
            _ => {
                self.members.kill(member);
                format!("member {member} killed")
            }
        }
    }

    fn heal(&mut self) {
        if let Some(proxy) = &self.proxy {
            network::heal(proxy);
        }
        for member in 0..self.members.count() {
            if self.members.daemon(member).is_up() {
                self.members.daemon(member).resume();
            } else {
                self.members.restart(member);
            }
        }
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn traces(&self) -> Vec<String> {
        self.members.entries()
    }
}
