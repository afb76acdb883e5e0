//! How many requests there are.

use crate::stores::conformance::client::{Client, LONG};
use crate::stores::conformance::rig::on_one_thread;
use crate::stores::host_clock::least_after_a_jump;
use crate::support::dlock::Dlock;
use crate::support::dynamodb::Dynamo;
use crate::support::running::Exit;
use dlock::backend::{Attempt, Renewal};
use futures_util::future::join_all;
use serde_json::json;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn clients(server: &Dynamo, count: usize) -> Vec<Client> {
    (0..count).map(|_| Client::at(&server.url(), "x")).collect()
}

/// A new name, and one that was released.
#[test]
fn an_uncontended_run_takes_one_request_to_acquire_and_one_to_release() {
    let server = Dynamo::lent();
    for _ in 0..2 {
        let count = || ["DescribeTable", "UpdateItem", "GetItem", "Scan"].map(|action| server.count(action));
        let before = count();
        let output = Dlock::run().backend(server.url()).sh("echo ran").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
        let after = count();
        let sent: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(sent, [1, 2, 0, 0]);
    }
    let ledger = server.ledger("x");
    assert_eq!(ledger.history.len(), 2, "{ledger:?}");
}

#[test]
fn a_renewal_takes_one_request() {
    let server = Dynamo::lent();
    on_one_thread(async {
        let mut holder = Client::at(&server.url(), "x");
        holder.acquire().await;
        let (writes, reads) = (server.count("UpdateItem"), server.count("GetItem"));
        for _ in 0..5 {
            assert!(matches!(holder.renew().await, Renewal::Held { .. }));
        }
        assert_eq!((server.count("UpdateItem") - writes, server.count("GetItem") - reads), (5, 0));
    });
}

/// It may have been paused after it had read the time.
#[test]
fn a_lease_counts_by_the_clock_of_the_server_if_that_of_this_host_stood_still() {
    let ends = |server: &Dynamo| server.ledger("x").holders[0].lease_ends.expect("a lease");
    on_one_thread(async {
        let (server, least) = (Dynamo::with_fault("clock-jumps-1"), least_after_a_jump());
        Client::at(&server.url(), "x").acquire().await;
        assert!(ends(&server) >= least, "{:?} is before {least:?}", ends(&server));
        let server = Dynamo::with_fault("clock-jumps-2");
        let mut holder = Client::at(&server.url(), "x");
        holder.acquire().await;
        let least = least_after_a_jump();
        assert!(ends(&server) < least, "it has jumped before");
        assert!(matches!(holder.renew().await, Renewal::Held { .. }));
        assert!(ends(&server) >= least, "{:?} is before {least:?}", ends(&server));
    });
}

/// It may have been paused after it had read the item, and before it wrote it.
#[test]
fn a_decision_is_repeated_if_this_host_stood_still_between_its_read_and_its_write() {
    let ends = |server: &Dynamo| server.ledger("x").holders[0].lease_ends.expect("a lease");
    on_one_thread(async {
        let server = Dynamo::with_fault("clock-jumps-6");
        let [mut holder, mut waiter] = [(); 2].map(|()| Client::at(&server.url(), "x"));
        holder.acquire().await;
        waiter.queue().await;
        // Its first attempt expects an item without a waiter.
        holder.release().await;
        waiter.await_turn().await;
        assert_eq!(server.count("UpdateItem"), 5, "the next write is the sixth");
        let least = least_after_a_jump();
        waiter.claim_turn().await;
        assert!(ends(&server) >= least, "{:?} is before {least:?}", ends(&server));

        let server = Dynamo::with_fault("clock-jumps-5");
        let [mut holder, mut waiter] = [(); 2].map(|()| Client::at(&server.url(), "x"));
        holder.acquire().await;
        waiter.queue().await;
        assert_eq!(server.count("UpdateItem"), 3, "a renewal takes the fourth and the fifth");
        // Otherwise a renewal within a second need not be written.
        holder.claim.ttl += Duration::from_secs(1);
        let least = least_after_a_jump();
        assert!(matches!(holder.renew().await, Renewal::Held { .. }));
        assert!(ends(&server) >= least, "{:?} is before {least:?}", ends(&server));
    });
}

#[test]
fn the_date_of_a_reply_that_is_not_of_the_service_does_not_count() {
    let server = Dynamo::with_fault("proxy-fails");
    let run = Dlock::run().backend(server.url()).args(["--retry", "20s", "--ttl", "30s"]);
    let mut run = run.stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ends = server.ledger("x").holders[0].lease_ends.expect("a lease");
    assert!(ends < now + Duration::from_secs(60), "{ends:?} is long after {now:?}");
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
}

/// The grant is written without a read before it, by the time that an earlier reply has shown.
#[test]
fn a_lease_counts_from_the_claim_and_not_from_the_reply_before() {
    let server = Dynamo::lent();
    on_one_thread(async {
        let mut client = Client::at(&server.url(), "x");
        client.backend.connect().await.expect("a table");
        tokio::time::sleep(Duration::from_secs(4)).await;
        let reads = server.count("GetItem");
        let claimed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        client.acquire().await;
        assert_eq!(server.count("GetItem"), reads);
        let ends = server.ledger("x").holders[0].lease_ends.expect("a lease");
        assert!(ends >= claimed + LONG, "{ends:?} is before {:?}", claimed + LONG);
    });
}

/// The crontabs of a fleet fire in the same second.
#[test]
fn clients_that_do_not_wait_send_three_requests_each() {
    let server = Dynamo::without_table();
    server.create("key");
    on_one_thread(async {
        let mut clients = clients(&server, 200);
        let attempts = join_all(clients.iter_mut().map(Client::try_acquire)).await;
        let granted = attempts.iter().filter(|attempt| matches!(attempt, Attempt::Granted(_))).count();
        assert_eq!(granted, 1, "{attempts:?}");
    });
    let most = server.ask("Counts", json!({}))["most"].as_u64();
    assert!(most.is_some_and(|most| most <= 3), "{most:?}");
}

#[test]
fn fifty_waiters_that_have_joined_only_read_and_no_renewal_fails() {
    let server = Dynamo::lent();
    on_one_thread(async {
        let mut holder = Client::at(&server.url(), "x");
        holder.acquire().await;
        let mut waiters = clients(&server, 50);
        holder.renew_while_joining(&mut waiters).await;
        let before = server.count("UpdateItem");
        // Heartbeats: they only read.
        join_all(waiters.iter_mut().map(Client::queue)).await;
        assert_eq!(server.count("UpdateItem"), before);
        assert!(matches!(holder.renew().await, Renewal::Held { .. }));
    });
}
