//! Memcached, and the stores that are asked by HTTP: dlocks are killed, and their connections fail. The server of Kubernetes is
//! killed and stopped as well. Memcached would forget all locks then, or its clock would be late.

use super::fault_plan::{NAMES, Rng};
use super::{network, number};
use crate::support::kubernetes::Kubernetes;
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::running::{Exit, Output, Running};
use crate::support::s3::{Bucket, S3};
use crate::support::wait::boot_ns;
use nix::sys::signal::Signal;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// At a time.
const CROWD: usize = 6;
/// The fewest names with as many waiters for each.
const LOCKS: usize = 2;
/// How many of them must run their commands, ...
const ENOUGH: usize = 2 * LOCKS;
/// ... and by how much a busy machine may extend the test until they have.
const EXTENSION: Duration = Duration::from_secs(120);
/// The shortest lease of most stores.
const TTL: &[&str] = &["--ttl", "10s"];
/// Time limit for the last of them.
const DRAIN: Duration = Duration::from_secs(90);

/// Starts a run on a random lock. Its command takes a lock of the kernel's, one for each slot, which it and its descendants keep
/// until they are dead, and notes if another command has it.
fn start(place: &Place, url: &str, options: &[&str], draw: &mut Rng) -> Running {
    let name = NAMES[draw.between(0, LOCKS - 1)];
    let work = draw.between(50, 5000);
    let text = format!(
        "flock -n -E 99 witness.{name}.$DLOCK_SLOT sh -c 'echo {name} >>ran; sleep {}.{:03}'; [ $? != 99 ] || echo {name} >>overlapped",
        work / 1000,
        work % 1000
    );
    let wait = ["0", "1s", "30s"][draw.between(0, 2)];
    let min_hold = ["0", "2s"][draw.between(0, 1)];
    let run = place.run().backend(url).args(options).args(["-q", "--wait", wait, "--min-hold", min_hold]);
    run.name(name).sh(&text).spawn()
}

#[track_caller]
fn assert_good(output: &Output) {
    let expected = [Exit::Code(0), Exit::Code(69), Exit::Code(75), Exit::Code(76), Exit::by(Signal::SIGKILL)];
    assert!(expected.contains(&output.exit), "{output:?}");
}

#[test]
fn nothing_overlaps_on_memcached() {
    let memcached = crate::support::memcached::Memcached::start();
    let is_free = |name: &str| memcached.get(&format!("dlock:{name}")).is_none();
    let at = |port| format!("memcached://127.0.0.1:{port}");
    assert_nothing_overlaps(memcached.port(), at, &["--ttl", "3s"], is_free, |_| {});
}

#[test]
fn nothing_overlaps_on_consul() {
    let consul = crate::support::consul::Consul::lent();
    let is_free = |name: &str| consul.holder(&format!("dlock/{name}/.lock")).is_none();
    let at = |port| format!("consul://127.0.0.1:{port}");
    assert_nothing_overlaps(consul.port(), at, TTL, is_free, |_| {});
}

/// No two commands have the same slot.
#[test]
fn nothing_overlaps_in_a_slot_of_a_semaphore_on_consul() {
    let consul = crate::support::consul::Consul::lent();
    let is_free = |name: &str| consul.value(&format!("dlock/{name}/.lock")).is_none();
    let at = |port| format!("consul://127.0.0.1:{port}?recipe=semaphore");
    let options = ["--ttl", "10s", "--slots", "2"];
    assert_nothing_overlaps(consul.port(), at, &options, is_free, |_| {});
}

#[test]
fn nothing_overlaps_on_s3() {
    let s3 = S3::lent();
    let at = |port| s3.url_by(&format!("http://127.0.0.1:{port}"));
    assert_nothing_overlaps(s3.port(), at, TTL, |name| s3.ledger(name).holders.is_empty(), |_| {});
}

#[test]
fn nothing_overlaps_on_dynamodb() {
    let dynamo = crate::support::dynamodb::Dynamo::lent();
    let is_free = |name: &str| dynamo.ledger(name).holders.is_empty();
    assert_nothing_overlaps(dynamo.port(), |port| dynamo.url_by(port), TTL, is_free, |_| {});
}

