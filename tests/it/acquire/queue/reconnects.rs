//! F39: a store that goes down, and returns, while many clients wait.

use super::crowd::{Crowd, LONG};
use super::fixture::{Queue, assert_ran};
use crate::support::SOON;
use crate::support::proxy::Proxy;
use crate::support::redis::{Options, Redis};
use crate::support::store::Store;
use crate::support::wait::until;
use std::time::{Duration, Instant};

const CROWD: usize = 200;

/// Number of attempted connections at each moment.
struct Attempts {
    begin: Instant,
    seen: Vec<(Duration, usize)>,
}

impl Attempts {
    fn begin(proxy: &Proxy) -> Self {
        Self { begin: Instant::now(), seen: vec![(Duration::ZERO, proxy.attempts())] }
    }

    fn look(&mut self, proxy: &Proxy) {
        self.seen.push((self.begin.elapsed(), proxy.attempts()));
    }

    fn total(&self) -> usize {
        self.seen[self.seen.len() - 1].1 - self.seen[0].1
    }

    /// The time between these two of them, or more: from the last look before the first one to the first look after the
    /// last one.
    #[track_caller]
    fn at_most_between(&self, first: usize, last: usize) -> Duration {
        let reached = |count: usize| {
            self.seen.iter().position(|(_, made)| made - self.seen[0].1 >= count).expect("so many attempts")
        };
        self.seen[reached(last)].0 - self.seen[reached(first).saturating_sub(1)].0
    }

    /// The most within a span of time.
    fn most_within(&self, span: Duration) -> usize {
        let within = |(index, (begin, before)): (usize, &(Duration, usize))| {
            let last = self.seen[index..].iter().rfind(|(at, _)| *at <= *begin + span);
            last.map_or(0, |(_, made)| made - before)
        };
        self.seen.iter().enumerate().map(within).max().unwrap_or(0)
    }
}

/// F39
#[test]
fn two_hundred_waiters_reconnect_gradually_and_in_order() {
    let mut redis = Redis::start_with(Options { persistent: true, ..Options::default() });
    let queue = Queue::of(Store::on(&redis));
    let proxy = Proxy::to(redis.port());
    let mut holder = queue.holder("holder");
    let crowd = Crowd::in_line(&queue.behind(proxy.port()), CROWD);
    let order = crowd.order(&queue);
    redis.kill();
    let mut attempts = Attempts::begin(&proxy);
    let mut watch = |span: Duration| {
        until(LONG, "the end of a span of time", || {
            attempts.look(&proxy);
            attempts.begin.elapsed() >= span
        });
    };
    watch(Duration::from_secs(4));
    redis.restart();
    watch(Duration::from_secs(6));
    until(LONG, "everybody back", || {
        attempts.look(&proxy);
        redis.command(&["PUBSUB", "CHANNELS", "*"]).texts().len() == CROWD
    });
    // Nine in ten of the first ones, so that second attempts do not matter.
    let spread = attempts.at_most_between(CROWD / 10, CROWD * 9 / 10);
    let most = attempts.most_within(Duration::from_secs(1));
    let burst = attempts.most_within(Duration::from_millis(100));
    println!(
        "{} attempts in {:?}, at most {most} in a second, {burst} in a tenth of one; the first were spread over {spread:?}",
        attempts.total(),
        attempts.begin.elapsed(),
    );
    // Half a second is meant; without it they would come within some milliseconds.
    assert!(spread >= Duration::from_millis(200), "{spread:?}");
    assert!(most <= 2 * CROWD, "{most} attempts within a second");
    assert!(burst <= CROWD / 2, "{burst} attempts within a tenth of a second");
    assert_eq!(crowd.order(&queue), order);
    queue.let_go("holder");
    crowd.assert_served(&queue, &order);
    assert_ran([&mut holder]);
    queue.assert_nothing_left();
}

/// F39: for each of them alone.
#[test]
fn a_waiter_tries_a_lost_store_at_most_twice_a_second() {
    let redis = Redis::start();
    let queue = Queue::of(Store::on(&redis));
    let proxy = Proxy::to(redis.port());
    let mut holder = queue.holder("holder");
    let mut waiter = queue.behind(proxy.port()).waiter("waiter");
    // A server that ends a connection before its first reply is examined over others.
    until(SOON, "the first reply to the waiter", || proxy.delivered_replies() > 0);
    proxy.refuse();
    let mut attempts = Attempts::begin(&proxy);
    until(LONG, "a while", || {
        attempts.look(&proxy);
        attempts.begin.elapsed() >= Duration::from_secs(8)
    });
    // And one that may come at once.
    let (total, most) = (attempts.total(), attempts.most_within(Duration::from_secs(2)));
    assert!((2..=16).contains(&total) && most <= 5, "{:?}", attempts.seen);
    waiter.assert_running();
    proxy.heal();
    queue.let_go("holder");
    assert_ran([&mut holder, &mut waiter]);
    queue.assert_turns(&["holder", "waiter"]);
    queue.assert_nothing_left();
}
