//! The time until a number of waiters have run, and the requests that they send.

use std::error::Error;
use std::time::{Duration, Instant};

use super::traffic::Requests;
use super::{Fixture, Lock, Waiters};
use crate::Bench;
use crate::report::{Section, Target};
use crate::stats::{Rng, Sample, median, ms};

const LENGTHS: [usize; 3] = [10, 100, 1000];

/// The result of one drain.
struct Drained {
    /// From the opening of the gate until the last process was reaped.
    whole: Duration,
    /// From the end of one command to the start of the next.
    gaps: Vec<Duration>,
}

fn once(bench: &Bench, lock: Lock, count: usize) -> Result<Drained, Box<dyn Error>> {
    let name = if lock == Lock::Redis { "drain" } else { "drain-flock" };
    let fixture = Fixture::new(bench, lock, name, &[])?;
    let mut gate = fixture.gate()?;
    fixture.until("a holder", || fixture.is_held())?;
    let mut waiters = Waiters(Vec::with_capacity(count));
    fixture.wait(&mut waiters, count)?;
    // The last waiter is queued, and may still be busy.
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    gate.open();
    gate.end()?;
    waiters.end()?;
    let whole = start.elapsed();
    let stamps = fixture.stamps()?;
    if stamps.len() != count + 1 {
        return Err(format!("{name}: {} commands ran, not {}", stamps.len(), count + 1).into());
    }
    let gaps = stamps.windows(2).map(|pair| Duration::from_nanos(pair[1].start - pair[0].end)).collect();
    Ok(Drained { whole, gaps })
}

/// The requests of one drain, per waiter.
fn requests(bench: &Bench, count: usize) -> Result<f64, Box<dyn Error>> {
    let requests = Requests::watch(bench)?;
    once(bench, Lock::Redis, count)?;
    // The first holder is counted as well.
    Ok(requests.end(bench)?.len() as f64 / (count + 1) as f64)
}

/// Measures both tools once per round, or dlock alone if flock is left out; then dlock once more, to count its requests.
pub fn drain(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    bench.redis()?;
    let rounds = (bench.runs / 40).max(1);
    let mut section = Section::new(
        format!(
            "drain: from the end of the first command until all waiters have run, p50 of {rounds} rounds"
        ),
        &[
            ("waiters", 0),
            ("flock ms", 0),
            ("dlock ms", 0),
            ("x flock", 2),
            ("hand-off ms", 2),
            ("requests each", 2),
        ],
    );
    let mut rng = Rng::new();
    for count in LENGTHS {
        let (mut flock, mut dlock, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let mut order = [Lock::Flock, Lock::Redis];
            rng.shuffle(&mut order);
            for lock in order.into_iter().filter(|lock| *lock == Lock::Redis || bench.flock().is_some()) {
                let drained = once(bench, lock, count)?;
                if lock == Lock::Flock {
                    flock.push(drained.whole);
                } else {
                    dlock.push(drained.whole);
                    gaps.extend(drained.gaps);
                }
            }
        }
        let ratios = dlock.iter().zip(&flock).map(|(dlock, flock)| ms(*dlock) / ms(*flock));
        let ratio = if flock.is_empty() { f64::NAN } else { median(ratios) };
        let p50 = |times: Vec<_>| if times.is_empty() { f64::NAN } else { ms(Sample::new(times).p50()) };
        let [flock, dlock, gap] = [flock, dlock, gaps].map(p50);
        let requests = requests(bench, count)?;
        section.row(&format!("{count} waiters"), &[count as f64, flock, dlock, ratio, gap, requests]);
        if count == LENGTHS[LENGTHS.len() - 1] {
            if !ratio.is_nan() {
                section.target(&format!("{count} waiters, dlock redis / flock"), ratio, Target::AtMost(1.6));
            }
            section.target("requests per waiter", requests, Target::AtMost(6.0));
        }
    }
    Ok(section)
}
