//! How often the store is asked.

use super::scene::Scene;
use crate::support::running::Exit;
use std::time::{Duration, Instant};

#[test]
fn one_flight_before_the_command_and_one_to_release() {
    for push in [true, false] {
        let scene = if push { Scene::new() } else { Scene::new().without_push() };
        let output = scene.run().sh("exit 3").output();
        assert_eq!(output.outcome(), (Exit::Code(3), "", ""));
        let flights = scene.proxy.flights();
        let names: Vec<_> = flights.iter().map(crate::support::flight::Flight::names).collect();
        let first: &[&str] = if push { &["HELLO", "CLIENT", "EVAL"] } else { &["EVAL"] };
        assert_eq!(names, [first, &["EVALSHA"]], "{flights:?}");
        assert_eq!(scene.proxy.attempts(), 1, "one connection is enough");
    }
}

#[test]
fn the_command_starts_after_the_first_flight() {
    // Whatever else is on its way is lost: the command has to be there without it.
    let scene = Scene::new();
    let mut run = scene.leashed(scene.run(), &["ignore-term"]).spawn();
    run.await_ready();
    let before_it = scene.proxy.flights();
    assert_eq!(before_it.len(), 1, "{before_it:?}");
}

#[test]
fn a_holder_asks_at_most_three_times_per_lease() {
    let scene = Scene::new();
    let run = scene.witness();
    scene.await_renewals(1);
    let begun = Instant::now();
    let before: usize = scene.proxy.flights().iter().map(|flight| flight.commands.len()).sum();
    std::thread::sleep(Duration::from_secs(6));
    let asked: usize =
        scene.proxy.flights().iter().map(|flight| flight.commands.len()).sum::<usize>() - before;
    let thirds = usize::try_from(begun.elapsed().as_millis()).unwrap().div_ceil(1000);
    assert!((4..=thirds).contains(&asked), "{asked} requests in {:?}", begun.elapsed());
    scene.assert_undisturbed(run);
}

#[test]
fn a_holder_that_was_told_of_a_change_asks_once() {
    let scene = Scene::new().ttl(600);
    let run = scene.witness();
    let before = scene.leases().len();
    scene.command(&["PEXPIRE", &scene.key(), "300000"]);
    scene.await_renewals(1);
    scene.command(&["PEXPIRE", &scene.key(), "300000"]);
    scene.await_renewals(1);
    assert_eq!(scene.leases().len(), before + 2);
    scene.assert_undisturbed(run);
}
