//! Replies that are lost after the request was carried out, and requests that are not.

use crate::support::dlock::Dlock;
use crate::support::kubernetes::Kubernetes;
use crate::support::running::Exit;

/// Something in front of the server repeats a write whose first reply was lost: it is refused then, and carried out.
#[test]
fn a_write_that_was_repeated_on_its_way_is_recognised() {
    let server = Kubernetes::with_fault("repeats-writes");
    let run = Dlock::run().backend(server.url()).args(["--ttl", "5s"]);
    assert_eq!(run.sh("sleep 4; echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    assert!(server.ledger("x").is_idle(), "{:?}", server.ledger("x"));
}

#[test]
fn a_throttled_run_is_carried_out_later() {
    let server = Kubernetes::with_fault("is-busy");
    let run = Dlock::run().backend(server.url()).args(["--retry", "20s", "--ttl", "10s"]);
    assert_eq!(run.sh("sleep 4; echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}
