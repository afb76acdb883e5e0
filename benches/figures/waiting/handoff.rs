//! The time from the end of one command to the start of the next, with one waiter.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::{Fixture, Lock, Waiters};
use crate::Bench;
use crate::race::{COLUMNS, Race};
use crate::report::{Section, Target};
use crate::servers::Redis;
use crate::stats::Rng;

/// What is compared. flock is in each, for its ratio.
const HEATS: &[&[&str]] = &[
    &["flock", "dlock file"],
    &["flock", "dlock redis", "redis-py"],
    &["flock", "dlock etcd", "etcdctl lock"],
    &["flock", "dlock consul"],
    &["flock", "dlock postgres"],
    &["flock", "dlock mysql"],
    &["flock", "dlock zookeeper"],
];

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
    fn start(bench: &Bench, redis: &Redis, python: &Path) -> Result<Self, Box<dyn Error>> {
        let mut command = bench.command(python);
        command.args(["-c", REDIS_PY, redis.url().rsplit(':').next().unwrap_or_default()]);
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
            return Err("python ended".into());
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

/// An interpreter that has redis-py.
pub fn find_redis_py() -> Result<PathBuf, String> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python/bin/python");
    let python = match std::env::var_os("DLOCK_TEST_PYTHON") {
        // The commands that are measured run in another directory.
        Some(path) => std::path::absolute(path).map_err(|e| format!("DLOCK_TEST_PYTHON: {e}"))?,
        None if installed.exists() => installed,
        None => PathBuf::from("/usr/bin/python3"),
    };
    let import = Command::new(&python).args(["-c", "import redis"]).output();
    match import.is_ok_and(|output| output.status.success()) {
        true => Ok(python),
        false => Err(format!("redis-py: {} -m pip install redis, see DLOCK_TEST_PYTHON", python.display())),
    }
}

/// One hand-off from a holder to a waiter, after a random pause, so that a polling waiter is met in any phase.
fn processes(bench: &Bench, lock: Lock<'_>, rng: &mut Rng) -> Result<Duration, Box<dyn Error>> {
    let name = match lock {
        Lock::Flock => "handoff-flock",
        Lock::Etcdctl => "handoff-etcdctl",
        _ => "handoff",
    };
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

pub fn handoff(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    let mut race = Race::default();
    if bench.flock().is_some() {
        race.add("flock", |rng| processes(bench, Lock::Flock, rng));
    }
    for (scheme, url) in bench.stores() {
        race.add(format!("dlock {scheme}"), move |rng| {
            let lock = if scheme == "redis" { Lock::Redis } else { Lock::Store(&url) };
            processes(bench, lock, rng)
        });
    }
    if bench.etcdctl().is_some() {
        race.add("etcdctl lock", |rng| processes(bench, Lock::Etcdctl, rng));
    }
    if let Some((redis, python)) = bench.servers.redis.as_ref().zip(bench.peers.python.as_ref()) {
        let mut clients = [RedisPy::start(bench, redis, python)?, RedisPy::start(bench, redis, python)?];
        race.add("redis-py", move |rng| redis_py(&mut clients, rng));
    }
    let rounds = (bench.runs / 4).max(1);
    race.run(HEATS, 2, rounds)?;
    let mut section = Section::new(
        format!(
            "handoff: end of one command to start of the next, one waiter, {rounds} each, interleaved with what is compared"
        ),
        COLUMNS,
    );
    race.show(&mut section);
    for (tool, other, target) in
        [("dlock redis", "flock", Target::AtMost(1.5)), ("redis-py", "dlock redis", Target::AtLeast(20.0))]
    {
        if let Some(ratio) = race.ratio(tool, other) {
            section.target(&format!("{tool} / {other}"), ratio, target);
        }
    }
    Ok(section)
}
