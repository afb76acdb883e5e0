//! A lock whose sentinels name another master, while the former one still replies, hangs, or has
//! become a replica.

use super::stage::{FakeReply, FakeService};
use crate::stores::conformance::rig::{locate, on_one_thread};
use crate::support::SOON;
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use dlock::backend::admin::LockAdmin;
use dlock::lock::{FencingToken, Holder, LockName, Revocation};
use std::time::Duration;

/// A lease that is not renewed while a test runs.
const LONG: &str = "600s";

/// Waits until the last replies of the sentinels about the master are too old to be used.
#[track_caller]
fn distrust(run: &mut Running) {
    throughout(Duration::from_millis(1100), "a dlock that runs", || run.poll().is_none());
}

#[track_caller]
fn assert_undisturbed(stage: &FakeService, mut run: Running) {
    run.assert_running();
    stage.go();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    // On a busy machine, a renewal may take until half of the lease has passed.
    assert_eq!(output.after_renewal_warnings(), [""; 0]);
}

#[track_caller]
fn assert_lost_by_fail_over(stage: &FakeService, mut run: Running) {
    let output = run.wait();
    let line = format!(
        "dlock: x on {}: the lock was lost: the store has failed over to a server that does not have it; the \
        command was \
         stopped",
        stage.url()
    );
    assert_eq!((output.exit, output.after_renewal_warnings()), (Exit::Code(76), vec![line.as_str()]));
    assert!(stage.inherited_lock.is_free(), "somebody is left");
}

/// F26: the former master is cut off from the sentinels and replies to every renewal.
#[test]
fn a_hold_moves_to_the_new_master_although_the_former_one_replies() {
    let stage = FakeService::with_replica();
    let run = stage.witness(stage.run());
    stage.await_copy();
    stage.fail_over();
    stage.await_renewal(1);
    stage.await_renewal(1);
    // It is no longer renewed there.
    until(SOON, "the end of the lease at the former master", || !stage.is_held(0));
    assert_undisturbed(&stage, run);
    assert!(!stage.is_held(1), "the lock is left");
}

/// F26
#[test]
fn a_hold_missing_at_the_new_master_is_lost() {
    let stage = FakeService::new();
    let run = stage.witness(stage.run());
    stage.all_name(1, 1);
    assert_lost_by_fail_over(&stage, run);
    assert!(!stage.is_held(1), "the lock was made anew");
}

#[test]
fn a_hold_of_another_client_at_the_new_master_is_a_loss() {
    let stage = FakeService::new();
    let mut run = stage.witness(stage.run());
    stage.take_for_another(1);
    stage.all_name(1, 1);
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76));
    assert!(output.stderr.contains("another client holds it now"), "{}", output.stderr);
    assert!(stage.inherited_lock.is_free() && stage.is_held(1));
}

#[test]
fn a_hold_with_a_broken_connection_is_renewed_at_the_new_master_at_once() {
    let mut stage = FakeService::new();
    let run = stage.witness(stage.run_with_ttl(LONG));
    stage.all_name(1, 1);
    stage.servers[0].kill();
    assert_lost_by_fail_over(&stage, run);
}

#[test]
fn a_hold_continues_at_the_new_master_when_the_former_one_hangs() {
    let stage = FakeService::with_replica();
    let run = stage.witness(stage.run());
    stage.await_copy();
    stage.servers[0].stop();
    stage.fail_over();
    stage.await_renewal(1);
    stage.await_renewal(1);
    assert_undisturbed(&stage, run);
    assert!(!stage.is_held(1), "the lock is left");
    stage.servers[0].resume();
}

#[test]
fn a_hold_continues_at_the_new_master_when_the_former_one_is_a_replica() {
    let stage = FakeService::with_replica();
    let run = stage.witness(stage.run());
    stage.await_copy();
    stage.fail_over();
    let port = stage.servers[1].port().to_string();
    stage.servers[0].command(&["REPLICAOF", "127.0.0.1", &port]);
    stage.await_renewal(1);
    stage.await_renewal(1);
    assert_undisturbed(&stage, run);
    assert!(!stage.is_held(1), "the lock is left");
}

