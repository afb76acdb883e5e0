//! Two hosts that share a Redis.

use super::network::{KEY, Network};
use super::{MIN_HOLD, await_end_of_command, be_late};
use crate::support::SOON;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use std::time::Duration;

/// A lease that ends during the test, and that gives a job without its store some seconds.
const LEASE: [&str; 4] = ["--ttl", "6s", "--grace", "100ms"];

/// A short job.
const SHORT_JOB: &str = "hostname >>ran";

/// A job that lasts until the test ends it.
const JOB: &str = "hostname >>ran; until [ -e go ]; do sleep 0.05; done; touch ended";

/// A job on the first host, whose lease has been renewed this many times when the store becomes unreachable.
#[track_caller]
fn cut_off(network: &Network, options: &[&str], renewals: usize) -> Running {
    let run = network.run(0, options, JOB).spawn();
    until(SOON, "the job", || network.place.read("ran") == "web-1\n");
    network.await_questions(renewals);
    network.unplug(0);
    run
}

/// A job that has ended on a host that dies at this moment: its end is not reported to the store.
#[track_caller]
fn die_after_the_job(network: &Network, options: &[&str], renewals: usize) {
    let mut run = cut_off(network, options, renewals);
    network.place.write("go", "");
    await_end_of_command(&run, &network.place);
    network.kill(0);
    run.wait();
    until(SOON, "the end of everybody on it", || run.marker().bearers().is_empty());
}

#[test]
fn a_second_host_with_a_late_clock_does_not_repeat_a_short_job() {
    let network = Network::new();
    // It returns before min hold ends: the store keeps the lock.
    network.fire(0, &MIN_HOLD, SHORT_JOB);
    be_late();
    network.fire(1, &MIN_HOLD, SHORT_JOB);
    assert_eq!(network.place.read("ran"), "web-1\n");
    let left = network.command(&["PTTL", KEY]).int();
    assert!((1..=48_000).contains(&left), "{left} ms are left");
    // Without `-q` and `-E`, dlock reports why.
    let asking = network.run(1, &MIN_HOLD, SHORT_JOB).output();
    assert_eq!((asking.exit, asking.stdout.as_str()), (Exit::Code(75), ""));
    assert!(asking.stderr.starts_with("dlock: minutely ran on web-1 until "), "{}", asking.stderr);
    assert!(asking.stderr.ends_with(" by --min-hold; not waiting\n"), "{}", asking.stderr);
}

#[test]
fn without_min_hold_the_job_runs_on_both_hosts() {
    let network = Network::new();
    network.fire(0, &[], SHORT_JOB);
    be_late();
    network.fire(1, &[], SHORT_JOB);
    assert_eq!(network.place.read("ran"), "web-1\nweb-2\n");
}

/// Whether the lease is still the first one, or was renewed: it is not shorter than the least time.
#[track_caller]
fn a_dead_host_excludes_the_others(renewals: usize) {
    let network = Network::new();
    die_after_the_job(&network, &[&LEASE[..], &MIN_HOLD].concat(), renewals);
    throughout(Duration::from_secs(7), "the lock outlives its lease", || network.is_held());
    network.fire(1, &[&LEASE[..], &MIN_HOLD].concat(), JOB);
    assert_eq!(network.place.read("ran"), "web-1\n");
}

#[test]
fn a_host_that_dies_after_its_job_excludes_the_others_for_min_hold() {
    a_dead_host_excludes_the_others(0);
}

#[test]
fn a_host_that_dies_after_a_longer_job_excludes_the_others_for_min_hold() {
    a_dead_host_excludes_the_others(1);
}

#[test]
fn without_min_hold_a_dead_host_excludes_the_others_only_for_its_lease() {
    let network = Network::new();
    die_after_the_job(&network, &LEASE, 0);
    until(SOON, "the end of the lease", || !network.is_held());
    network.fire(1, &LEASE, JOB);
    assert_eq!(network.place.read("ran"), "web-1\nweb-2\n");
}

/// The deadline is that of the ttl, whether the lease is still the first one or was renewed.
#[track_caller]
fn a_job_without_its_store_is_dead_long_before_min_hold_ends(renewals: usize) {
    let network = Network::new();
    let mut run = cut_off(&network, &[&LEASE[..], &MIN_HOLD].concat(), renewals);
    assert_eq!(run.wait_within(Duration::from_secs(20)).exit, Exit::Code(76));
    assert!(network.is_held(), "for whoever comes within the least time");
    assert!(!network.place.path("ended").exists());
}

#[test]
fn a_job_that_loses_its_store_at_once_is_dead_long_before_min_hold_ends() {
    a_job_without_its_store_is_dead_long_before_min_hold_ends(0);
}

#[test]
fn a_job_that_loses_its_store_later_is_dead_long_before_min_hold_ends() {
    a_job_without_its_store_is_dead_long_before_min_hold_ends(1);
}
