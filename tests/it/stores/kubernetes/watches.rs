//! How waiters are notified.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::kubernetes::{Kubernetes, url_of};
use crate::support::place::Place;
use crate::support::wait::until;
use crate::support::web::Web;
use dlock::backend::Change;
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;

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

/// The waiter reads the Lease then.
#[test]
fn what_is_not_an_event_ends_the_watch() {
    let longest = 4 << 20;
    for event in ["[]\n", "7\n", "{}\n", "{\"object\": []}\n", &" ".repeat(longest + 1)] {
        let event = event.to_owned();
        let web = Web::start(move |asked| {
            let mut lease = json!({
                "metadata": { "name": "x" },
                "spec": { "holderIdentity": "c", "leaseDurationSeconds": 600 },
            });
            if asked.method == "PUT" {
                lease = serde_json::from_slice(&asked.body).expect("JSON");
            }
            lease["metadata"]["resourceVersion"] = "1".into();
            let is_watch = asked.path.contains("watch=1");
            let date = ("Date", "Fri, 30 Jan 2026 02:00:00 GMT".to_owned());
            Some((200, vec![date], if is_watch { event.clone() } else { lease.to_string() }))
        });
        let place = Place::new();
        on_one_thread(async {
            let url = url_of(&place.path(""), &format!("http://127.0.0.1:{}", web.port()));
            let mut waiter = Client::at(&url, "x");
            waiter.queue().await;
            let change = timeout(SOON, waiter.backend.changed()).await;
            assert_eq!(change.expect("an end of the watch"), Change::Disconnected);
        });
    }
}
