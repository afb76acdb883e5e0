//! F43: the wait expires at the very moment at which the lock becomes free. Either the lock is acquired and reported,
//! or it is not and no trace is left.

use super::fixture::Queue;
use crate::acquire::Patient;
use crate::support::SOON;
use crate::support::race_timing::RaceTiming;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
use dlock::backend::registry;
use dlock::backend::url::Url;
use dlock::backend::{Attempt, Backend, Ending, Intent, Release, Renewal};
use dlock::clock::{Alarm, Moment};
use dlock::lease::acquire::{NotGranted, Patience, Wait, WaitContext, acquire};
use dlock::lease::validity::Terms;
use dlock::lock::{Claim, Identity, LockName, Mode, Token};
use std::cell::Cell;
use std::time::Duration;

const TERMS: Terms = Terms {
    ttl: Duration::from_secs(60),
    grace: Duration::from_secs(5),
    connect_timeout: Duration::from_secs(20),
};

/// A client of the library that claims a lock.
struct Client {
    backend: Box<dyn Backend>,
    claim: Claim,
}

impl Client {
    fn new(url: &str, name: &str) -> Self {
        let location = registry::parse(&Url::parse(url).unwrap(), &|_| None).unwrap();
        let claim = Claim {
            name: LockName::new(name).unwrap(),
            token: Token::random(),
            mode: Mode::Exclusive,
            ttl: TERMS.ttl,
            min_hold: Duration::ZERO,
            outer: Vec::new(),
            requires_outer_hold: false,
            once_per: None,
            // Not of this process, which is an ancestor of every run: waiting for an ancestor is refused.
            identity: Identity { host: "elsewhere".into(), ..Identity::default() },
        };
        Self { backend: location.open(), claim }
    }

    /// Acquires it at once.
    async fn acquire(&mut self) {
        self.backend.connect().await.unwrap();
        let attempt = self.backend.try_acquire(&self.claim, Intent::TakeNow).await;
        assert!(matches!(attempt, Ok(Attempt::Granted(_))), "{attempt:?}");
    }

    async fn renew(&mut self) -> Renewal {
        self.backend.connect().await.unwrap();
        self.backend.renew(&self.claim, Duration::ZERO).await.unwrap()
    }

    async fn release(&mut self) -> Release {
        self.backend.connect().await.unwrap();
        self.backend.release(&self.claim, Duration::ZERO, Ending::default()).await.unwrap()
    }
}

/// How often the lock was acquired, and how often it was not.
#[derive(Debug, Default, Clone, Copy)]
struct OutcomeCounts {
    granted: usize,
    contended: usize,
}

impl OutcomeCounts {
    fn add(self, other: Self) -> Self {
        Self { granted: self.granted + other.granted, contended: self.contended + other.contended }
    }

    /// Asserts that the moment was hit: both happened often.
    #[track_caller]
    fn assert_both(self, tries: usize) {
        println!("{self:?}");
        assert_eq!(self.granted + self.contended, tries);
        assert!(self.granted >= tries / 20 && self.contended >= tries / 20, "{self:?}");
    }
}

/// Numbers that look random, the same in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// Up to this much earlier or later.
    fn jitter(&mut self, range: i64) -> i64 {
        self.below(2 * range as u64) as i64 - range
    }
}

/// One after another, on one lock.
async fn tries(url: &str, name: &str, count: usize) -> OutcomeCounts {
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ name.bytes().fold(1, |sum, byte| sum * 31 + u64::from(byte)));
    let (alarm, other_alarm) = (Alarm::new().unwrap(), Alarm::new().unwrap());
    let (give_up, check_held) =
        (tokio_util::sync::CancellationToken::new(), tokio::sync::watch::Sender::new(()));
    let (mut counts, mut timing) = (OutcomeCounts::default(), RaceTiming::new(200));
    for number in 0..count {
        let (mut holder, mut waiter) = (Client::new(url, name), Client::new(url, name));
        holder.acquire().await;
        let wait = 1_000 + rng.below(7_000);
        let free = timing.moment(wait, rng.jitter(1_000));
        let begin = Moment::now();
        let wait = Wait::For(Duration::from_micros(wait));
        let limits = Patience { wait, retry: Duration::ZERO }.from(begin);
        let released = Cell::new(false);
        let outcome = {
            let around =
                WaitContext { give_up: &give_up, check_held: &check_held, alarm: &alarm, observer: &Patient };
            let waits = acquire(&mut *waiter.backend, &waiter.claim, &limits, &TERMS, &around);
            let ends = async {
                other_alarm.until(begin + free).await;
                released.set(true);
                assert_eq!(holder.release().await, Release::Released);
            };
            tokio::join!(waits, ends).0
        };
        timing.record(outcome.is_ok());
        match outcome {
            Ok(_) => {
                assert!(released.get(), "two held it");
                assert!(matches!(waiter.renew().await, Renewal::Held { .. }), "try {number}: not ours");
                assert_eq!(waiter.release().await, Release::Released);
                counts.granted += 1;
            }
            Err(NotGranted::Contended(_)) => {
                let renewal = waiter.renew().await;
                assert!(matches!(renewal, Renewal::Lost(_)), "try {number}: ours all the same");
                counts.contended += 1;
            }
            Err(other) => panic!("try {number}: {other:?}"),
        }
        // A client without waiting gets it at once: there is no holder and no waiter ahead.
        let mut next = Client::new(url, name);
        next.acquire().await;
        assert_eq!(next.release().await, Release::Released);
    }
    counts
}

