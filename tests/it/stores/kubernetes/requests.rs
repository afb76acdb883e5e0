//! How many requests there are.

use crate::stores::conformance::client::{Client, LONG};
use crate::stores::conformance::rig::on_one_thread;
use crate::stores::host_clock::least_after_a_jump;
use crate::support::dlock::Dlock;
use crate::support::kubernetes::Kubernetes;
use crate::support::running::Exit;
use dlock::backend::{Attempt, Renewal};
use futures_util::future::join_all;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const VERBS: [&str; 5] = ["get", "create", "update", "list", "watch"];

fn counts(server: &Kubernetes) -> [u64; 5] {
    VERBS.map(|verb| server.count(verb))
}

fn since(server: &Kubernetes, before: [u64; 5]) -> [u64; 5] {
    let after = counts(server);
    std::array::from_fn(|place| after[place] - before[place])
}

fn clients(server: &Kubernetes, count: usize) -> Vec<Client> {
    (0..count).map(|_| Client::at(&server.url(), "x")).collect()
}

/// A new name, and one that was released.
#[test]
fn an_uncontended_run_takes_two_requests_to_acquire_and_one_to_release() {
    let server = Kubernetes::lent();
    for expected in [[1, 1, 1, 0, 0], [1, 0, 2, 0, 0]] {
        let before = counts(&server);
        let output = Dlock::run().backend(server.url()).sh("echo ran").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
        assert_eq!(since(&server, before), expected);
    }
    assert_eq!(server.ledger("x").history.len(), 2, "{:?}", server.ledger("x"));
}

#[test]
fn a_renewal_takes_one_request() {
    let server = Kubernetes::lent();
    on_one_thread(async {
        let mut holder = Client::at(&server.url(), "x");
        holder.acquire().await;
        let before = counts(&server);
        for _ in 0..5 {
            assert!(matches!(holder.renew().await, Renewal::Held { .. }));
        }
        assert_eq!(since(&server, before), [0, 0, 5, 0, 0]);
    });
}

/// It may have been paused after it had read the time.
#[test]
fn a_lease_counts_by_the_clock_of_the_server_if_that_of_this_host_stood_still() {
    let server = Kubernetes::with_fault("clock-jumps-2");
    let ends = || server.ledger("x").holders[0].lease_ends.expect("a lease");
    on_one_thread(async {
        let mut holder = Client::at(&server.url(), "x");
        holder.acquire().await;
        let least = least_after_a_jump();
        assert!(ends() < least, "it has jumped before");
        assert!(matches!(holder.renew().await, Renewal::Held { .. }));
        assert!(ends() >= least, "{:?} is before {least:?}", ends());
    });
}

/// It may have been paused after the watch had shown that it is its turn.
#[test]
fn a_grant_counts_by_the_clock_of_the_server_if_that_of_this_host_stood_still_after_the_call() {
    let server = Kubernetes::with_fault("clock-jumps-5");
    on_one_thread(async {
        let [mut holder, mut waiter] = [(); 2].map(|()| Client::at(&server.url(), "x"));
        holder.acquire().await;
        waiter.queue().await;
        // Its first attempt expects a Lease without a waiter.
        holder.release().await;
        waiter.await_turn().await;
        let before = counts(&server);
        assert_eq!(before[1..3], [1, 3], "the next write is the fifth");
        let least = least_after_a_jump();
        waiter.claim_turn().await;
        assert_eq!(since(&server, before), [1, 0, 2, 0, 0], "it is decided again");
        let ends = server.ledger("x").holders[0].lease_ends.expect("a lease");
        assert!(ends >= least, "{ends:?} is before {least:?}");
    });
}

