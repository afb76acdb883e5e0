//! How many requests there are.

use super::fake::{self, Fault, reply, url};
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::stores::host_clock::least_after_a_jump;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::web::Web;
use dlock::backend::ledger::Ledger;
use dlock::backend::{Attempt, Renewal};
use futures_util::future::join_all;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

fn clients(web: &Web, count: usize) -> Vec<Client> {
    (0..count).map(|_| Client::at(&url(web.port()), "x")).collect()
}

/// The key of the lock with this number, in the prefix of [`url`].
fn key_of(number: usize) -> String {
    format!("p/lock-{number}.dlock")
}

fn writes(web: &Web) -> usize {
    web.asked().iter().filter(|asked| asked.method == "PUT").count()
}

/// The crontabs of a fleet fire in the same second.
#[test]
fn clients_that_do_not_wait_send_three_requests_each() {
    let web = fake::start(Fault::Nothing);
    on_one_thread(async {
        let mut clients = clients(&web, 200);
        let attempts = join_all(clients.iter_mut().map(Client::try_acquire)).await;
        let granted = attempts.iter().filter(|attempt| matches!(attempt, Attempt::Granted(_))).count();
        assert_eq!(granted, 1, "{attempts:?}");
    });
    let mut counts = HashMap::<usize, usize>::new();
    web.asked().iter().for_each(|asked| *counts.entry(asked.connection).or_default() += 1);
    assert!(counts.values().all(|count| *count <= 3), "{counts:?}");
}

/// An object is never deleted, so that most of the names are not in use.
#[test]
fn the_objects_of_a_long_list_are_read_over_several_connections() {
    const NAMES: usize = 200;
    let web = Web::start(|asked| {
        if asked.path.starts_with("/b/?") {
            let keys: String = (0..NAMES).map(|number| format!("<Key>{}</Key>", key_of(number))).collect();
            return Some(reply(200, None, format!("<ListBucketResult>{keys}</ListBucketResult>")));
        }
        // As far away as another continent is from a region.
        std::thread::sleep(Duration::from_millis(30));
        Some(reply(200, Some(1), String::from_utf8(Ledger::default().to_json()).expect("JSON")))
    });
    let status = Place::new().bare().env("DLOCK_BACKEND", url(web.port())).arg("status").output();
    assert_eq!(status.exit, Exit::Code(0), "{}", status.stderr);
    let asked = web.asked();
    let read: Vec<_> = asked.iter().filter(|asked| !asked.path.starts_with("/b/?")).collect();
    let objects: HashSet<&str> = read.iter().map(|asked| asked.path.as_str()).collect();
    assert_eq!((read.len(), objects.len()), (NAMES, NAMES));
    let connections: HashSet<usize> = read.iter().map(|asked| asked.connection).collect();
    assert_eq!(connections.len(), 16);
}

/// It may have been paused after it had read the object, and before it wrote it.
#[test]
fn a_decision_is_repeated_if_this_host_stood_still_between_its_read_and_its_write() {
    on_one_thread(async {
        for (request, is_renewed) in [(2, false), (4, true)] {
            let web = fake::start(Fault::ClockJumps(request));
            let mut holder = Client::at(&url(web.port()), "x");
            let mut least = least_after_a_jump();
            holder.acquire().await;
            if is_renewed {
                assert_eq!(web.asked().len(), 2, "a renewal takes the third request and the fourth");
                // Otherwise a renewal within a second need not be written.
                holder.claim.ttl += Duration::from_secs(1);
                least = least_after_a_jump();
                assert!(matches!(holder.renew().await, Renewal::Held { .. }));
            }
            let stored = web.asked().into_iter().rfind(|asked| asked.method == "PUT").expect("a write");
            let ledger = Ledger::parse(&stored.body).expect("a ledger");
            let ends = ledger.holders[0].lease_ends.expect("a lease");
            assert!(ends >= least, "{ends:?} is before {least:?}");
        }
    });
}

#[test]
fn fifty_waiters_that_have_joined_only_read_and_no_renewal_fails() {
    let web = fake::start(Fault::Nothing);
    on_one_thread(async {
        let mut holder = Client::at(&url(web.port()), "x");
        holder.acquire().await;
        let mut waiters = clients(&web, 50);
        holder.renew_while_joining(&mut waiters).await;
        let before = writes(&web);
        // Heartbeats: they only read.
        join_all(waiters.iter_mut().map(Client::queue)).await;
        assert_eq!(writes(&web), before);
        assert!(matches!(holder.renew().await, Renewal::Held { .. }));
    });
}
