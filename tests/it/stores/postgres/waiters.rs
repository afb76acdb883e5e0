//! What waiters cost a server.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::crowds::ten_hand_offs;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use std::time::{Duration, Instant};

/// The number of waiters.
const JOINED: &str = "SELECT coalesce(sum(json_array_length(entries::json -> 'line')), 0) FROM dlock_locks";

/// With the default number of connections, of which some are reserved.
#[test]
fn eighty_waiters_fit_into_the_default_number_of_connections() {
    assert_eighty_waiters_are_served("recipe=table");
}

#[test]
fn eighty_waiters_for_an_advisory_lock_fit_as_well() {
    assert_eighty_waiters_are_served("recipe=advisory");
}

#[track_caller]
fn assert_eighty_waiters_are_served(options: &str) {
    const WAITERS: usize = 80;
    let plan = Plan { settings: vec!["max_connections=100".to_owned()], ..Plan::default() };
    let (server, place) = (Postgres::start_with(plan), Place::new());
    let run = || place.run().backend(format!("{}?{options}", server.url()));
    let mut holder = run().stdin(std::process::Stdio::piped()).sh("echo ready; read line").spawn();
    holder.await_ready();
    let waiting = || run().args(["--wait", "300s"]).sh("echo ran >> log").spawn();
    let mut waiters: Vec<_> = (0..WAITERS).map(|_| waiting()).collect();
    until(SOON * 4, "all waiters", || server.sql(JOINED) == WAITERS.to_string());
    drop(holder.take_stdin());
    for waiter in &mut waiters {
        assert_eq!(waiter.wait_within(SOON * 10).outcome(), (Exit::Code(0), "", ""));
    }
    assert_eq!(place.read("log").lines().count(), WAITERS);
}

/// The waiter that is called, and the one behind it: a hand-off costs the same, however many clients wait.
#[test]
fn a_hand_off_concerns_two_waiters() {
    let mut costs = Vec::new();
    for waiters in [2, 60] {
        let server = Postgres::lent();
        let proxy = Proxy::to(server.port());
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
        let replies = || proxy.replies() as u64;
        costs.push(on_one_thread(ten_hand_offs(|| Client::at(&url, "x"), waiters, replies)));
    }
    // Replies to the release and to the claim, and two notifications. If each waiter were notified, or asked, it would be
    // hundreds.
    assert!(costs[1] <= 10 * 12, "messages for 10 hand-offs: {costs:?}");
}

/// The first is notified, and the second soon after it; each one behind them only shows that it is alive.
#[test]
fn a_waiter_behind_the_second_asks_once_per_lease() {
    const LEASES: u32 = 2;
    const TTL: Duration = Duration::from_secs(6);
    let (server, place) = (Postgres::lent(), Place::new());
    let proxies: Vec<Proxy> = (0..5).map(|_| Proxy::to(server.port())).collect();
    let run = |url: &str| place.run().backend(url).args(["--ttl", "6s", "--wait", "300s"]);
    let mut holder =
        run(&server.url()).stdin(std::process::Stdio::piped()).sh("echo ready; read line").spawn();
    holder.await_ready();
    let mut waiters = Vec::new();
    for (ahead, proxy) in proxies.iter().enumerate() {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
        waiters.push(run(&url).sh("true").spawn());
        until(SOON, "a waiter", || server.sql(JOINED) == (ahead + 1).to_string());
    }
    let began = Instant::now();
    let before: Vec<usize> = proxies.iter().map(Proxy::replies).collect();
    throughout(TTL * LEASES, "all waiters", || waiters.iter_mut().all(|waiter| waiter.poll().is_none()));
    assert_eq!(server.sql(JOINED), "5");
    let asked: Vec<usize> =
        proxies.iter().zip(before).map(|(proxy, before)| proxy.replies() - before).collect();
    // One more at the end, and a reply may arrive in two pieces. On a busy machine more leases have passed.
    let leases = usize::try_from(began.elapsed().as_secs() / TTL.as_secs()).unwrap() + 1;
    let most = (leases + 1) * 2;
    assert!(asked[2..].iter().all(|count| (1..=most).contains(count)), "{asked:?}");
    drop(holder.take_stdin());
    for waiter in &mut waiters {
        assert_eq!(waiter.wait_within(SOON).outcome(), (Exit::Code(0), "", ""));
    }
}

/// `CREATE INDEX CONCURRENTLY` waits for every older snapshot, and VACUUM keeps the rows that one of them may see.
#[track_caller]
pub fn assert_waiters_keep_no_snapshot(server: &Postgres, run: impl Fn() -> Dlock) {
    server.sql("CREATE TABLE indexed (number integer)");
    let index = format!("psql -Xq '{}' -c 'CREATE INDEX CONCURRENTLY ON indexed (number)'", server.url());
    let command = format!("echo ready; read line; {index}");
    let mut holder = run().stdin(std::process::Stdio::piped()).sh(&command).spawn();
    holder.await_ready();
    let mut waiters: Vec<_> = (0..3).map(|_| run().args(["--wait", "300s"]).sh("true").spawn()).collect();
    until(SOON, "all waiters", || server.sql(JOINED) == "3");
    let snapshots = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> \
                     pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)";
    // A statement has one while it runs.
    until(SOON, "no snapshot", || server.sql(snapshots) == "0");
    drop(holder.take_stdin());
    assert_eq!(holder.wait_within(SOON).outcome(), (Exit::Code(0), "ready\n", ""));
    for waiter in &mut waiters {
        assert_eq!(waiter.wait_within(SOON).outcome(), (Exit::Code(0), "", ""));
    }
}

#[test]
fn a_waiter_keeps_no_snapshot() {
    let (server, place) = (Postgres::start(), Place::new());
    assert_waiters_keep_no_snapshot(&server, || place.run().backend(server.url()));
}

#[test]
fn several_clients_create_the_table_together() {
    let (server, place) = (Postgres::start(), Place::new());
    for _ in 0..8 {
        let run = || place.run().backend(server.url()).args(["--wait", "120s"]).sh("true").spawn();
        let mut runs: Vec<_> = (0..8).map(|_| run()).collect();
        for run in &mut runs {
            assert_eq!(run.wait_within(SOON).outcome(), (Exit::Code(0), "", ""));
        }
        server.sql("DROP TABLE dlock_locks");
    }
}

/// "too many clients" is transient.
#[test]
fn a_server_without_a_free_connection_is_asked_again() {
    let plan = Plan { settings: vec!["max_connections=6".into()], ..Plan::default() };
    let (server, place) = (Postgres::start_with(plan), Place::new());
    let mut runs: Vec<_> = (0..12)
        .map(|_| place.run().backend(server.url()).args(["--wait", "120s"]).sh("echo ran >> log").spawn())
        .collect();
    for run in &mut runs {
        let output = run.wait_within(SOON * 4);
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), ""), "{}", output.stderr);
    }
    assert_eq!(place.read("log").lines().count(), 12);
}

/// After the connection, an acquire and a release take one round trip each.
#[test]
fn an_uncontended_lock_takes_one_round_trip_each() {
    let server = Postgres::lent();
    let proxy = Proxy::to(server.port());
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
    let run = || Dlock::run().backend(&url).sh("true").output();
    assert_eq!(run().outcome(), (Exit::Code(0), "", ""));
    let before = proxy.replies();
    assert_eq!(run().outcome(), (Exit::Code(0), "", ""));
    // One to the question for TLS, one to the start of the session, without a password, and one to the check of the table.
    assert_eq!(proxy.replies() - before, 2 + 1 + 2);
}
