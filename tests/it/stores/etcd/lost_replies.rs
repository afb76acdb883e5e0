//! Replies that are lost after the request was carried out.

use crate::stores::lost_replies::assert_recovered;
use crate::support::SOON;
use crate::support::etcd::Etcd;
use crate::support::wait::until;

/// F03, F07, F35
#[test]
fn a_lost_reply_is_recovered_at_every_step() {
    let etcd = Etcd::lent();
    // A lease that was left behind would outlast the test.
    assert_recovered(
        |port| format!("etcd://127.0.0.1:{port}"),
        etcd.port(0),
        "10m",
        |step| {
            let left = || (etcd.client().keys("/dlock/x/"), etcd.client().leases().unwrap());
            until(SOON, &format!("the end of all leases after the loss of reply {step}"), || {
                left() == (Vec::new(), Vec::new())
            });
        },
    );
}
