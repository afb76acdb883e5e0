//! Programs that take a Lease as client-go's leader election does.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::kubernetes::{Controller, Kubernetes, LEDGER};
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::wait::until;
use dlock::backend::Change;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::time::timeout;

const SECOND: Duration = Duration::from_secs(1);

fn time(lease: &Value, field: &str) -> Timestamp {
    lease["spec"][field].as_str().expect("a time").parse().expect("a time in RFC 3339")
}

/// The fields are those that client-go writes, so that another program sees a holder that is alive.
#[test]
fn a_hold_is_that_of_a_leader() {
    let (place, server) = (Place::new(), Kubernetes::lent());
    let run = place.run().backend(server.url()).args(["--ttl", "6s"]);
    let mut run = run.sh("echo ready; read line; true").stdin(std::process::Stdio::piped()).spawn();
    run.await_ready();
    let first = server.lease("x");
    let spec = &first["spec"];
    let holder = spec["holderIdentity"].as_str().expect("a holder").to_owned();
    let parts: Vec<&str> = holder.rsplitn(3, '_').collect();
    assert!(parts.len() == 3 && parts[0].len() == 16 && parts[1].parse::<u32>().is_ok(), "{holder}");
    assert_eq!((&spec["leaseTransitions"], spec["leaseDurationSeconds"].as_u64()), (&json!(0), Some(8)));
    assert_eq!(spec["acquireTime"], spec["renewTime"]);
    // The token is not in it, nor in its digest.
    let token = first["metadata"]["annotations"][LEDGER].as_str().expect("a ledger");
    let token = serde_json::from_str::<Value>(token).expect("JSON")["members"][0]["token"].take();
    assert!(!holder.contains(&token.as_str().expect("a token")[..8]), "{holder}");
    until(SOON, "a renewal", || time(&server.lease("x"), "renewTime") > time(&first, "renewTime"));
    let renewed = server.lease("x");
    assert_eq!(renewed["spec"]["acquireTime"], spec["acquireTime"]);
    assert_eq!(renewed["spec"]["holderIdentity"], spec["holderIdentity"]);
    assert!(!Controller::new("c").try_take(&server, "x", None));
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
    let released = server.lease("x");
    assert_eq!(released["spec"]["holderIdentity"], "");
    assert_eq!(released["spec"]["leaseDurationSeconds"], 1);
    // Another holder is another term.
    assert!(Controller::new("c").try_take(&server, "x", None));
    assert_eq!(server.lease("x")["spec"]["leaseTransitions"], 1);
}

/// Whoever has died is known by the server's time of its last renewal: nobody has to have seen it.
#[test]
fn a_run_without_waiting_takes_over_from_a_controller_that_has_died() {
    let (place, server, controller) = (Place::new(), Kubernetes::lent(), Controller::new("c"));
    assert!(controller.try_take(&server, "x", Some(2 * SECOND)));
    let began = Instant::now();
    let run = || place.run().backend(server.url()).args(["-q", "--no-wait"]).sh("echo ran").output();
    assert_eq!(run().exit, Exit::Code(75));
    until(SOON, "the end of the lease", || run().exit == Exit::Code(0));
    let elapsed = began.elapsed();
    // A renewal that the server saw at the end of a second, and a clock that is at its beginning.
    assert!(elapsed >= 2 * SECOND + SECOND, "after {elapsed:?}");
    assert!(elapsed < 12 * SECOND, "after {elapsed:?}");
}

/// What its clock says does not matter.
#[test]
fn a_controller_whose_clock_is_wrong_keeps_its_lease() {
    let (place, server, controller) = (Place::new(), Kubernetes::lent(), Controller::new("c"));
    assert!(controller.try_take(&server, "x", Some(600 * SECOND)));
    let mut lease = server.lease("x");
    lease["spec"]["renewTime"] = "2020-01-01T00:00:00.000000Z".into();
    assert!(server.put("x", lease));
    let run = place.run().backend(server.url()).args(["-q"]).sh("echo ran").output();
    assert_eq!(run.exit, Exit::Code(75), "{}", run.stderr);
}

