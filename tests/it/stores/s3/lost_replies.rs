//! Replies that are lost after the request was carried out.

use super::fake::{self, Fault, url};
use crate::support::dlock::Dlock;
use crate::support::running::Exit;

/// Something in front of the store repeats a write whose first reply was lost: it is refused then, and carried out.
#[test]
fn a_write_that_was_repeated_on_its_way_is_recognised() {
    for fault in [Fault::RepeatsWrites, Fault::Conflicts, Fault::IsBusy] {
        let web = fake::start(fault);
        let mut run = Dlock::run().no_backend().env("DLOCK_BACKEND", url(web.port()));
        run = run.args(["--retry", "20s", "--ttl", "10s"]);
        let output = run.sh("sleep 4; echo ran").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "{fault:?}");
    }
}
