//! Waiting in line: how soon the next one runs, how long a long line takes, and what it costs the store.

mod drain;
mod handoff;
mod line;
mod traffic;

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use self::drain::drain;
pub use self::handoff::handoff;
pub use self::line::line;
use crate::Bench;

/// Nanoseconds of the clock that `Instant` and Python can read as well.
fn monotonic_ns() -> Result<u64, Box<dyn Error>> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec that outlives the call.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(u64::try_from(now.tv_sec)? * 1_000_000_000 + u64::try_from(now.tv_nsec)?)
}

/// What runs under the locks. Reads the clock, waits until its standard input ends, reads the clock again, and appends
/// both to the file, in one write, as its last act.
pub fn stamp(file: &str) -> Result<(), Box<dyn Error>> {
    let start = monotonic_ns()?;
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(file.write_all(format!("{start} {}\n", monotonic_ns()?).as_bytes())?)
}

/// One command that ran.
#[derive(Clone, Copy)]
struct Stamp {
    start: u64,
    end: u64,
}

/// Who hands a lock over.
#[derive(Clone, Copy, PartialEq)]
enum Lock {
    Dlock,
    Flock,
}

/// A lock of one of them, with those who hold it and wait for it.
struct Scene<'a> {
    bench: &'a Bench,
    lock: Lock,
    /// What dlock is told besides.
    options: &'a [&'a str],
    name: String,
    lock_file: PathBuf,
    stamps: PathBuf,
    me: PathBuf,
}

/// Nobody waits longer than that, should this program be killed.
const PATIENCE: &str = "--wait=5m";
/// How long an event may take until something is wrong.
const DEADLINE: Duration = Duration::from_secs(120);

impl<'a> Scene<'a> {
    /// A lock of this name that nobody has.
    fn new(bench: &'a Bench, lock: Lock, name: &str, options: &'a [&'a str]) -> Result<Self, Box<dyn Error>> {
        let lock_file = bench.dir.join(format!("{name}.flock"));
        let stamps = bench.dir.join(format!("{name}.stamps"));
        fs::write(&lock_file, "")?;
        fs::write(&stamps, "")?;
        let me = std::env::current_exe()?;
        Ok(Scene { bench, lock, options, name: name.to_owned(), lock_file, stamps, me })
    }

    /// `stamp` under the lock, after those who came before.
    fn command(&self, command: &[&str]) -> Command {
        let mut line = match self.lock {
            Lock::Flock => {
                let mut line = self.bench.command(Path::new("/usr/bin/flock"));
                line.arg(&self.lock_file);
                line
            }
            Lock::Dlock => {
                let mut line = self.bench.dlock(&["-b", &self.bench.redis.url(), PATIENCE]);
                line.args(self.options).arg(&self.name).arg("--");
                line
            }
        };
        match command {
            [] => line.arg(&self.me).arg("stamp").arg(&self.stamps),
            command => line.args(command),
        };
        line.stdout(Stdio::null());
        line
    }

    /// Starts one that holds the lock, or will, until [`Gate::open`].
    fn gate(&self) -> Result<Gate, Box<dyn Error>> {
        Ok(Gate(self.command(&[]).stdin(Stdio::piped()).spawn()?))
    }

    /// Starts so many who run `stamp` when it is their turn; all wait when this returns.
    fn wait(&self, crowd: &mut Crowd, count: usize) -> Result<(), Box<dyn Error>> {
        let mut command = self.command(&[]);
        let expected = self.waiting()? + count;
        for _ in 0..count {
            crowd.0.push(command.spawn()?);
        }
        self.until("the waiters", || Ok(self.waiting()? == expected))
    }

    /// How many wait.
    fn waiting(&self) -> Result<usize, Box<dyn Error>> {
        match self.lock {
            Lock::Dlock => number(&self.bench.redis.connect()?.ask(&format!("ZCARD {}", self.queue()))?),
            Lock::Flock => self.kernel_locks("->"),
        }
    }

    /// Whether somebody holds the lock.
    fn is_held(&self) -> Result<bool, Box<dyn Error>> {
        Ok(match self.lock {
            Lock::Dlock => {
                number(&self.bench.redis.connect()?.ask(&format!("EXISTS dlock:{}", self.name))?)? == 1
            }
            Lock::Flock => self.kernel_locks("FLOCK")? == 1,
        })
    }

    fn queue(&self) -> String {
        format!("dlock#queue:{{dlock:{}}}", self.name)
    }

    /// Lines of /proc/locks (`proc_locks(5)`) about our file with this second word: `FLOCK`, or `->` for one that waits.
    fn kernel_locks(&self, second: &str) -> Result<usize, Box<dyn Error>> {
        let inode = fs::metadata(&self.lock_file)?.ino().to_string();
        let text = fs::read_to_string("/proc/locks")?;
        let ours = |line: &&str| {
            let mut words = line.split_whitespace();
            words.nth(1) == Some(second) && words.any(|word| word.rsplit(':').next() == Some(&inode))
        };
        Ok(text.lines().filter(ours).count())
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

    /// All that ran, in the order in which they began: one after the other, or it was no lock.
    fn stamps(&self) -> Result<Vec<Stamp>, Box<dyn Error>> {
        let mut stamps = Vec::new();
        for line in fs::read_to_string(&self.stamps)?.lines() {
            let (start, end) = line.split_once(' ').ok_or("half a stamp")?;
            stamps.push(Stamp { start: start.parse()?, end: end.parse()? });
        }
        stamps.sort_unstable_by_key(|stamp: &Stamp| stamp.start);
        match stamps.windows(2).all(|pair| pair[0].end <= pair[1].start) {
            true => Ok(stamps),
            false => Err(format!("{}: two commands ran at the same time", self.name).into()),
        }
    }
}

/// One who holds the lock until we say so. Killed when dropped.
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

/// Those who wait. Ended when dropped.
struct Crowd(Vec<Child>);

impl Crowd {
    /// Waits until all have run.
    fn end(mut self) -> Result<(), Box<dyn Error>> {
        self.0.iter_mut().try_for_each(succeeded)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

fn succeeded(child: &mut Child) -> Result<(), Box<dyn Error>> {
    match child.wait()? {
        status if status.success() => Ok(()),
        status => Err(format!("one that held the lock ended with {status}").into()),
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

/// The number in a reply of one line.
fn number(reply: &str) -> Result<usize, Box<dyn Error>> {
    Ok(reply.strip_prefix(':').ok_or_else(|| format!("Redis said {reply}"))?.parse()?)
}