#[test]
fn a_lying_sentinel_does_not_affect_a_hold() {
    let stage = FakeService::new();
    let run = stage.witness(stage.run());
    stage.all_say([stage.name(0, 0), stage.name(1, 9), stage.name(0, 0)]);
    let asked = stage.sentinels[1].connections();
    stage.await_renewal(0);
    stage.await_renewal(0);
    until(SOON, "a question to the one who lies", || stage.sentinels[1].connections() > asked);
    stage.await_renewal(0);
    assert_undisturbed(&stage, run);
}

/// New clients follow it.
#[test]
fn a_single_sentinel_that_is_left_tells_of_a_later_fail_over() {
    let stage = FakeService::new();
    let run = stage.witness(stage.run());
    stage.all_say([FakeReply::Refuses, stage.name(1, 9), FakeReply::Refuses]);
    assert_lost_by_fail_over(&stage, run);
}

/// Without an agreement a master that replies is kept.
#[test]
fn a_single_sentinel_that_knows_of_no_later_fail_over_does_not_affect_a_hold() {
    let stage = FakeService::new();
    let run = stage.witness(stage.run());
    stage.all_say([FakeReply::Refuses, stage.name(1, 0), FakeReply::Refuses]);
    let asked = stage.sentinels[1].connections();
    until(SOON, "two questions to it", || stage.sentinels[1].connections() > asked + 1);
    stage.await_renewal(0);
    assert_undisturbed(&stage, run);
    assert!(!stage.is_held(0), "the lock is left");
}

/// A hold needs only the master.
#[test]
fn silent_sentinels_do_not_affect_a_hold() {
    for says in [
        [FakeReply::Hangs; 3],
        [FakeReply::Refuses; 3],
        [FakeReply::Hangs, FakeReply::Refuses, FakeReply::KnowsNothing],
    ] {
        let stage = FakeService::new();
        // The attempts are short: less than half a second.
        let run = stage.witness(stage.run_with_ttl("3s").args(["--grace", "300ms"]));
        stage.all_say(says);
        for _ in 0..4 {
            stage.await_renewal(0);
        }
        assert_undisturbed(&stage, run);
        assert!(!stage.is_held(0), "the lock is left");
    }
}

/// The former master does not know that it was replaced, and grants the lock.
#[test]
fn a_grant_of_a_former_master_to_a_waiter_is_released() {
    let stage = FakeService::new();
    stage.take_for_another(0);
    stage.take_for_another(1);
    let mut run = stage.run_with_ttl(LONG).args(["-v", "--wait", "forever"]).command(["true"]).spawn();
    until(SOON, "one waiter", || stage.waiters(0) == 1);
    stage.all_name(1, 1);
    distrust(&mut run);
    stage.free_for_another(0);
    until(SOON, "one waiter at the new master", || stage.waiters(1) == 1);
    assert!(!stage.is_held(0), "what was granted was not given back");
    run.assert_running();
    stage.free_for_another(1);
    assert_eq!(run.wait().exit, Exit::Code(0));
    assert_eq!((stage.is_held(1), stage.waiters(1)), (false, 0));
}

/// Nothing is granted without a sentinel that confirms the master.
#[test]
fn a_grant_without_a_reply_of_any_sentinel_is_released() {
    let stage = FakeService::new();
    stage.take_for_another(0);
    let mut run = stage.run_with_ttl(LONG).args(["--wait", "forever"]).command(["true"]).spawn();
    until(SOON, "one waiter", || stage.waiters(0) == 1);
    stage.all_say([FakeReply::Refuses; 3]);
    distrust(&mut run);
    let granted = || stage.servers[0].command(&["GET", "dlock#fencing:{dlock:x}"]) != Value::Nil;
    stage.free_for_another(0);
    until(SOON, "a lock that is given back", || granted() && !stage.is_held(0));
    run.assert_running();
    stage.all_name(0, 0);
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "", ""));
}

#[test]
fn a_release_frees_the_lock_at_the_new_master() {
    let stage = FakeService::with_replica();
    let mut run = stage.witness(stage.run_with_ttl(LONG));
    stage.await_copy();
    stage.fail_over();
    distrust(&mut run);
    assert!(stage.is_held(1));
    assert_undisturbed(&stage, run);
    assert!(!stage.is_held(1), "the lock is left at the new master");
}