/// A renewal that has found another version is decided on that, which may be some time before it is written.
#[test]
fn a_renewal_counts_by_the_clock_of_the_server_if_that_of_this_host_stood_still_after_a_conflict() {
    let server = Kubernetes::with_fault("clock-jumps-4");
    on_one_thread(async {
        let [mut holder, mut waiter] = [(); 2].map(|()| Client::at(&server.url(), "x"));
        holder.acquire().await;
        waiter.queue().await;
        assert_eq!(counts(&server)[1..3], [1, 1], "a renewal takes the third write and the fourth");
        // Otherwise a renewal within a second need not be written.
        holder.claim.ttl += Duration::from_secs(1);
        let least = least_after_a_jump();
        assert!(matches!(holder.renew().await, Renewal::Held { .. }));
        let ends = server.ledger("x").holders[0].lease_ends.expect("a lease");
        assert!(ends >= least, "{ends:?} is before {least:?}");
    });
}

/// A new connection, for instance, may take that long.
#[test]
fn a_lease_counts_from_the_claim_and_not_from_what_the_watch_has_shown() {
    let server = Kubernetes::lent();
    on_one_thread(async {
        let [mut holder, mut waiter] = [(); 2].map(|()| Client::at(&server.url(), "x"));
        holder.acquire().await;
        waiter.queue().await;
        holder.release().await;
        waiter.await_turn().await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        let claimed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        waiter.claim_turn().await;
        let ends = server.ledger("x").holders[0].lease_ends.expect("a lease");
        assert!(ends >= claimed + LONG, "{ends:?} is before {:?}", claimed + LONG);
    });
}

/// The crontabs of a fleet fire in the same second.
#[test]
fn clients_that_do_not_wait_send_three_requests_each() {
    const CLIENTS: usize = 200;
    let server = Kubernetes::start();
    let before = counts(&server);
    on_one_thread(async {
        let mut clients = clients(&server, CLIENTS);
        let attempts = join_all(clients.iter_mut().map(Client::try_acquire)).await;
        let granted = attempts.iter().filter(|attempt| matches!(attempt, Attempt::Granted(_))).count();
        assert_eq!(granted, 1, "{attempts:?}");
    });
    // One client never reads after its write, so that no client can have sent a fourth one unless another sent fewer.
    let [reads, creations, updates, ..] = since(&server, before);
    assert!(reads <= 2 * CLIENTS as u64 && creations <= CLIENTS as u64, "{reads} {creations}");
    assert_eq!(updates, 0);
}

#[test]
fn fifty_waiters_that_have_joined_only_watch_and_no_renewal_fails() {
    let server = Kubernetes::lent();
    on_one_thread(async {
        let mut holder = Client::at(&server.url(), "x");
        holder.acquire().await;
        let mut waiters = clients(&server, 50);
        {
            let joining = join_all(waiters.iter_mut().map(Client::queue));
            tokio::pin!(joining);
            loop {
                tokio::select! {
                    biased;
                    _ = &mut joining => break,
                    () = tokio::time::sleep(Duration::from_millis(500)) => {
                        let renewal = holder.renew().await;
                        assert!(matches!(renewal, Renewal::Held { .. }), "{renewal:?}");
                    }
                }
            }
        }
        let before = counts(&server);
        // Heartbeats: they only read.
        join_all(waiters.iter_mut().map(Client::queue)).await;
        let [_, creations, updates, ..] = since(&server, before);
        assert_eq!((creations, updates), (0, 0));
        assert!(matches!(holder.renew().await, Renewal::Held { .. }));
    });
}

/// What the watch has shown is not read again.
#[test]
fn a_waiter_that_is_called_claims_the_lock_in_one_request() {
    let server = Kubernetes::lent();
    on_one_thread(async {
        let mut holder = Client::at(&server.url(), "x");
        holder.acquire().await;
        let mut waiter = Client::at(&server.url(), "x");
        waiter.queue().await;
        assert_eq!(waiter.notification_within(Duration::from_millis(300)).await, []);
        // It finds out that there is a waiter.
        holder.renew().await;
        let before = counts(&server);
        holder.release().await;
        waiter.await_turn().await;
        waiter.claim_turn().await;
        assert_eq!(since(&server, before), [0, 0, 2, 0, 0]);
    });
}
