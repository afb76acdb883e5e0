//! How late the threads of the tests ran: a test of times that fails on a machine that stood still says so.

use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// How long the thread that measures sleeps.
const SLEEP: Duration = Duration::from_millis(20);
/// It is late by at least so much when that is worth a line.
const LATE: Duration = Duration::from_millis(100);
/// As far back as a failing test looks: no test is longer.
const RECENT: Duration = Duration::from_mins(2);

/// When the thread woke, and how late.
static STALLS: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// Starts to measure, and makes every panic report what was measured. To be called by each test; the first one starts.
pub fn measure() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::thread::spawn(sleep_repeatedly);
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            eprint!("{}", recent());
        }));
    });
}

fn sleep_repeatedly() {
    loop {
        let begun = Instant::now();
        std::thread::sleep(SLEEP);
        let late = begun.elapsed().saturating_sub(SLEEP);
        if late >= LATE {
            STALLS.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), late));
        }
    }
}

/// A line for each time at which a thread ran late.
fn recent() -> String {
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let recent = stalls.iter().filter(|(when, _)| when.elapsed() < RECENT);
    recent
        .map(|(when, late)| {
            let (ago, late) = (when.elapsed().as_secs_f64(), late.as_millis());
            format!("{ago:.1} s before this, a thread of the tests that slept {SLEEP:?} ran {late} ms late\n")
        })
        .collect()
}
