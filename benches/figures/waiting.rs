//! Waiting in a queue: the time of a hand-off, the time to drain a long queue, and the load on the store.

mod drain;
mod handoff;
mod queue;
mod traffic;

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub use self::drain::drain;
pub use self::handoff::{find_redis_py, handoff};
pub use self::queue::queue;
use crate::Bench;

/// Nanoseconds of CLOCK_MONOTONIC, which `Instant` and Python read as well.
fn monotonic_ns() -> Result<u64, Box<dyn Error>> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec that outlives the call.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(u64::try_from(now.tv_sec)? * 1_000_000_000 + u64::try_from(now.tv_nsec)?)
}

/// The command that runs under the locks. Reads the clock, waits until its input ends, reads the clock again, and finally
/// appends both to the file in one write.
pub fn stamp(file: &str, input: &str) -> Result<(), Box<dyn Error>> {
    let start = monotonic_ns()?;
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    fs::File::open(input)?.read_to_end(&mut Vec::new())?;
    Ok(file.write_all(format!("{start} {}\n", monotonic_ns()?).as_bytes())?)
}

/// The start and end of one command, in nanoseconds.
#[derive(Clone, Copy)]
struct Stamp {
    start: u64,
    end: u64,
}

/// The tool under test.
#[derive(Clone, Copy, PartialEq)]
enum Lock<'a> {
    Flock,
    Etcdctl,
    /// dlock with the bench's Redis, which is asked for the waiters.
    Redis,
    /// dlock with the store of this URL.
    Store(&'a str),
}

/// One lock, and the commands that hold it and wait for it.
struct Fixture<'a> {
    bench: &'a Bench,
    lock: Lock<'a>,
    /// Additional options of dlock.
    options: &'a [&'a str],
    name: String,
    lock_file: PathBuf,
    stamps: PathBuf,
    me: PathBuf,
}

/// The timeout of the waiters, in case this program is killed.
const WAIT: &str = "--wait=5m";
/// The longest time that an event may take.
const DEADLINE: Duration = Duration::from_secs(120);

