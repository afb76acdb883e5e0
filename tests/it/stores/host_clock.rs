//! The clock of the host does not matter where that of the server counts.

use crate::run::faults::shim::{Clocks, HOUR};
use crate::stores::conformance::client::LONG;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A run on a host whose clock is an hour wrong is excluded by another one, and runs after it. `run` has these options in
/// its URL.
#[track_caller]
pub fn assert_the_hosts_clock_does_not_matter(options: &[&str], run: impl Fn(&str) -> Dlock) {
    for options in options {
        for wrong in [HOUR, -HOUR] {
            let place = Place::new();
            let clocks = Clocks::new(&place);
            let mut right =
                run(options).args(["--ttl", "10m"]).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
            right.await_ready();
            clocks.set_wall(wrong);
            let busy = clocks.of(run(options)).args(["--wait", "0"]).sh("echo ran").output();
            assert_eq!((busy.exit, busy.stdout.as_str()), (Exit::Code(75), ""), "{}", busy.stderr);
            drop(right.take_stdin());
            assert_eq!(right.wait().outcome(), (Exit::Code(0), "ready\n", ""));
            let free = clocks.of(run(options)).args(["--wait", "0"]).sh("echo ran").output();
            assert_eq!(free.outcome(), (Exit::Code(0), "ran\n", ""), "{options} {wrong}");
        }
    }
}

/// Until when a lease of [`LONG`] must last at least that was granted or renewed after this call, on a server whose clock
/// jumps (`clock-jumps`).
pub fn least_after_a_jump() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970") + Duration::from_secs(20) + LONG
}
