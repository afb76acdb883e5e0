//! The network between three members, a host for clients, and the test, and what can happen to it.

use crate::support::daemon::Host;
use crate::support::namespace::Namespace;
use std::net::Ipv4Addr;

const MEMBERS: usize = 3;

/// Where a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It reaches all members, also the one that is cut off from the others.
    Both,
    /// It reaches only the others.
    Majority,
    /// It reaches only the one that is cut off.
    Minority,
}

/// Hosts around a router: the members, one for the clients of the majority, and one for those of the minority. The test
/// and the other clients are at the router.
///
/// Each host is a namespace. With three addresses of one loopback device, each server would connect from 127.0.0.1, and
/// no rule could know which server a packet comes from.
pub struct Network {
    router: Namespace,
    hosts: Vec<Namespace>,
}

impl Network {
    /// Creates it, with every host connected to every other one.
    pub fn new() -> Self {
        let hosts = (0..MEMBERS + 2).map(|_| Namespace::new()).collect();
        let network = Self { router: Namespace::new(), hosts };
        // That of the partition is the first: what it drops is not refused.
        let chains = [("split", "forward", 0), ("admission", "forward", 1), ("own_admission", "output", 1)];
        let chains = chains.map(|(name, hook, priority)| {
            format!("add chain ip f {name} {{ type filter hook {hook} priority {priority}; }}; ")
        });
        network.router.sh("echo 1 > /proc/sys/net/ipv4/ip_forward");
        network.filter(&format!("add table ip f; {}", chains.concat()));
        for (number, host) in network.hosts.iter().enumerate() {
            network.router.sh(&format!(
                "ip link add h{number} type veth peer name eth0 netns {} && \
                 ip addr add 10.77.{number}.1/24 dev h{number} && ip link set h{number} up",
                host.path()
            ));
            host.sh(&format!(
                "ip addr add 10.77.{number}.2/24 dev eth0 && ip link set eth0 up && \
                 ip route add 10.77.0.0/16 via 10.77.{number}.1"
            ));
        }
        network
    }

    /// The hosts of the members.
    pub fn members(&self) -> Vec<Host> {
        let host = |number: usize| Host {
            ip: Ipv4Addr::new(10, 77, u8::try_from(number).expect("few hosts"), 2),
            prefix: self.prefix(number),
        };
        (0..MEMBERS).map(host).collect()
    }

    fn prefix(&self, host: usize) -> Vec<String> {
        self.hosts[host].prefix().to_vec()
    }

    /// The command prefix that starts a client.
    pub fn client(&self, side: Side) -> Vec<String> {
        match side {
            Side::Both => Vec::new(),
            Side::Majority => self.prefix(MEMBERS),
            Side::Minority => self.prefix(MEMBERS + 1),
        }
    }

    /// Calls a function at the router.
    pub fn enter<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        self.router.enter(act)
    }

    /// All clients reach this member only; the others refuse their connections.
    pub fn admit_only(&self, member: usize) {
        let others = set(&self.others(member));
        let refused = format!("oifname {others} tcp flags & (syn | ack) == syn reject with tcp reset");
        let clients = set(&[MEMBERS, MEMBERS + 1]);
        self.filter(&format!(
            "add rule ip f own_admission {refused}; add rule ip f admission iifname {clients} {refused}"
        ));
    }

    /// The clients reach all members again, unless the network is split.
    pub fn admit_all(&self) {
        self.filter("flush chain ip f own_admission; flush chain ip f admission");
    }

    /// Drops the packets between this member and the minority's clients on one side, and the other members and the
    /// majority's clients on the other side. No connection is reset.
    pub fn split(&self, member: usize) {
        let minority = set(&[member, MEMBERS + 1]);
        self.filter(&format!(
            "add rule ip f split iifname {minority} oifname != {minority} drop; \
             add rule ip f split iifname != {minority} oifname {minority} drop"
        ));
    }

    /// Lets all packets pass; TCP retransmits those that were dropped.
    pub fn heal(&self) {
        self.filter("flush table ip f");
    }

    /// The members other than this one.
    pub fn others(&self, member: usize) -> Vec<usize> {
        (0..MEMBERS).filter(|other| *other != member).collect()
    }

    fn filter(&self, rules: &str) {
        self.router.sh(&format!("nft '{rules}'"));
    }
}

/// The cables of some hosts.
fn set(hosts: &[usize]) -> String {
    let cables: Vec<String> = hosts.iter().map(|host| format!("h{host}")).collect();
    format!("{{ {} }}", cables.join(", "))
}
