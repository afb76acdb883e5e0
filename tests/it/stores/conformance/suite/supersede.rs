//! `--supersede`: the newest of the runs that have it stays.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::Rig;
use crate::support::running::Exit;
use dlock::backend::{Attempt, Change, Refusal};
use std::time::Duration;

fn superseding(rig: &dyn Rig, host: &str) -> Client {
    let mut client = Client::new(rig, "x");
    (client.claim.identity.supersedes, client.claim.identity.host) = (true, host.to_owned());
    client
}

/// Waiters without the option keep their places, and so do those that have come later.
pub async fn older_waiters_leave_to_a_newer_one(rig: &mut dyn Rig) {
    let mut owner = superseding(rig, "owner");
    owner.acquire().await;
    let (mut plain, mut older, mut newer) =
        (Client::new(rig, "x"), superseding(rig, "older"), superseding(rig, "newer"));
    plain.queue().await;
    older.queue().await;
    newer.queue().await;
    match older.wait_in_line().await {
        Attempt::Refused(Refusal::Superseded(by)) => assert_eq!(by.host, "newer"),
        other => panic!("{other:?}"),
    }
    assert_eq!(rig.waiters("x"), 2, "nothing of it is left in the queue");
    owner.renew().await;
    assert_eq!((plain.queue().await.position, newer.queue().await.position), (Some(1), Some(2)));
    owner.release().await;
    plain.claim_turn().await;
    plain.release().await;
    newer.claim_turn().await;
}

/// A runner of a pipeline is free as soon as there is a newer run. With `file:`, etcd and ZooKeeper a waiter watches only what
/// is ahead of it.
pub async fn an_older_waiter_is_notified_of_a_newer_one(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x").with_ttl(Duration::from_secs(600));
    owner.acquire().await;
    let (mut older, mut newer) = (superseding(rig, "older"), superseding(rig, "newer"));
    for client in [&mut older, &mut newer] {
        client.claim.ttl = Duration::from_secs(600);
    }
    older.queue().await;
    assert_eq!(older.notification_within(Duration::from_millis(1)).await, []);
    newer.queue().await;
    let change = older.next_change().await;
    assert!(matches!(change, Change::OurTurn | Change::Touched), "{change:?}");
    assert!(matches!(older.wait_in_line().await, Attempt::Refused(Refusal::Superseded(_))));
    assert_eq!((rig.waiters("x"), newer.queue().await.position), (1, Some(1)));
}

/// With `running`, the holder ends too, as by `dlock break`.
pub async fn a_newer_run_ends_the_older_ones(rig: &mut dyn Rig) {
    let run = |option: &str| rig.run().args(["-v", option, "--wait", "forever"]);
    let mut holder = run("--supersede").sh("echo ready; exec sleep 1000").spawn();
    holder.await_ready();
    let mut older = run("--supersede").sh("echo older >>log").spawn();
    older.await_stderr("; waiting at position 1\n");
    let mut newer = run("--supersede=running").sh("echo newer >>log").spawn();
    let pid = newer.pid();
    assert_eq!(newer.wait().exit, Exit::Code(0));
    let (held, waited) = (holder.wait(), older.wait());
    assert_eq!((held.exit, waited.exit), (Exit::Code(76), Exit::Code(75)), "{held:?} {waited:?}");
    let reason = format!(": superseded by a later run (pid {pid}, sh)");
    assert!(held.stderr.contains(&reason), "{}", held.stderr);
    let host = dlock::identity::host();
    let line = format!("dlock: x: superseded by {host} (pid {pid}, ");
    assert!(waited.stderr.contains(&line), "{}", waited.stderr);
    assert_eq!(rig.place().read("log"), "newer\n");
}

/// It was late for its turn, or the reply to its leave was lost: what counts is when it came first.
pub async fn a_waiter_that_has_lost_its_place_is_not_the_newest(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let (mut older, mut newer) = (superseding(rig, "older"), superseding(rig, "newer"));
    for client in [&mut older, &mut newer] {
        client.claim.identity.first_ticket = client.queue().await.ticket;
        assert!(client.claim.identity.first_ticket.is_some());
    }
    for newer_is_first in [true, false] {
        older.release().await;
        newer.release().await;
        let back = if newer_is_first { &mut newer } else { &mut older };
        back.queue().await;
        // It is superseded by none that came before it.
        newer.queue().await;
        match older.wait_in_line().await {
            Attempt::Refused(Refusal::Superseded(by)) => assert_eq!(by.host, "newer"),
            other => panic!("{other:?}"),
        }
        assert_eq!(newer.queue().await.position, Some(1));
        assert_eq!(rig.waiters("x"), 1);
    }
}
