//! Tests of the servers of etcd and ZooKeeper.

use crate::support::SOON;
use crate::support::etcd::{self, Etcd};
use crate::support::pool::Group;
use crate::support::wait::until;
use crate::support::zookeeper::session::{Kind, NODE_EXISTS, NOT_EMPTY, Session, is};
use crate::support::zookeeper::{self, ZooKeeper};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn etcd_keeps_its_keys_over_a_kill_and_ends_leases() {
    let mut etcd = Etcd::lent();
    let client = etcd.client();
    let revision = client.put("a/1", "one \u{e1}", 0);
    let lease = client.grant(5);
    client.put("a/2", "", lease);
    client.put("b", "", 0);
    let listed = || {
        let keys = client.keys("a/").into_iter();
        keys.map(|key| (key.name, key.value, key.lease)).collect::<Vec<_>>()
    };
    let one = ("a/1".to_owned(), "one \u{e1}".to_owned(), 0);
    assert_eq!(listed(), [one.clone(), ("a/2".to_owned(), String::new(), lease)]);
    assert_eq!(client.keys("a/")[0].create_revision, revision);
    until(SOON, "the end of a lease", || listed() == [one.clone()]);
    etcd.kill(0);
    assert!(client.try_range("a", "").is_err());
    etcd.restart_all();
    assert_eq!(listed(), [one]);
    client.compact();
    assert!(etcd.renew());
    assert_eq!((client.keys(""), client.leases().unwrap()), (vec![], vec![]));
    assert!(client.revision() > revision);
}

#[test]
fn etcd_is_locked_as_by_its_own_client() {
    let etcd = Etcd::lent();
    let client = etcd.client();
    let lease = client.lock("x", 60).expect("a free lock");
    assert_eq!(client.lock("x", 60), None);
    let mut waiter = Command::new("etcdctl")
        .args(["lock", "x", "--", "true"])
        .env("ETCDCTL_API", "3")
        .env("ETCDCTL_ENDPOINTS", etcd.hosts())
        .spawn()
        .expect("etcdctl of the Debian package etcd-client");
    until(SOON, "a waiter", || client.keys("x/").len() == 2);
    assert_eq!(client.keys("x/")[0].name, format!("x/{lease:x}"));
    assert!(waiter.try_wait().unwrap().is_none());
    assert!(client.revoke(lease) && !client.revoke(lease));
    assert!(waiter.wait().unwrap().success());
}

#[test]
fn an_etcd_cluster_survives_a_dead_and_a_stopped_leader() {
    let mut group = etcd::Ensemble::lent();
    let first = group.0.leader();
    group.0.client().put("k", "v", 0);
    group.0.kill(first);
    let second = group.0.leader();
    assert_eq!(group.0.client_of(second).keys("k")[0].value, "v");
    assert!(!group.renew(), "one of them is dead");
    group.0.restart(first);
    group.0.daemon(second).stop();
    let mut others = (0..3).filter(|member| *member != second).cycle();
    until(SOON, "another leader", || {
        let other = others.next().expect("there are two");
        group.0.client_of(other).is_leader().unwrap_or(false)
    });
    group.0.daemon(second).resume();
    // A member that was stopped answers nothing until it has followed the others.
    until(SOON, "the group as it was", || group.renew());
}

#[test]
fn zookeeper_keeps_its_nodes_over_a_kill_and_ends_sessions() {
    let mut zookeeper = ZooKeeper::lent();
    let mut session = zookeeper.session();
    session.create_all("/a/b");
    let exists = session.create("/a/b", "", Kind::Persistent).unwrap_err();
    assert!(is(&exists, NODE_EXISTS), "{exists}");
    session.set("/a/b", "\u{e1}").unwrap();
    let (data, stat) = session.get("/a/b").unwrap();
    assert_eq!((data.as_str(), stat.version, stat.owner), ("\u{e1}", 1, 0));
    assert!(stat.mzxid > stat.czxid);

    const SHORT: Duration = Duration::from_secs(4);
    let mut short = Session::open(zookeeper.address(0), SHORT).unwrap();
    let opened = Instant::now();
    assert_eq!(short.timeout, SHORT);
    let node = short.create("/a/b/n-", "", Kind::EphemeralSequential).unwrap();
    assert_eq!(session.children("/a/b").unwrap(), ["n-0000000000"]);
    assert_eq!(session.get(&node).unwrap().1.owner, short.id);
    let not_empty = session.delete("/a/b").unwrap_err();
    assert!(is(&not_empty, NOT_EMPTY), "{not_empty}");
    until(SOON, "the end of a session", || session.get(&node).is_none());
    assert!(opened.elapsed() >= SHORT);

    let mut owner = zookeeper.session();
    let node = owner.create("/a/b/n-", "", Kind::EphemeralSequential).unwrap();
    assert!(zookeeper.sessions(0).contains(&owner.id));
    Session::expire(zookeeper.address(0), owner.id).unwrap();
    assert_eq!(session.get(&node), None);
    assert!(zookeeper.figure(0, "znode_count") > 0);

    zookeeper.restart_all();
    let mut session = zookeeper.session();
    assert_eq!(session.get("/a/b").unwrap().0, "\u{e1}");
    session.close().unwrap();
    assert!(zookeeper.renew());
    assert_eq!(zookeeper.session().children("/").unwrap(), ["zookeeper"]);
}

#[test]
fn a_zookeeper_ensemble_survives_a_dead_leader() {
    let mut group = zookeeper::Ensemble::lent();
    let first = group.0.leader();
    let mut session = group.0.session();
    session.create("/k", "v", Kind::Persistent).unwrap();
    session.close().unwrap();
    group.0.kill(first);
    assert_ne!(group.0.leader(), first);
    until(SOON, "a survivor", || {
        let survivor = Session::open(group.0.address((first + 1) % 3), Duration::from_secs(60));
        survivor.is_ok_and(|mut session| session.get("/k").is_some_and(|(data, _)| data == "v"))
    });
    assert!(!group.renew(), "one of them is dead");
    group.0.restart(first);
    until(SOON, "the group as it was", || group.renew());
}
