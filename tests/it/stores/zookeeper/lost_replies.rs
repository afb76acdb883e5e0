//! Replies that are lost after the request was carried out (ZK-1262).

use crate::stores::lost_replies::assert_recovered;
use crate::support::zookeeper::ZooKeeper;

/// F03, F07, F36
#[test]
fn a_lost_reply_is_recovered_at_every_step() {
    let zookeeper = ZooKeeper::lent();
    assert_recovered(
        |port| format!("zookeeper://127.0.0.1:{port}"),
        zookeeper.port(0),
        "5s",
        |step| {
            // The end of the session is not awaited.
            let nodes = zookeeper.session().children("/dlock/x").unwrap();
            assert_eq!(nodes, [""; 0], "left behind after the loss of reply {step}");
        },
    );
}
