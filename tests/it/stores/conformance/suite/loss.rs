//! A run that has lost its lock ends its command, and then keeps nobody out.

use crate::stores::conformance::rig::Rig;
use crate::support::SOON;
use crate::support::running::{Exit, Running};
use std::time::{Duration, Instant};

/// The lease, in seconds. Its loss is noticed within a third of it.
pub const LEASE: u64 = 20;
/// How long a lock that is lost may stay unused on a busy machine: less than what is left of the lease then.
pub const AT_MOST: Duration = Duration::from_secs(LEASE / 2);

/// A run that holds `x`, and whose command ignores SIGTERM and keeps a file locked.
pub fn holder(rig: &dyn Rig) -> Running {
    let inherited_lock = rig.place().inherited_lock();
    let run = rig.run().args(["--ttl", &rig.ttl(LEASE), "--wait", "10s"]);
    let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).spawn();
    run.await_ready();
    run
}

/// Waits until it has ended because it has lost its lock, and returns when.
pub fn lost(rig: &dyn Rig, run: &mut Running) -> Instant {
    let output = run.wait_within(SOON + Duration::from_secs(LEASE));
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
    assert!(output.stderr.contains("the lock was lost"), "{}", output.stderr);
    assert!(rig.place().inherited_lock().is_free());
    Instant::now()
}

/// Asserts that runs without waiting are not kept out for longer than a moment.
fn assert_free(rig: &dyn Rig, since: Instant) {
    loop {
        let output = rig.run().arg("--no-wait").sh("echo ran").output();
        if output.exit == Exit::Code(0) {
            return;
        }
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
        assert!(since.elapsed() < AT_MOST, "after {:?}: {}", since.elapsed(), output.stderr);
    }
}

pub async fn a_lost_lock_is_free_when_its_run_has_ended(rig: &mut dyn Rig) {
    let mut run = holder(rig);
    rig.cut("x");
    let ended = lost(rig, &mut run);
    assert_free(rig, ended);
}

pub async fn a_lock_that_was_taken_is_free_when_both_have_ended(rig: &mut dyn Rig) {
    let mut run = holder(rig);
    rig.replace("x");
    lost(rig, &mut run);
    assert!(rig.is_untouched("x"));
    rig.foreign_unlock("x");
    assert_free(rig, Instant::now());
}
