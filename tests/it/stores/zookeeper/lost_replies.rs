//! Replies that are lost after the request was carried out (ZK-1262).

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::wait::until;
use crate::support::zookeeper::ZooKeeper;
use nix::sys::signal::Signal;

/// A node is created with the value of a holder, in case that it is the first one. Other clients would believe that value
/// as soon as it is, while its owner takes another slot.
#[test]
fn a_waiter_says_that_it_waits_whatever_reply_was_lost() {
    let zookeeper = ZooKeeper::lent();
    let proxy = Proxy::to(zookeeper.port(0));
    let mut session = zookeeper.session();
    let mode = ["--slots", "3"];
    let mut holder = Dlock::run().backend(zookeeper.url()).sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let url = format!("zookeeper://127.0.0.1:{}", proxy.port());
    for step in 0..4 {
        proxy.lose_reply_after(step);
        let waiter = Dlock::run().backend(&url).args(mode).args(["--wait", "forever"]);
        let mut waiter = waiter.command(["true"]).spawn();
        let mut seen = String::new();
        until(SOON, "the entry of a waiter", || {
            let mut nodes = session.children("/dlock/x").unwrap();
            nodes.sort_by_key(|node| node[node.len() - 10..].to_owned());
            let Some(node) = nodes.get(1) else { return false };
            let Some((data, _)) = session.get(&format!("/dlock/x/{node}")) else { return false };
            seen = data;
            let ledger: serde_json::Value = serde_json::from_str(&seen).unwrap();
            ledger["members"] == serde_json::json!([]) && ledger["line"][0]["mode"].is_object()
        });
        waiter.signal(Signal::SIGTERM);
        assert_eq!(waiter.wait().exit, Exit::by(Signal::SIGTERM), "{seen}");
    }
    session.close().unwrap();
}
