//! How waiters are notified.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::kubernetes::Kubernetes;
use crate::support::wait::until;
use dlock::backend::Change;
use std::time::Duration;

/// The server has forgotten the version after which the watch goes on (410).
#[test]
fn a_waiter_whose_watch_is_over_reads_again_and_watches_again() {
    let server = Kubernetes::start();
    on_one_thread(async {
        let mut holder = Client::at(&server.url(), "x");
        holder.acquire().await;
        let mut waiter = Client::at(&server.url(), "x");
        waiter.queue().await;
        for watches in 1..3 {
            assert_eq!(waiter.notification_within(Duration::from_millis(500)).await, []);
            until(SOON, "the watch", || server.count("watch") == watches);
            server.expire();
            assert_eq!(waiter.notification_within(Duration::from_millis(500)).await, [Change::OurTurn]);
            waiter.queue().await;
        }
        holder.release().await;
        waiter.await_turn().await;
        waiter.claim_turn().await;
    });
}

/// It finds out what it has missed.
#[test]
fn a_waiter_whose_server_was_started_again_is_granted_the_lock() {
    let mut server = Kubernetes::start();
    on_one_thread(async {
        let mut holder = Client::at(&server.url(), "x");
        holder.acquire().await;
        let mut waiter = Client::at(&server.url(), "x");
        waiter.queue().await;
        assert_eq!(waiter.notification_within(Duration::from_millis(500)).await, []);
        server.restart();
        let claim = holder.claim.clone();
        holder = Client::at(&server.url(), "x");
        holder.claim = claim;
        holder.release().await;
        waiter.wait_for_grant().await;
    });
}
