//! The time from the end of one command to the start of the next, with one waiter.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::{Fixture, Lock, Waiters};
use crate::Bench;
use crate::stats::{Rng, Sample, ms, verdict};

/// redis-py's `Lock` with its defaults, controlled by lines on standard input. Prints when it acquired the lock, and when
/// it began to release it.
const REDIS_PY: &str = r#"
import sys, time, redis
lock = redis.Redis(port=int(sys.argv[1])).lock("handoff-redis-py")
now = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC)
for line in sys.stdin:
    if line == "take\n":
        print("trying", flush=True)
        lock.acquire()
        print(now(), flush=True)
    else:
        began = now()
        lock.release()
        print(began, flush=True)
"#;

/// One long-lived Python process, so that its start-up time does not count.
struct RedisPy {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl RedisPy {
    fn start(bench: &Bench, python: &Path) -> Result<Self, Box<dyn Error>> {
        let mut command = bench.command(python);
        command.args(["-c", REDIS_PY, bench.redis.url().rsplit(':').next().unwrap_or_default()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.ok_or("no pipe")?, BufReader::new(output.ok_or("no pipe")?));
        Ok(RedisPy { child, input, output })
    }

    /// Starts to acquire the lock; it is trying when this returns.
    fn try_take(&mut self) -> Result<(), Box<dyn Error>> {
        self.input.write_all(b"take\n")?;
        match self.line()?.as_str() {
            "trying" => Ok(()),
            other => Err(format!("unexpected output of redis-py: {other:?}").into()),
        }
    }

    /// Waits until the lock is acquired. Returns the time.
    fn taken(&mut self) -> Result<u64, Box<dyn Error>> {
        Ok(self.line()?.parse()?)
    }

    /// Releases the lock. Returns the time at which it began to.
    fn release(&mut self) -> Result<u64, Box<dyn Error>> {
        self.input.write_all(b"release\n")?;
        self.taken()
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(
                "python ended (is redis-py here? pip install redis, and set DLOCK_TEST_PYTHON)".into()
            );
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for RedisPy {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn python() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python/bin/python");
    match std::env::var_os("DLOCK_TEST_PYTHON") {
        Some(path) => path.into(),
        None if installed.exists() => installed,
        None => "/usr/bin/python3".into(),
    }
}

/// One hand-off from a holder to a waiter, after a random pause, so that a polling waiter is met in any phase.
fn processes(bench: &Bench, lock: Lock, rng: &mut Rng) -> Result<Duration, Box<dyn Error>> {
    let name = if lock == Lock::Dlock { "handoff" } else { "handoff-flock" };
    let fixture = Fixture::new(bench, lock, name, &[])?;
    let mut first = fixture.gate()?;
    fixture.until("a holder", || fixture.is_held())?;
    let mut second = Waiters(Vec::new());
    fixture.wait(&mut second, 1)?;
    pause(rng);
    first.open();
    first.end()?;
    second.end()?;
    let stamps = fixture.stamps()?;
    match stamps[..] {
        [one, other] => Ok(Duration::from_nanos(other.start - one.end)),
        _ => Err(format!("{name}: {} commands ran, not 2", stamps.len()).into()),
    }
}

/// The same between two running Python processes.
fn redis_py(clients: &mut [RedisPy; 2], rng: &mut Rng) -> Result<Duration, Box<dyn Error>> {
    let [holder, waiter] = clients;
    holder.try_take()?;
    holder.taken()?;
    waiter.try_take()?;
    pause(rng);
    let released = holder.release()?;
    let taken = waiter.taken()?;
    waiter.release()?;
    Ok(Duration::from_nanos(taken.saturating_sub(released)))
}

fn pause(rng: &mut Rng) {
    std::thread::sleep(Duration::from_micros(60_000 + rng.below(100_000)));
}

/// Measures all three tools once per round, in random order.
pub fn handoff(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let python = python();
    let mut clients = [RedisPy::start(bench, &python)?, RedisPy::start(bench, &python)?];
    let rounds = (bench.runs / 2).max(1);
    let mut times: [Vec<Duration>; 3] = Default::default();
    let mut rng = Rng::new();
    let mut order = [0, 1, 2];
    let warm_up = 3;
    for round in 0..warm_up + rounds {
        rng.shuffle(&mut order);
        for turn in order {
            let time = match turn {
                0 => processes(bench, Lock::Flock, &mut rng)?,
                1 => processes(bench, Lock::Dlock, &mut rng)?,
                _ => redis_py(&mut clients, &mut rng)?,
            };
            if round >= warm_up {
                times[turn].push(time);
            }
        }
    }
    let version = Command::new(&python).args(["-c", "import redis; print(redis.__version__)"]).output()?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    println!("handoff: end of one command to start of the next, one waiter, {rounds} each, interleaved");
    println!("  {:<16} {:>8} {:>8} {:>8} {:>8}", "", "p50 ms", "p99 ms", "max ms", "x flock");
    let samples = times.map(Sample::new);
    let [flock, dlock, python] = &samples;
    for (name, sample) in
        ["flock".to_owned(), "dlock redis:".to_owned(), format!("redis-py {version}")].iter().zip(&samples)
    {
        println!(
            "  {name:<16} {:>8.2} {:>8.2} {:>8.2} {:>8.2}",
            ms(sample.p50()),
            ms(sample.p99()),
            ms(sample.max()),
            ms(sample.p50()) / ms(flock.p50())
        );
    }
    let times_flock = ms(dlock.p50()) / ms(flock.p50());
    let better = ms(python.p50()) / ms(dlock.p50());
    println!("  {times_flock:.2} x flock, target <= 1.7: {}", verdict(times_flock <= 1.7));
    println!("  {better:.1} x faster than redis-py, target >= 20: {}", verdict(better >= 20.0));
    Ok(())
}