/// This many on each of several locks at a time.
fn lanes(url: &str, lanes: usize, count: usize) -> OutcomeCounts {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let set = tokio::task::LocalSet::new();
    set.block_on(&runtime, async {
        let start = |lane| {
            let url = url.to_owned();
            tokio::task::spawn_local(async move { tries(&url, &format!("x{lane}"), count).await })
        };
        let started: Vec<_> = (0..lanes).map(start).collect();
        let mut counts = OutcomeCounts::default();
        for lane in started {
            counts = counts.add(lane.await.unwrap());
        }
        counts
    })
}

/// F43
#[test]
fn a_wait_that_expires_as_a_file_is_unlocked_gets_the_lock_or_leaves_no_trace() {
    let store = Store::file();
    lanes(store.url(), 16, 60).assert_both(960);
    for lane in 0..16 {
        let sidecar = store.place.read(&format!("locks/x{lane}.dlock"));
        let content: serde_json::Value = serde_json::from_str(sidecar.lines().next().unwrap()).unwrap();
        let empty = serde_json::json!([]);
        assert_eq!((&content["members"], &content["line"]), (&empty, &empty), "{sidecar}");
    }
}

/// F43
#[test]
fn a_wait_that_expires_as_a_key_is_deleted_gets_the_lock_or_leaves_no_trace() {
    let redis = crate::support::redis::Redis::start();
    lanes(&redis.url(), 16, 60).assert_both(960);
    let mut left = redis.command(&["KEYS", "*"]).texts();
    left.retain(|key| !crate::support::redis::is_memory(key));
    assert_eq!(left, [""; 0]);
}

/// Real runs, one after another on one lock, each against a holder that ends when the run has waited for about its
/// wait time, which is longer than a busy machine needs for the first request.
fn runs(queue: &Queue, count: usize) -> OutcomeCounts {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut rng = Rng(0xD1CE + queue.store.url().len() as u64);
    let (mut counts, mut timing) = (OutcomeCounts::default(), RaceTiming::new(4_000));
    for _ in 0..count {
        let mut holder = Client::new(queue.store.url(), "x");
        runtime.block_on(holder.acquire());
        let run = queue.store.run_with_ttl("60s").args(["-q", "--wait", "200ms"]).sh("echo ran");
        let mut run = run.spawn();
        until(SOON, "one that waits, or has waited", || !queue.pids().is_empty() || run.poll().is_some());
        std::thread::sleep(timing.moment(180_000, rng.jitter(10_000)));
        assert_eq!(runtime.block_on(holder.release()), Release::Released);
        let granted = match run.wait().outcome() {
            (Exit::Code(0), "ran\n", "") => true,
            (Exit::Code(75), "", "") => false,
            other => panic!("{other:?}"),
        };
        timing.record(granted);
        if granted {
            counts.granted += 1;
        } else {
            counts.contended += 1;
        }
        queue.assert_nothing_left();
    }
    counts
}

/// F43
#[test]
fn a_run_whose_wait_expires_as_the_lock_is_freed_runs_or_leaves_no_trace() {
    const EACH: usize = 30;
    let queues: Vec<Queue> = Queue::each().into_iter().chain(Queue::each()).collect();
    let tallies = std::thread::scope(|scope| {
        let started: Vec<_> = queues.iter().map(|queue| scope.spawn(|| runs(queue, EACH))).collect();
        started.into_iter().map(|lane| lane.join().unwrap()).collect::<Vec<_>>()
    });
    tallies.into_iter().reduce(OutcomeCounts::add).unwrap().assert_both(queues.len() * EACH);
}
