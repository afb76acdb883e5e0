//! The release: a store that is down by then, and a reply that is lost.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::proxy::Way;
use crate::support::redis::Redis;
use crate::support::running::{Exit, Output};
use crate::support::wait::until;

#[track_caller]
fn assert_kept_and_warned(output: &Output) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis://127.0.0.1:"), "{}", output.stderr);
    assert!(output.stderr.contains("could not be released"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

/// F06
#[test]
fn a_refused_release_keeps_the_status_of_the_command_and_warns() {
    let fixture = Fixture::new();
    let mut run = fixture.witness();
    // So that the lease is too long yet to warn of a renewal that fails.
    fixture.await_renewals(1);
    fixture.proxy.refuse();
    fixture.go();
    assert_kept_and_warned(&run.wait());
    assert!(fixture.pttl() > 0, "the lock ends by itself");
    fixture.assert_succession();
}

/// F06
#[test]
fn a_release_without_a_reply_keeps_the_status_of_the_command_and_warns() {
    let fixture = Fixture::new();
    let mut run = fixture.witness();
    fixture.await_renewals(1);
    fixture.proxy.hold_both();
    fixture.go();
    assert_kept_and_warned(&run.wait());
    fixture.assert_succession();
}

/// F06
#[test]
fn a_release_to_a_stopped_or_dead_server_keeps_the_status_of_the_command() {
    let mut redis = Redis::start();
    let fixture = Fixture::on(&redis);
    let mut run = fixture.witness();
    redis.stop();
    fixture.go();
    assert_kept_and_warned(&run.wait());
    redis.resume();
    std::fs::remove_file(fixture.place().path("go")).unwrap();
    let mut run = fixture.witness_of(fixture.run().args(["--wait", "forever"]));
    redis.kill();
    fixture.go();
    assert_kept_and_warned(&run.wait());
    fixture.assert_tokens_grow();
}

/// F06
#[test]
fn quiet_silences_a_failed_release() {
    let fixture = Fixture::new();
    let mut run = fixture.witness_of(fixture.run().args(["-q"]));
    fixture.await_renewals(1);
    fixture.proxy.refuse();
    fixture.go();
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
}

/// F06
#[test]
fn a_release_waits_no_longer_than_the_lease_or_the_time_out() {
    let fixture = Fixture::new().ttl(3600);
    let mut run = fixture.witness_of(fixture.run().args(["--connect-timeout", "2s"]));
    fixture.proxy.hold_both();
    fixture.go();
    assert_kept_and_warned(&run.wait());
}

/// F07
#[test]
fn a_release_with_a_lost_reply_does_not_delete_the_lock_of_the_next_holder() {
    let fixture = Fixture::new().ttl(60);
    // The release is not given up before the next holder runs.
    let mut run = fixture.witness_of(fixture.run().args(["--connect-timeout", "50s"]));
    fixture.proxy.hold(Way::Down);
    fixture.go();
    until(SOON, "a lock that is free", || !fixture.is_held());
    std::fs::remove_file(fixture.place().path("go")).unwrap();
    let holder = fixture.witness_of(fixture.direct());
    let before = fixture.command(&["GET", &fixture.key()]);
    // The connection breaks, so that the release is tried again.
    let releases = fixture.leases().len();
    fixture.proxy.drop_all(Way::Down);
    fixture.proxy.close();
    until(SOON, "a second release", || fixture.leases().len() > releases);
    fixture.proxy.heal();
    // Its reply was dropped as well; it would be waited for as long as that.
    fixture.proxy.close();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    assert_eq!(fixture.command(&["GET", &fixture.key()]), before);
    fixture.assert_undisturbed(holder);
}

/// F07
#[test]
fn a_release_with_a_lost_reply_takes_effect() {
    let fixture = Fixture::new().ttl(60);
    let mut run = fixture.witness();
    fixture.proxy.drop_all(Way::Down);
    fixture.go();
    until(SOON, "a lock that is free", || !fixture.is_held());
    fixture.proxy.heal();
    fixture.proxy.close();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    assert_eq!(output.stderr, "", "it was released, and nothing is known to be wrong");
    fixture.assert_succession();
}