#[test]
fn a_release_waits_for_the_new_master_when_the_former_one_is_down() {
    let mut stage = FakeService::with_replica();
    let mut run = stage.witness(stage.run_with_ttl(LONG).args(["--connect-timeout", "25s"]));
    stage.await_copy();
    // There is no master, and the sentinels do not name another one yet.
    stage.servers[0].kill();
    stage.go();
    stage.inherited_lock.await_free();
    let asked = stage.sentinels[0].connections();
    until(SOON, "one who asks again", || stage.sentinels[0].connections() > asked + 2);
    run.assert_running();
    stage.fail_over();
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
    assert!(!stage.is_held(1), "the lock is left at the new master");
}

/// A release that found no server in time has sent nothing: that the new master does not have the lock is its loss.
#[test]
fn a_lock_that_a_fail_over_has_lost_is_not_taken_for_released() {
    let mut stage = FakeService::new();
    let mut run = stage.witness(stage.run_with_ttl(LONG).args(["--connect-timeout", "25s"]));
    stage.all_say([FakeReply::Hangs; 3]);
    stage.servers[0].kill();
    stage.go();
    stage.inherited_lock.await_free();
    // Longer than the first attempt.
    throughout(Duration::from_millis(2500), "one who tries again", || run.poll().is_none());
    stage.all_name(1, 1);
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(5), "{}", output.stderr);
    assert!(output.stderr.contains("was no longer held when the command ended"), "{}", output.stderr);
}

/// F27: the sentinels are behind.
#[test]
fn a_lock_refused_by_a_replica_is_requested_from_the_new_master() {
    let stage = FakeService::new();
    let port = stage.servers[1].port().to_string();
    stage.servers[0].command(&["REPLICAOF", "127.0.0.1", &port]);
    let once = stage.run().command(["true"]).output();
    assert_eq!(once.exit, Exit::Code(69), "{}", once.stderr);
    let server = format!("master 127.0.0.1:{}: ", stage.servers[0].port());
    assert!(once.stderr.contains(&server) && once.stderr.contains("READONLY"), "{}", once.stderr);
    let asked = stage.sentinels[0].connections();
    let mut run = stage.run().args(["--retry", "25s"]).command(["true"]).spawn();
    until(SOON, "one who asks again", || stage.sentinels[0].connections() > asked + 1);
    stage.all_name(1, 1);
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "", ""));
}

#[test]
fn a_watched_status_follows_the_master() {
    let stage = FakeService::new();
    stage.take_for_another(1);
    let mut status =
        stage.place.bare().args(["status", "--watch", "--json", "-b", &stage.url(), "x"]).spawn();
    status.await_stdout("\"free\"");
    stage.all_name(1, 1);
    status.await_stdout("\"held\"");
}

/// Opens the store, and connects it to a master that is replaced then. The last replies of the sentinels are too old to be used.
async fn operator_at_a_former_master(stage: &FakeService, name: &LockName) -> Box<dyn LockAdmin> {
    let mut operator = locate(&stage.url()).unwrap().open();
    operator.inspect(std::slice::from_ref(name), None).await.unwrap();
    stage.all_name(1, 1);
    throughout(Duration::from_millis(1100), "a pause", || true);
    operator
}

/// It replies, but the new master knows nothing of the change.
#[test]
fn a_change_by_an_operator_at_a_former_master_is_an_error() {
    let name = LockName::new("x").unwrap();
    let [raised, revoked] = on_one_thread(async {
        let stage = FakeService::new();
        let mut operator = operator_at_a_former_master(&stage, &name).await;
        let raised = operator.raise_fencing(&name, FencingToken::new(7).unwrap()).await;
        let stage = FakeService::new();
        let mut operator = operator_at_a_former_master(&stage, &name).await;
        let holder = Holder { fencing: FencingToken::new(7), ..Holder::default() };
        let revocation = Revocation { by: "root@here".into(), reason: None };
        let revoked = operator.revoke(&name, &holder, &revocation).await;
        [raised.map(drop), revoked.map(drop)]
    });
    for result in [raised, revoked] {
        let error = result.expect_err("the master was replaced").to_string();
        assert!(error.contains("the sentinels have named another master since"), "{error}");
    }
}
