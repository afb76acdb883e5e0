//! Memcached: dlocks are killed, and their connections fail. The server itself is neither killed nor stopped: it would
//! forget all locks, or its clock would be late.

use super::fault_plan::{NAMES, Rng};
use super::{network, number};
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::running::{Exit, Output, Running};
use crate::support::wait::boot_ns;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// At a time.
const CROWD: usize = 6;
/// The fewest names with as many waiters for each.
const LOCKS: usize = 2;
/// Time limit for the last of them.
const DRAIN: Duration = Duration::from_secs(90);

/// Starts a run on a random lock. Its command takes a lock of the kernel's, which it and its descendants keep until they
/// are dead, and notes if another command has it.
fn start(place: &Place, url: &str, draw: &mut Rng) -> Running {
    let name = NAMES[draw.between(0, LOCKS - 1)];
    let work = draw.between(50, 5000);
    let text = format!(
        "flock -n -E 99 witness.{name} sh -c 'echo {name} >>ran; sleep {}.{:03}'; [ $? != 99 ] || echo {name} >>overlapped",
        work / 1000,
        work % 1000
    );
    let wait = ["0", "1s", "30s"][draw.between(0, 2)];
    let min_hold = ["0", "2s"][draw.between(0, 1)];
    let options = ["-q", "--ttl", "3s", "--wait", wait, "--min-hold", min_hold];
    place.run().backend(url).args(options).name(name).sh(&text).spawn()
}

#[track_caller]
fn assert_good(output: &Output) {
    let expected = [Exit::Code(0), Exit::Code(69), Exit::Code(75), Exit::Code(76), Exit::by(Signal::SIGKILL)];
    assert!(expected.contains(&output.exit), "{output:?}");
}

#[test]
fn nothing_overlaps_on_memcached() {
    let (place, memcached) = (Place::new(), Memcached::start());
    let proxy = Proxy::to(memcached.port());
    let url = format!("memcached://127.0.0.1:{}", proxy.port());
    let span = Duration::from_secs(number("DLOCK_TEST_RANDOM_SECONDS").unwrap_or(120)) / 4;
    let seed = number("DLOCK_TEST_RANDOM_SEED").unwrap_or_else(boot_ns);
    // Shown when the test fails.
    println!("DLOCK_TEST_RANDOM_SEED={seed}");
    let mut draw = Rng::from(seed);
    let (begin, mut crowd, mut ended) = (Instant::now(), Vec::new(), 0);
    while begin.elapsed() < span {
        while crowd.len() < CROWD {
            crowd.push(start(&place, &url, &mut draw));
        }
        std::thread::sleep(draw.millis(20, 500));
        match draw.between(0, 6) {
            choice @ 0..=3 => {
                network::disturb(&proxy, choice);
                std::thread::sleep(draw.millis(50, 4000));
                network::heal(&proxy);
            }
            4 => proxy.lose_reply_after(draw.between(0, 3)),
            _ => crowd[draw.between(0, CROWD - 1)].signal(Signal::SIGKILL),
        }
        crowd.retain_mut(|run| run.poll().map(assert_good).is_none());
        ended += CROWD - crowd.len();
    }
    for run in &mut crowd {
        assert_good(&run.wait_within(DRAIN));
    }
    let ran = place.read("ran").lines().count();
    println!("{} runs, {ran} of which ran their commands", ended + crowd.len());
    assert_eq!(place.read("overlapped"), "");
    assert!(ran >= LOCKS * 2, "{ran}");
    for name in &NAMES[..LOCKS] {
        let run = place.run().backend(&url).args(["-q", "--wait", "forever"]).name(name).sh("echo ran");
        assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""), "the last run on {name}");
        assert_eq!(memcached.get(&format!("dlock:{name}")), None);
    }
}
