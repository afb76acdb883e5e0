//! The time until a thousand waiters have run.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

use super::traffic::Requests;
use super::{Fixture, Lock, Waiters};
use crate::Bench;
use crate::stats::{Rng, Sample, ms, verdict};

const WAITERS: usize = 1000;

/// The result of one drain.
struct Drained {
    /// From the opening of the gate until the last process was reaped.
    whole: Duration,
    /// From the end of one command to the start of the next.
    gaps: Vec<Duration>,
}

fn once(bench: &Bench, lock: Lock) -> Result<Drained, Box<dyn Error>> {
    let name = if lock == Lock::Dlock { "drain" } else { "drain-flock" };
    let fixture = Fixture::new(bench, lock, name, &[])?;
    let mut gate = fixture.gate()?;
    fixture.until("a holder", || fixture.is_held())?;
    let mut waiters = Waiters(Vec::with_capacity(WAITERS));
    fixture.wait(&mut waiters, WAITERS)?;
    // The last waiter is queued, and may still be busy.
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    gate.open();
    gate.end()?;
    waiters.end()?;
    let whole = start.elapsed();
    let stamps = fixture.stamps()?;
    if stamps.len() != WAITERS + 1 {
        return Err(format!("{name}: {} commands ran, not {}", stamps.len(), WAITERS + 1).into());
    }
    let gaps = stamps.windows(2).map(|pair| Duration::from_nanos(pair[1].start - pair[0].end)).collect();
    Ok(Drained { whole, gaps })
}

/// Measures both tools once per round; then dlock once more, to count its requests.
pub fn drain(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let rounds = (bench.runs / 40).max(1);
    let (mut flock, mut dlock, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut gaps: [Vec<Duration>; 2] = Default::default();
    let mut rng = Rng::new();
    for _ in 0..rounds {
        let mut order = [Lock::Flock, Lock::Dlock];
        rng.shuffle(&mut order);
        for lock in order {
            let drained = once(bench, lock)?;
            match lock {
                Lock::Flock => (flock.push(drained.whole), gaps[0].extend(drained.gaps)),
                Lock::Dlock => (dlock.push(drained.whole), gaps[1].extend(drained.gaps)),
            };
        }
        if let (Some(flock), Some(dlock)) = (flock.last(), dlock.last()) {
            ratios.push(dlock.as_secs_f64() / flock.as_secs_f64());
        }
    }
    println!(
        "drain: {WAITERS} waiters, from the end of the first command until all have run, {rounds} rounds"
    );
    println!("  {:<16} {:>8} {:>8} {:>8} {:>14}", "", "p50 ms", "min ms", "max ms", "p50 hand-off");
    for ((name, times), gaps) in [("flock", flock), ("dlock redis:", dlock)].into_iter().zip(gaps) {
        let (times, gaps) = (Sample::new(times), Sample::new(gaps));
        println!(
            "  {name:<16} {:>8.0} {:>8.0} {:>8.0} {:>11.2} ms",
            ms(times.p50()),
            ms(times.percentile(0.0)),
            ms(times.max()),
            ms(gaps.p50())
        );
    }
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    println!(
        "  {ratio:.2} x flock (median of {:.2} to {:.2}), target <= 1.5: {}",
        ratios[0],
        ratios[ratios.len() - 1],
        verdict(ratio <= 1.5)
    );

    let requests = Requests::watch(bench)?;
    once(bench, Lock::Dlock)?;
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let seen = requests.end(bench)?;
    for request in &seen {
        *kinds.entry(request.command.to_uppercase()).or_default() += 1;
    }
    // The first holder is counted as well.
    let each = |count: usize| count as f64 / (WAITERS + 1) as f64;
    let kinds: Vec<String> =
        kinds.iter().map(|(command, count)| format!("{command} {:.2}", each(*count))).collect();
    println!(
        "  {:.2} requests per waiter in all ({}), target <= 6: {}",
        each(seen.len()),
        kinds.join(", "),
        verdict(each(seen.len()) <= 6.0)
    );
    Ok(())
}
