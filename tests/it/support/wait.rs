//! Waits for events with a deadline, never for a fixed time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pause between two checks of a state that must not change.
const LOOK: Duration = Duration::from_millis(3);

/// The pauses between the checks of a wait: the longer it has lasted, the longer they are, because hundreds of threads may
/// wait at the same time and must leave the processors to what they wait for.
pub struct Pauses(Instant);

impl Pauses {
    /// Starts with the shortest pause.
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Sleeps until the next check.
    pub fn pause(&self) {
        std::thread::sleep(
            (self.0.elapsed() / 25).clamp(Duration::from_millis(1), Duration::from_millis(40)),
        );
    }
}

/// Checks every few milliseconds until `look` finds something, and returns it.
///
/// # Panics
/// When nothing was found within `deadline`; the message names `what` was awaited.
#[track_caller]
pub fn eventually<T>(deadline: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + deadline;
    let pauses = Pauses::begin();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "waited {deadline:?} in vain for: {what}");
        pauses.pause();
    }
}

/// Waits until `holds` is true.
#[track_caller]
pub fn until(deadline: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    eventually(deadline, what, || holds().then_some(()));
}

/// Asserts for the whole of `span` that `holds` stays true: for events that must *not* happen.
#[track_caller]
pub fn throughout(span: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + span;
    while Instant::now() < until {
        assert!(holds(), "no longer so: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Nanoseconds of the clock that counts through suspend (CLOCK_BOOTTIME), as the probe writes them.
pub fn boot_ns() -> u64 {
    let now =
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).expect("the boot clock can be read");
    u64::try_from(now.tv_sec()).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap()
}

/// Carries out a test for all of these cases at the same time, because most of it is waiting.
pub fn side_by_side<T: Send>(cases: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    let cases: Vec<T> = cases.into_iter().collect();
    at_a_time(cases.len(), cases, test);
}

/// Carries out a test for so many of these cases at a time, the last ones first.
pub fn at_a_time<T: Send>(most: usize, cases: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    let cases = Mutex::new(cases.into_iter().collect::<Vec<T>>());
    let next = || cases.lock().unwrap_or_else(PoisonError::into_inner).pop();
    std::thread::scope(|scope| {
        for _ in 0..most {
            scope.spawn(|| {
                while let Some(case) = next() {
                    test(case);
                }
            });
        }
    });
}