#[test]
fn nothing_overlaps_on_dynamodb_with_the_items_of_the_java_client() {
    let dynamo = crate::support::dynamodb::Dynamo::lent();
    let is_free = |name: &str| {
        let key = crate::support::dynamodb::key(name);
        let is_idle = dynamo.ledger_in(&format!("{key}%dlock")).holders.is_empty();
        is_idle && dynamo.item(&key)["isReleased"]["S"] == "1"
    };
    let at = |port| format!("{}&recipe=lock-client", dynamo.url_by(port));
    assert_nothing_overlaps(dynamo.port(), at, TTL, is_free, |_| {});
}

#[test]
fn nothing_overlaps_on_kubernetes() {
    let server = RefCell::new(Kubernetes::start());
    let (port, at) = (server.borrow().port(), |port| server.borrow().url_by(port));
    let is_free = |name: &str| server.borrow().lease(name)["spec"]["holderIdentity"] == "";
    let disturb = |draw: &mut Rng| {
        let (is_killed, span) = (draw.percent(50), draw.millis(50, 4000));
        match is_killed {
            true => server.borrow_mut().kill(),
            false => server.borrow().daemon().stop(),
        }
        std::thread::sleep(span);
        match is_killed {
            true => server.borrow_mut().restart(),
            false => server.borrow().daemon().resume(),
        }
    };
    assert_nothing_overlaps(port, at, &["--ttl", "6s"], is_free, disturb);
}

/// Nothing overlaps on the server with this port, by way of another one, and each lock is free in the end. `disturb` stops or
/// kills the server for a while, if it may.
#[track_caller]
fn assert_nothing_overlaps(
    port: u16,
    url_at: impl Fn(u16) -> String,
    options: &[&str],
    is_free: impl Fn(&str) -> bool,
    disturb: impl Fn(&mut Rng),
) {
    let (place, proxy) = (Place::new(), Proxy::to(port));
    let url = url_at(proxy.port());
    let span = Duration::from_secs(number("DLOCK_TEST_RANDOM_SECONDS").unwrap_or(120)) / 4;
    let seed = number("DLOCK_TEST_RANDOM_SEED").unwrap_or_else(boot_ns);
    // Shown when the test fails.
    println!("DLOCK_TEST_RANDOM_SEED={seed}");
    let mut draw = Rng::from(seed);
    let (begin, mut crowd, mut ended) = (Instant::now(), Vec::new(), 0);
    let ran = || place.read("ran").lines().count();
    // A lock of a killed run is free after its lease only.
    let goes_on = || begin.elapsed() < span || ran() < ENOUGH && begin.elapsed() < span + EXTENSION;
    while goes_on() {
        while crowd.len() < CROWD {
            crowd.push(start(&place, &url, options, &mut draw));
        }
        std::thread::sleep(draw.millis(20, 500));
        match draw.between(0, 7) {
            choice @ 0..=3 => {
                network::disturb(&proxy, choice);
                std::thread::sleep(draw.millis(50, 4000));
                network::heal(&proxy);
            }
            4 => proxy.lose_reply_after(draw.between(0, 3)),
            5 => disturb(&mut draw),
            _ => crowd[draw.between(0, CROWD - 1)].signal(Signal::SIGKILL),
        }
        crowd.retain_mut(|run| run.poll().map(assert_good).is_none());
        ended += CROWD - crowd.len();
    }
    for run in &mut crowd {
        assert_good(&run.wait_within(DRAIN));
    }
    let ran = ran();
    println!("{} runs, {ran} of which ran their commands", ended + crowd.len());
    assert_eq!(place.read("overlapped"), "");
    assert!(ran >= ENOUGH, "{ran}");
    for name in &NAMES[..LOCKS] {
        let run = place.run().backend(&url).args(["-q", "--wait", "forever"]).name(name).sh("echo ran");
        assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""), "the last run on {name}");
        assert!(is_free(name), "{name}");
    }
}
