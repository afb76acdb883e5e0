//! What happens between two requests of a run: both items are not written in one step.

use super::{LONG, item, url};
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::stores::host_clock::least_after_a_jump;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::dynamodb::{Dynamo, key};
use crate::support::java_lock_client::JavaLockClient;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::wait::until;
use dlock::backend::{Attempt, Release, Renewal};
use serde_json::json;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The outer run has given the item back, and finds out by its second write that somebody is inside.
#[test]
fn a_run_that_enters_a_hold_while_it_is_released_has_its_gate() {
    let (server, mut java) = (Dynamo::lent(), JavaLockClient::new(LONG));
    let [to_outer, to_inner] = [(); 2].map(|()| Proxy::to(server.port()));
    let client =
        |proxy: &Proxy| Client::at(&format!("{}&recipe=lock-client", server.url_by(proxy.port())), "x");
    let is_holding = async |proxy: &Proxy| {
        while !proxy.is_holding() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    on_one_thread(async {
        let [mut outer, mut inner] = [&to_outer, &to_inner].map(client);
        outer.acquire().await;
        inner.claim.outer = vec![outer.claim.token.clone()];
        inner.backend.connect().await.expect("a table");
        // It has read the ledger, and the item, but has not entered.
        to_inner.hold_reply_after(1);
        let entering = inner.try_acquire();
        let releasing = async {
            is_holding(&to_inner).await;
            // It has read the ledger, and given the item back.
            to_outer.hold_reply_after(1);
            let freed = outer.release();
            let entered = async {
                is_holding(&to_outer).await;
                assert_eq!(item(&server)["isReleased"], json!({"S": "1"}));
                to_inner.heal();
                while server.ledger_in("jobs/x%dlock").holders.len() < 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                to_outer.heal();
            };
            tokio::join!(freed, entered).0
        };
        let (attempt, release) = tokio::join!(entering, releasing);
        assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
        assert_eq!(release, Release::Released);
        assert!(!java.take(&server, &key("x")), "the command inside runs");
        assert!(matches!(inner.renew().await, Renewal::Held { .. }));
        assert!(!java.take(&server, &key("x")));
        inner.release().await;
        assert!(java.take(&server, &key("x")));
    });
}

/// It may have been paused after it had read either item, and before it wrote it.
#[test]
fn both_items_are_written_again_if_this_host_stood_still_before_one_of_them_was() {
    let assert_lasts = |server: &Dynamo, least: Duration| {
        let ledger = server.ledger_in("jobs/x%dlock").holders[0].lease_ends.expect("a lease");
        let item: u64 = item(server)["dlockEnds"]["S"].as_str().expect("an end").parse().expect("seconds");
        // It has whole seconds.
        assert!(ledger >= least && item >= least.as_secs(), "{ledger:?} or {item} is before {least:?}");
    };
    on_one_thread(async {
        for (write, is_renewed) in [(1, false), (2, false), (3, true), (4, true)] {
            let server = Dynamo::with_fault(&format!("clock-jumps-{write}"));
            let mut holder = Client::at(&url(&server), "x");
            let mut least = least_after_a_jump();
            holder.acquire().await;
            if is_renewed {
                least = least_after_a_jump();
                assert_eq!(server.count("UpdateItem"), 2, "a renewal takes the third and the fourth");
                assert!(matches!(holder.renew().await, Renewal::Held { .. }));
            }
            assert_lasts(&server, least);
        }
    });
}

/// By a server whose clock is wrong, for instance. The next reply has the right time.
#[test]
fn a_reply_that_is_dated_wrongly_lets_the_item_last_until_the_next_renewal() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
    let ends = |server: &Dynamo| {
        item(server)["dlockEnds"]["S"].as_str().expect("an end").parse::<u64>().expect("seconds")
    };
    on_one_thread(async {
        for min_hold in [0, 7200] {
            let server = Dynamo::with_fault("misdates-3");
            let mut holder = Client::at(&url(&server), "x");
            holder.claim.min_hold = Duration::from_secs(min_hold);
            let kept = now() + min_hold;
            holder.acquire().await;
            assert_eq!(server.count("UpdateItem"), 2, "a renewal takes the third and the fourth");
            assert!(matches!(holder.renew().await, Renewal::Held { .. }));
            assert!(ends(&server) > now() + 3600);
            assert!(matches!(holder.renew().await, Renewal::Held { .. }));
            let (least, ends) = (kept.max(now() + LONG.as_secs()), ends(&server));
            assert!((least..least + 60).contains(&ends), "{ends} is not soon after {least}");
        }
    });
}

/// The one has the item, and its ledger is not written yet.
#[test]
fn a_run_that_was_faster_by_moments_is_not_taken_for_another_program() {
    let server = Dynamo::lent();
    let [to_first, to_second] = [(); 2].map(|()| Proxy::to(server.port()));
    // After the description of the table and the ledger, the reply to the write of the item.
    let run = |proxy: &Proxy, text: &str| {
        proxy.hold_reply_after(2);
        let url = format!("{}&recipe=lock-client", server.url_by(proxy.port()));
        let run = Dlock::run().backend(url).sh(text).spawn();
        until(SOON, "the write of the item", || proxy.is_holding());
        run
    };
    let mut first = run(&to_first, "echo ready; exec sleep 600");
    let mut second = run(&to_second, "echo ran");
    to_first.heal();
    first.await_ready();
    to_second.heal();
    let output = second.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
    let shown = format!("(pid {}, ", first.pid());
    assert!(output.stderr.contains(&shown), "{shown}: {}", output.stderr);
}
