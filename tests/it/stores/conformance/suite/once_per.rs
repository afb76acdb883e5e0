//! `--once-per`: a lock whose last run has succeeded is not granted again before the period has passed.

use super::admin::{name, seen};
use crate::stores::conformance::client::{Client, LONG};
use crate::stores::conformance::rig::Rig;
use crate::support::running::Exit;
use dlock::backend::admin::Revoked;
use dlock::backend::{Attempt, Release};
use dlock::lock::{Holder, NotDue, Revocation};
use serde_json::Value;
use std::time::Duration;

/// A client whose claims have this period.
fn periodic(rig: &dyn Rig, period: Duration) -> Client {
    let mut client = Client::new(rig, "x");
    client.claim.once_per = Some(period);
    client
}

/// Sends one request, which must find the lock free and not due.
async fn not_due(client: &mut Client) -> NotDue {
    match client.wait_in_line().await {
        Attempt::NotDue(not_due) => not_due,
        other => panic!("{other:?}"),
    }
}

pub async fn a_success_is_found_within_the_period(rig: &mut dyn Rig) {
    let mut first = periodic(rig, LONG);
    let grant = first.acquire().await;
    assert_eq!(first.succeed(Duration::ZERO).await, Release::Released);
    let mut second = periodic(rig, LONG);
    let found = not_due(&mut second).await;
    let identity = first.claim.identity;
    assert_eq!(
        (&found.last.host, found.last.pid, &found.last.user),
        (&identity.host, identity.pid, &identity.user)
    );
    assert_eq!(found.last.fencing_token, grant.fencing);
    assert!(found.last.granted_at <= found.last.ended_at, "{found:?}");
    assert!(found.due_in <= LONG && found.due_in > LONG / 2 && found.ago < LONG / 2, "{found:?}");
    assert!(matches!(second.try_acquire().await, Attempt::NotDue(again) if again.last.pid == found.last.pid));
    assert_eq!(rig.traces("x"), [""; 0], "nothing of the claims is left");
    // Nodes of a Redlock have clocks of their own.
    let last = seen(rig, "x").await.last_success.unwrap();
    assert_eq!((last.fencing_token, last.host), (found.last.fencing_token, found.last.host));
}

pub async fn claims_without_a_period_neither_look_nor_count(rig: &mut dyn Rig) {
    let mut first = periodic(rig, LONG);
    first.acquire().await;
    first.succeed(Duration::ZERO).await;
    let success = seen(rig, "x").await.last_success;
    let mut by_hand = Client::new(rig, "x");
    by_hand.acquire().await;
    by_hand.release().await;
    assert_eq!(seen(rig, "x").await.last_success, success);
    not_due(&mut periodic(rig, LONG)).await;
}

pub async fn the_period_begins_with_the_grant(rig: &mut dyn Rig) {
    const RUN: Duration = Duration::from_millis(400);
    let mut first = periodic(rig, LONG);
    first.acquire().await;
    tokio::time::sleep(RUN).await;
    first.succeed(RUN).await;
    let found = not_due(&mut periodic(rig, LONG)).await;
    assert!(found.last.ended_at - found.last.granted_at >= 400, "{found:?}");
    assert!(found.due_in <= LONG - RUN, "{found:?}");
    let mut next = periodic(rig, RUN);
    next.acquire().await;
    // Not later than it was by the clock of the client, whatever the store has recorded.
    next.succeed(LONG + RUN).await;
    periodic(rig, LONG).acquire().await;
}

pub async fn a_run_that_does_not_succeed_leaves_it_open(rig: &mut dyn Rig) {
    let mut failed = periodic(rig, LONG);
    failed.acquire().await;
    failed.release().await;
    let mut revoked = periodic(rig, LONG);
    let fencing = revoked.acquire().await.fencing;
    let revocation = Revocation { by: "root@elsewhere".into(), reason: None };
    let notified = rig.open().revoke(&name("x"), &Holder { fencing, ..Holder::default() }, &revocation).await;
    assert_eq!(notified, Ok(Revoked::Notified(1)));
    assert_eq!(revoked.succeed(Duration::ZERO).await, Release::Released);
    let mut lost = periodic(rig, LONG);
    lost.acquire().await;
    rig.delete("x");
    assert_eq!(lost.succeed(Duration::ZERO).await, Release::NotHeld);
    periodic(rig, LONG).acquire().await;
}

pub async fn a_waiter_that_finds_it_done_passes_its_turn_on(rig: &mut dyn Rig) {
    let mut holder = periodic(rig, LONG);
    holder.acquire().await;
    let mut next = periodic(rig, LONG);
    next.queue().await;
    // It does nothing before, so that the turn of the next one cannot pass.
    let mut by_hand = Client::new(rig, "x");
    let busy = by_hand.queue().await;
    holder.succeed(Duration::ZERO).await;
    next.await_turn().await;
    not_due(&mut next).await;
    by_hand.continue_beside(busy).granted().await;
}

pub async fn a_held_lock_is_busy_even_if_the_next_run_is_not_due(rig: &mut dyn Rig) {
    let mut first = periodic(rig, LONG);
    first.acquire().await;
    first.succeed(Duration::ZERO).await;
    let mut by_hand = Client::new(rig, "x");
    by_hand.acquire().await;
    periodic(rig, LONG).busy().await;
    by_hand.release().await;
    not_due(&mut periodic(rig, LONG)).await;
}

pub async fn one_run_a_night(rig: &mut dyn Rig) {
    let nightly = || rig.run().args(["--once-per", "23h", "--report", "-"]);
    let failed = rig.run().args(["--once-per", "23h"]).sh("exit 3").output();
    assert_eq!(failed.outcome(), (Exit::Code(3), "", ""));
    let first = rig.run().args(["--once-per", "23h"]).sh("echo ran").output();
    assert_eq!(first.outcome(), (Exit::Code(0), "ran\n", ""));
    let second = nightly().sh("echo ran").output();
    assert_eq!((second.exit, second.stdout.as_str()), (Exit::Code(0), ""));
    let (line, report) = second.stderr.split_once('\n').unwrap();
    let host = dlock::identity::host();
    assert!(line.starts_with(&format!("dlock: x was done by {host} ")), "{line}");
    let due_in = line.split_once(" ago; not due for another ").unwrap().1;
    assert!(["23h", "22h59m"].contains(&due_in), "{line}");
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!((&report["outcome"], &report["dlock_exit"]), (&"done".into(), &0.into()));
    assert_eq!((&report["exit_status"], &report["held_ms"]), (&Value::Null, &Value::Null));
    assert_eq!(report["done"]["host"], host.as_str());
    let quiet = rig.run().args(["-q", "--once-per", "23h"]).sh("echo ran").output();
    assert_eq!(quiet.outcome(), (Exit::Code(0), "", ""));
    let by_hand = rig.run().sh("echo ran").output();
    assert_eq!(by_hand.outcome(), (Exit::Code(0), "ran\n", ""));
    // Those that were done are not kept: they would displace the one that ran.
    let history = rig.open().history(&name("x")).await.unwrap();
    let outcomes: Vec<_> = history.iter().map(|(_, run)| (run.outcome.as_str(), run.exit_status)).collect();
    assert_eq!(outcomes, [("ran", Some(0)), ("ran", Some(0)), ("ran", Some(3))]);
}
