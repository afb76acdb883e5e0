//! When a test may begin.
//!
//! The harness runs as many tests at a time as it has threads. Most of a test is waiting, but some load every processor,
//! and those of one topic follow one another. So a test begins when only few others run, or when the processors are idle
//! for a part of the time.

use super::stalls;
use std::cell::OnceCell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many tests for each processor run whatever they need.
const ALWAYS: usize = 3;
/// The part of the time in which the processors may be busy when another test begins. More tests than the processors can
/// serve would not end sooner: each has servers of its own, and looks for what it waits for again and again.
const BUSY: f64 = 0.9;
/// How often that is measured: what began before has begun to work by then.
const PERIOD: Duration = Duration::from_millis(100);
/// No test waits longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the test of this thread may begin; returns at once when it has begun already. To be called by what a test
/// does first.
pub fn await_admission() {
    // The harness names its threads after the tests. Threads of a test belong to it.
    if std::thread::current().name().is_some_and(|name| name.contains("::")) {
        ADMITTED.with(|admitted| {
            admitted.get_or_init(Admitted::new);
        });
    }
}

thread_local! {
    static ADMITTED: OnceCell<Admitted> = const { OnceCell::new() };
}

/// A test has ended.
static ENDED: Condvar = Condvar::new();
static RUNNING: Mutex<Tests> = Mutex::new(Tests { running: 0, measured: None });

/// A test that has begun; it ends with its thread.
struct Admitted;

impl Admitted {
    fn new() -> Self {
        stalls::measure();
        let until = Instant::now() + PATIENCE;
        let always = std::thread::available_parallelism().map_or(1, usize::from) * ALWAYS;
        let mut tests = tests();
        while !tests.admit(always, Instant::now() > until) {
            let waited = ENDED.wait_timeout(tests, PERIOD);
            tests = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Self
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        tests().running -= 1;
        ENDED.notify_one();
    }
}

fn tests() -> MutexGuard<'static, Tests> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tests of this process.
struct Tests {
    running: usize,
    measured: Option<(Instant, Ticks)>,
}

impl Tests {
    fn admit(&mut self, always: usize, is_overdue: bool) -> bool {
        let may_begin = self.running < always || is_overdue || self.is_time_left();
        self.running += usize::from(may_begin);
        may_begin
    }

    /// Whether the processors had time left in the period that ends now. Once in a period at most.
    fn is_time_left(&mut self) -> bool {
        if self.measured.as_ref().is_some_and(|(when, _)| when.elapsed() < PERIOD) {
            return false;
        }
        let now = Ticks::read();
        let before = self.measured.replace((Instant::now(), now));
        before.is_some_and(|(_, before)| now.busy_since(before) < BUSY)
    }
}

/// What the kernel counts of all processors together.
#[derive(Clone, Copy)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    fn read() -> Self {
        let text = std::fs::read_to_string("/proc/stat").expect("/proc");
        let line = text.lines().next().expect("a line of all processors");
        // user nice system idle iowait irq softirq steal: guests are counted as users, too.
        let counts: Vec<u64> = line
            .split_ascii_whitespace()
            .skip(1)
            .take(8)
            .map(|count| count.parse().expect("a number"))
            .collect();
        Self { idle: counts[3], all: counts.iter().sum() }
    }

    fn busy_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle);
        if all == 0 { 1.0 } else { 1.0 - idle as f64 / all as f64 }
    }
}
