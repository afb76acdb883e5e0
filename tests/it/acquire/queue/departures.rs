//! S05: signals to a waiter in the queue.

use super::fixture::{Queue, assert_ran, go_on, stop};
use crate::support::SOON;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Signals that end dlock while it waits.
const ENDING: [Signal; 7] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

/// S05
#[test]
fn a_terminated_waiter_leaves_the_queue() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let mut last = queue.waiter("last");
        // At the head, where it has more to do, and behind.
        for at_the_head in [false, true] {
            for signal in ENDING {
                let mut leaver = queue.waiter("leaver");
                let mut others = Vec::new();
                if at_the_head {
                    let before = std::mem::replace(&mut last, queue.waiter("last"));
                    others.push(before);
                    others[0].signal(Signal::SIGTERM);
                    assert_eq!(others[0].wait().exit, Exit::by(Signal::SIGTERM));
                    queue.await_order(&[&leaver, &last]);
                }
                let begun = Instant::now();
                leaver.signal(signal);
                let output = leaver.wait_within(Duration::from_secs(10));
                // Gone when dlock has ended, not some time later.
                assert_eq!(queue.pids(), [last.pid()], "after {signal}");
                assert_eq!(output.outcome(), (Exit::by(signal), "", ""));
                println!("{signal}: left after {} ms", begun.elapsed().as_millis());
                leaver.marker().await_end();
            }
        }
        queue.let_go("holder");
        assert_ran([&mut holder, &mut last]);
        queue.assert_turns(&["holder", "last"]);
        queue.assert_nothing_left();
    }
}

/// S05: the locks that it already holds are released.
#[test]
fn a_terminated_waiter_releases_the_locks_it_holds() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        // In the order of their names, whatever the order of the arguments.
        let both = queue.run().arg("x").name("a").command(["touch", &queue.store.place.arg("ran")]);
        let mut both = queue.joined(both);
        let other = || queue.store.run_with_ttl("60s").name("a").command(["true"]).output();
        assert_eq!(other().exit, Exit::Code(75), "a is held while x is waited for");
        both.signal(Signal::SIGTERM);
        assert_eq!(both.wait().outcome(), (Exit::by(Signal::SIGTERM), "", ""));
        assert_eq!(other().outcome(), (Exit::Code(0), "", ""), "a is free again");
        assert_eq!(queue.pids(), [0; 0]);
        queue.let_go("holder");
        assert_ran([&mut holder]);
        assert!(!queue.store.place.path("ran").exists());
        queue.assert_nothing_left();
    }
}

/// S05
#[test]
fn a_signal_ignored_from_the_start_keeps_the_waiter_in_the_queue() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let mut nohup = queue.joined(queue.passing(queue.run(), "nohup").wrapped_by(["nohup"]));
        let ignoring = queue.passing(queue.run(), "ignoring");
        let ignoring = ENDING.into_iter().fold(ignoring, crate::support::dlock::Dlock::ignoring);
        let mut ignoring = queue.joined(ignoring);
        nohup.signal(Signal::SIGHUP);
        for signal in ENDING {
            ignoring.signal(signal);
        }
        for signal in [Signal::SIGWINCH, Signal::SIGCONT, Signal::SIGCHLD, Signal::SIGURG] {
            nohup.signal(signal);
            ignoring.signal(signal);
        }
        throughout(Duration::from_millis(300), "both are queued", || {
            queue.pids() == [nohup.pid(), ignoring.pid()]
        });
        queue.let_go("holder");
        assert_ran([&mut holder, &mut ignoring]);
        assert_eq!(nohup.wait().exit, Exit::Code(0));
        queue.assert_turns(&["holder", "nohup", "ignoring"]);
        queue.assert_nothing_left();
    }
}