impl<'a> Fixture<'a> {
    /// Creates a free lock with this name.
    fn new(
        bench: &'a Bench,
        lock: Lock<'a>,
        name: &str,
        options: &'a [&'a str],
    ) -> Result<Self, Box<dyn Error>> {
        let lock_file = bench.dir.join(format!("{name}.flock"));
        let stamps = bench.dir.join(format!("{name}.stamps"));
        fs::write(&lock_file, "")?;
        fs::write(&stamps, "")?;
        let me = std::env::current_exe()?;
        Ok(Fixture { bench, lock, options, name: name.to_owned(), lock_file, stamps, me })
    }

    /// Returns this command under the lock; `stamp` if it is empty.
    fn command(&self, command: &[&str]) -> Result<Command, Box<dyn Error>> {
        let dlock = |url: &str| {
            let mut locked = self.bench.dlock(&["-b", url, WAIT]);
            locked.args(self.options).arg(&self.name).arg("--");
            locked
        };
        let mut locked = match self.lock {
            Lock::Flock => {
                let mut locked = self.bench.flock().ok_or("flock is left out")?;
                locked.arg(&self.lock_file);
                locked
            }
            Lock::Etcdctl => {
                let mut locked = self.etcdctl()?;
                locked.args(["lock", &self.name, "--"]);
                locked
            }
            Lock::Redis => dlock(&self.bench.redis()?.url()),
            Lock::Store(url) => dlock(url),
        };
        match command {
            [] => {
                let stamp = if self.lock == Lock::Etcdctl { "stamp-under-etcdctl" } else { "stamp" };
                locked.arg(&self.me).arg(stamp).arg(&self.stamps)
            }
            command => locked.args(command),
        };
        locked.stdout(Stdio::null());
        Ok(locked)
    }

    fn etcdctl(&self) -> Result<Command, Box<dyn Error>> {
        Ok(self.bench.etcdctl().ok_or("etcdctl is left out")?)
    }

    /// Starts a command that holds the lock, as soon as it is its turn, until [`Gate::open`].
    fn gate(&self) -> Result<Gate, Box<dyn Error>> {
        Ok(Gate(self.command(&[])?.stdin(Stdio::piped()).spawn()?))
    }

    /// Starts `count` waiters that run `stamp` when it is their turn; all are queued when this returns.
    fn wait(&self, waiters: &mut Waiters, count: usize) -> Result<(), Box<dyn Error>> {
        let mut command = self.command(&[])?;
        let expected = self.waiting()? + count;
        for _ in 0..count {
            waiters.0.push(command.spawn()?);
        }
        self.until("the waiters", || Ok(self.waiting()? == expected))
    }

    /// The number of waiters.
    fn waiting(&self) -> Result<usize, Box<dyn Error>> {
        match self.lock {
            Lock::Flock => self.kernel_locks("->"),
            Lock::Etcdctl => Ok(self.etcd_keys()?.saturating_sub(1)),
            Lock::Redis => {
                number(&self.bench.redis()?.connect()?.request(&format!("ZCARD {}", self.queue()))?)
            }
            Lock::Store(url) => self.listed(url, "waiters"),
        }
    }

    /// Whether the lock is held.
    fn is_held(&self) -> Result<bool, Box<dyn Error>> {
        let holders = match self.lock {
            Lock::Flock => self.kernel_locks("FLOCK")?,
            Lock::Etcdctl => self.etcd_keys()?,
            Lock::Redis => {
                number(&self.bench.redis()?.connect()?.request(&format!("EXISTS dlock:{}", self.name))?)?
            }
            Lock::Store(url) => self.listed(url, "holders")?,
        };
        Ok(holders == 1)
    }

    /// The keys of the holder and the waiters of `etcdctl lock`.
    fn etcd_keys(&self) -> Result<usize, Box<dyn Error>> {
        let mut get = self.etcdctl()?;
        get.args(["get", "--prefix", "-w", "json", &format!("{}/", self.name)]);
        let reply: Value = serde_json::from_slice(&get.output()?.stdout)?;
        // It is omitted when it is 0.
        Ok(usize::try_from(reply["count"].as_u64().unwrap_or(0))?)
    }

    /// The length of a list in the output of `dlock status`.
    fn listed(&self, url: &str, list: &str) -> Result<usize, Box<dyn Error>> {
        let mut status = self.bench.command(&self.bench.dlock);
        let output = status.args(["status", "-b", url, "--json", &self.name]).output()?;
        let status: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
        Ok(status["locks"][0][list].as_array().map_or(0, Vec::len))
    }

    fn queue(&self) -> String {
        format!("dlock#queue:{{dlock:{}}}", self.name)
    }

    /// Counts the lines of /proc/locks (`proc_locks(5)`) about the lock file with this second word: `FLOCK`, or `->` for a
    /// waiter.
    fn kernel_locks(&self, second: &str) -> Result<usize, Box<dyn Error>> {
        let inode = fs::metadata(&self.lock_file)?.ino().to_string();
        let text = fs::read_to_string("/proc/locks")?;
        let matches = |line: &&str| {
            let mut words = line.split_whitespace();
            words.nth(1) == Some(second) && words.any(|word| word.rsplit(':').next() == Some(&inode))
        };
        Ok(text.lines().filter(matches).count())
    }

    fn until(
        &self,
        what: &str,
        mut ready: impl FnMut() -> Result<bool, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        while !ready()? {
            if start.elapsed() > DEADLINE {
                return Err(format!("{}: {what}: not after {DEADLINE:?}", self.name).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Returns the stamps of all commands, in the order of their start. Fails if two commands overlapped.
    fn stamps(&self) -> Result<Vec<Stamp>, Box<dyn Error>> {
        let mut stamps = Vec::new();
        for line in fs::read_to_string(&self.stamps)?.lines() {
            let (start, end) = line.split_once(' ').ok_or("an incomplete stamp")?;
            stamps.push(Stamp { start: start.parse()?, end: end.parse()? });
        }
        stamps.sort_unstable_by_key(|stamp: &Stamp| stamp.start);
        match stamps.windows(2).all(|pair| pair[0].end <= pair[1].start) {
            true => Ok(stamps),
            false => Err(format!("{}: two commands ran at the same time", self.name).into()),
        }
    }
}

/// A command that holds the lock until it is opened. Terminated when dropped.
struct Gate(Child);

impl Gate {
    fn open(&mut self) {
        drop(self.0.stdin.take());
    }

    fn end(mut self) -> Result<(), Box<dyn Error>> {
        self.open();
        succeeded(&mut self.0)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// The waiters. Terminated when dropped.
struct Waiters(Vec<Child>);

impl Waiters {
    /// Waits until all have run.
    fn end(mut self) -> Result<(), Box<dyn Error>> {
        self.0.iter_mut().try_for_each(succeeded)
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

fn succeeded(child: &mut Child) -> Result<(), Box<dyn Error>> {
    match child.wait()? {
        status if status.success() => Ok(()),
        status => Err(format!("a command under the lock ended with {status}").into()),
    }
}

fn end(child: &mut Child) {
    drop(child.stdin.take());
    if let Ok(None) = child.try_wait() {
        // SAFETY: kill(2) of a child that has not been reaped.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        child.wait().ok();
    }
}

/// Reads an integer reply.
fn number(reply: &str) -> Result<usize, Box<dyn Error>> {
    Ok(reply.strip_prefix(':').ok_or_else(|| format!("unexpected reply: {reply}"))?.parse()?)
}