/// A waiter is granted the lock when the lease has ended, although nothing happens then.
#[test]
fn a_waiter_takes_over_from_a_controller_that_has_died() {
    let (server, controller) = (Kubernetes::lent(), Controller::new("c"));
    assert!(controller.try_take(&server, "x", Some(2 * SECOND)));
    let run = Dlock::run().backend(server.url()).args(["-q", "--wait", "60s"]).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// It keeps what is not its own: the queue is there when it leaves.
#[test]
fn a_controller_and_waiters_do_not_disturb_each_other() {
    let (server, controller) = (Kubernetes::lent(), Controller::new("c"));
    assert!(controller.try_take(&server, "x", Some(60 * SECOND)));
    on_one_thread(async {
        let mut waiter = Client::at(&server.url(), "x");
        waiter.queue().await;
        let joined = server.lease("x");
        assert_eq!(joined["spec"]["holderIdentity"], "c");
        assert!(controller.take(&server, "x", Some(60 * SECOND)), "a renewal");
        assert_eq!(server.ledger("x").waiters.len(), 1);
        assert_eq!(waiter.notification_within(Duration::from_millis(300)).await, []);
        controller.release(&server, "x");
        waiter.await_turn().await;
        waiter.claim_turn().await;
    });
}

/// No release has called the first waiter: the next one does, long before the lease would have ended.
#[test]
fn a_waiter_that_has_died_holds_up_the_next_one_only_for_its_turn() {
    let (server, controller) = (Kubernetes::lent(), Controller::new("c"));
    assert!(controller.try_take(&server, "x", Some(600 * SECOND)));
    on_one_thread(async {
        let [mut first, mut second] = [(); 2].map(|()| Client::at(&server.url(), "x").elsewhere());
        first.queue().await;
        assert_eq!(second.queue().await.position, Some(2));
        drop(first);
        controller.release(&server, "x");
        let began = Instant::now();
        let told = timeout(SOON, second.backend.changed()).await;
        assert_eq!(told.expect("nobody was told"), Change::Soon(5 * SECOND));
        second.wait_for_grant().await;
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    });
}

/// A controller that dlock has not seen has taken the Lease from a run that could not renew it.
#[test]
fn a_run_whose_lease_a_controller_has_taken_is_stopped() {
    let (place, server, controller) = (Place::new(), Kubernetes::lent(), Controller::new("c"));
    let run = place.run().backend(server.url()).args(["-q", "--ttl", "6s"]);
    let mut run = run.sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    assert!(controller.take(&server, "x", Some(60 * SECOND)));
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stderr.contains("another client"), "{}", output.stderr);
    assert!(controller.holds(&server, "x"));
}

/// Fields and annotations of other programs are kept.
#[test]
fn what_others_have_written_is_kept() {
    let server = Kubernetes::lent();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "labels": { "app": "shop" }, "annotations": { "note": "of another program" } },
        "spec": { "leaseTransitions": 7 },
    });
    assert!(server.put("x", lease));
    let run = Dlock::run().backend(server.url()).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
    let lease = server.lease("x");
    assert_eq!(lease["metadata"]["labels"], json!({ "app": "shop" }));
    assert_eq!(lease["metadata"]["annotations"]["note"], "of another program");
    assert_eq!(lease["spec"]["leaseTransitions"], 8);
}

/// Its holder is chosen by a controller of Kubernetes.
#[test]
fn a_lease_with_a_strategy_is_refused_and_not_changed() {
    let server = Kubernetes::lent();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {},
        "spec": { "strategy": "OldestEmulationVersion" },
    });
    assert!(server.put("x", lease));
    let before = server.lease("x");
    let run = Dlock::run().backend(server.url()).sh("echo ran").output();
    assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(78), ""), "{}", run.stderr);
    let why = "a controller of Kubernetes chooses its holder (spec.strategy): use another name";
    assert!(run.stderr.contains(why), "{}", run.stderr);
    assert_eq!(server.lease("x"), before);
}