/// S05: stopped for less than the lifetime of its position, it loses nothing.
#[test]
fn a_waiter_continued_before_its_turn_has_kept_its_position() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let [mut a, mut b] = ["a", "b"].map(|name| queue.waiter(name));
        for run in [&a, &b] {
            run.signal(Signal::SIGTSTP);
            until(SOON, "a stopped waiter", || process::stopped(run.pid()));
        }
        queue.await_order(&[&a, &b]);
        a.signal(Signal::SIGCONT);
        b.signal(Signal::SIGCONT);
        for run in [&a, &b] {
            until(SOON, "a waiter that goes on", || !process::stopped(run.pid()));
        }
        queue.await_order(&[&a, &b]);
        queue.let_go("holder");
        assert_ran([&mut holder, &mut a, &mut b]);
        queue.assert_turns(&["holder", "a", "b"]);
        queue.assert_nothing_left();
    }
}

/// S05: stopped for longer than the lifetime of a silent position; the waiters behind do not wait for it at all.
#[test]
fn a_stopped_waiter_whose_position_expired_rejoins_at_the_end() {
    let queue = Queue::of(crate::support::store::Store::redis()).ttl("4s");
    let mut holder = queue.keeping(queue.store.run_with_ttl("60s"), "holder").spawn();
    holder.await_ready();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| queue.waiter(name));
    a.signal(Signal::SIGTSTP);
    queue.await_order(&[&b, &c]);
    a.signal(Signal::SIGCONT);
    queue.await_order(&[&b, &c, &a]);
    queue.let_go("holder");
    assert_ran([&mut holder, &mut b, &mut c, &mut a]);
    queue.assert_turns(&["holder", "b", "c", "a"]);
    queue.assert_nothing_left();
}

/// S05: its turn comes while it is stopped, and then that of another; afterwards it is served when it returns.
#[test]
fn a_waiter_stopped_during_its_turn_rejoins_at_the_end() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let (mut a, mut b) = (queue.waiter("a"), queue.keeper("b"));
        a.signal(Signal::SIGTSTP);
        until(SOON, "a stopped waiter", || process::stopped(a.pid()));
        queue.let_go("holder");
        queue.await_turn("b");
        let mut c = queue.waiter("c");
        queue.await_order(&[&c]);
        a.signal(Signal::SIGCONT);
        queue.await_order(&[&c, &a]);
        queue.let_go("b");
        assert_ran([&mut holder, &mut b, &mut c, &mut a]);
        queue.assert_turns(&["holder", "b", "c", "a"]);
        queue.assert_nothing_left();
    }
}

/// S05
#[test]
fn a_waiter_killed_while_stopped_blocks_no_other() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let [mut a, mut b] = ["a", "b"].map(|name| queue.waiter(name));
        stop(&a);
        a.signal(Signal::SIGTERM);
        // A stopped process is notified when it continues.
        go_on(&a);
        assert_eq!(a.wait().outcome(), (Exit::by(Signal::SIGTERM), "", ""));
        queue.await_order(&[&b]);
        queue.let_go("holder");
        assert_ran([&mut holder, &mut b]);
        queue.assert_turns(&["holder", "b"]);
        queue.assert_nothing_left();
    }
}

/// S05: nothing can be released then; what is left ends with its lease.
#[test]
fn a_terminated_waiter_ends_even_if_the_store_hangs() {
    use crate::support::redis::Redis;
    use crate::support::store::Store;
    let redis = Redis::start();
    let queue = Queue::of(Store::on(&redis)).ttl("2s");
    redis.command(&["SET", "dlock:x", "somebody else's", "PX", "600000"]);
    let mut waiters = ["a", "b", "c"].map(|name| queue.waiter(name));
    redis.stop();
    for (waiter, signal) in waiters.iter_mut().zip(ENDING) {
        let begun = Instant::now();
        waiter.signal(signal);
        assert_eq!(waiter.wait().outcome(), (Exit::by(signal), "", ""));
        let took = begun.elapsed();
        println!("{signal}: gone after {} ms", took.as_millis());
        // Two seconds are promised; the rest is for a busy machine.
        assert!(took <= Duration::from_secs(10), "{took:?}");
    }
    redis.resume();
    until(SOON, "the end of their places", || queue.pids().is_empty());
    redis.command(&["DEL", "dlock:x"]);
    let mut next = queue.passing(queue.store.run_with_ttl("60s"), "next").spawn();
    assert_ran([&mut next]);
    queue.assert_turns(&["next"]);
    queue.assert_nothing_left();
}
