//! The number of requests to the store.

use super::fixture::Fixture;
use crate::support::flight::Flight;
use crate::support::proxy::Way;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use std::time::{Duration, Instant};

#[test]
fn one_flight_before_the_command_and_one_to_release() {
    for push in [true, false] {
        // No renewal is due before the end of the command.
        let fixture = Fixture::new().ttl(60);
        let fixture = if push { fixture } else { fixture.without_push() };
        let output = fixture.run().sh("exit 3").output();
        assert_eq!(output.outcome(), (Exit::Code(3), "", ""));
        let flights = fixture.proxy.flights();
        let names: Vec<_> = flights.iter().map(crate::support::flight::Flight::names).collect();
        let first: &[&str] = if push { &["HELLO", "CLIENT", "EVALSHA"] } else { &["EVALSHA"] };
        assert_eq!(names, [first, &["EVALSHA"]], "{flights:?}");
        assert_eq!(fixture.proxy.attempts(), 1, "one connection is enough");
    }
}

/// The names of the commands sent, flight by flight.
fn names(flights: &[Flight]) -> Vec<Vec<String>> {
    flights.iter().map(Flight::names).collect()
}

#[test]
fn a_server_is_sent_the_text_of_each_script_once() {
    let redis = Redis::start();
    let fixture = Fixture::on(&redis).ttl(60);
    for flights in [
        &[&["HELLO", "CLIENT", "EVALSHA"][..], &["EVAL"], &["EVAL"]][..],
        &[&["HELLO", "CLIENT", "EVALSHA"], &["EVALSHA"]],
    ] {
        fixture.proxy.forget_flights();
        assert_eq!(fixture.run().sh("exit 3").output().outcome(), (Exit::Code(3), "", ""));
        assert_eq!(names(&fixture.proxy.flights()), flights);
    }
}

/// Without the right to EVALSHA dlock sends the text of the script after the refusal, and at once from then on.
#[test]
fn a_refused_digest_is_not_sent_again_on_the_same_connection() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "job", "on", ">s3cret", "~*", "&*", "+@all", "-evalsha"]);
    let fixture = Fixture::on(&redis).ttl(60).logged_in("job", "s3cret");
    assert_eq!(fixture.run().sh("exit 3").output().outcome(), (Exit::Code(3), "", ""));
    assert_eq!(names(&fixture.proxy.flights()), [&["HELLO", "CLIENT", "EVALSHA"][..], &["EVAL"], &["EVAL"]]);
}

/// F54: what TCP sends before the first acknowledgement, at an MTU of 1,500 (RFC 6928; 52 bytes of each packet are
/// headers and time stamps). A larger flight costs another round trip.
const INITIAL_WINDOW: usize = 10 * 1448;

/// F54: three round trips including that of the connection, the command started after two.
#[test]
fn a_run_takes_two_small_round_trips_on_one_connection() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "job", "on", ">s3cret", "~*", "&*", "+@all"]);
    for user in [None, Some("job")] {
        let fixture = Fixture::on(&redis).ttl(9);
        let fixture = if let Some(user) = user { fixture.logged_in(user, "s3cret") } else { fixture };
        for run in ["which teaches the server the script", "which finds that it knows it"] {
            fixture.proxy.forget_flights();
            let note = "n".repeat(200);
            let output = fixture.run().args(["--note", &note]).sh("exit 3").output();
            assert_eq!(output.outcome(), (Exit::Code(3), "", ""), "{run}");
            let flights = fixture.proxy.flights();
            assert!(flights.iter().all(|flight| flight.connection == flights[0].connection));
        }
        let flights = fixture.proxy.flights();
        assert_eq!(flights.len(), 2, "{flights:?}");
        assert!(flights.iter().all(|flight| flight.bytes <= INITIAL_WINDOW), "{flights:?}");
        let bytes: usize = flights.iter().map(|flight| flight.bytes).sum();
        assert!(bytes <= 2560, "{bytes} bytes as {user:?}: {flights:?}");
    }
}

/// F54: where each round trip takes a second. That of the connection itself is not delayed by the proxy: with it, the
/// command starts after two, and the run ends after three.
#[test]
fn a_distant_server_costs_one_round_trip_to_start_and_one_to_release() {
    let redis = Redis::start();
    let fixture = Fixture::on(&redis).ttl(30);
    assert_eq!(fixture.run().sh("exit 3").output().exit, Exit::Code(3), "the server knows the script now");
    fixture.proxy.forget_flights();
    let before = fixture.proxy.attempts();
    let one_way = Duration::from_millis(500);
    fixture.proxy.delay(Way::Up, one_way);
    fixture.proxy.delay(Way::Down, one_way);
    let mut run = fixture.run().sh("echo ready; exit 3").spawn();
    run.await_ready();
    let started = Instant::now();
    assert_eq!(run.wait().exit, Exit::Code(3));
    let ended = Instant::now();
    let begun = fixture.proxy.flights()[0].at;
    // Whole round trips: what this host adds is a part of one.
    let round_trips = |until: Instant| (until - begun).as_millis() / (2 * one_way).as_millis();
    assert_eq!((round_trips(started), round_trips(ended)), (1, 2));
    assert_eq!(fixture.proxy.attempts() - before, 1, "one connection");
}

#[test]
fn the_command_starts_after_the_first_flight() {
    // Everything else in flight is lost: the command must run without it.
    let fixture = Fixture::new().ttl(60);
    let mut run = fixture.with_inherited_lock(fixture.run(), &["ignore-term"]).spawn();
    run.await_ready();
    let before_it = fixture.proxy.flights();
    assert_eq!(before_it.len(), 1, "{before_it:?}");
}

#[test]
fn a_holder_sends_at_most_three_requests_per_lease() {
    // A busy server has more than a second to reply to a renewal, so that it is not repeated.
    let fixture = Fixture::new().ttl(9);
    let run = fixture.witness();
    fixture.await_renewals(1);
    let begun = Instant::now();
    let requests = || fixture.proxy.flights().iter().map(|flight| flight.commands.len()).sum::<usize>();
    let before = requests();
    fixture.await_renewals(3);
    let asked = requests() - before;
    let thirds = usize::try_from(begun.elapsed().as_millis()).unwrap().div_ceil(3000);
    assert!((3..=thirds).contains(&asked), "{asked} requests in {:?}", begun.elapsed());
    fixture.assert_undisturbed(run);
}

#[test]
fn a_holder_notified_of_a_change_sends_one_request() {
    let fixture = Fixture::new().ttl(600);
    let run = fixture.witness();
    let before = fixture.leases().len();
    fixture.command(&["PEXPIRE", &fixture.key(), "300000"]);
    fixture.await_renewals(1);
    fixture.command(&["PEXPIRE", &fixture.key(), "300000"]);
    fixture.await_renewals(1);
    assert_eq!(fixture.leases().len(), before + 2);
    fixture.assert_undisturbed(run);
}
