//! The time until the command's process tree is dead after dlock is killed or stopped.

use std::error::Error;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::Bench;
use crate::report::{Section, Target};
use crate::stats::{Rng, Sample, ms};

const TREE: usize = 3;

/// A tree of three processes that only SIGKILL ends: the command, its child, and a daemon in its own session. Each has
/// the FIFO open and writes a byte when it is ready; the reader gets end-of-file when the last of them is dead.
pub fn tree(fifo: &str) -> Result<(), Box<dyn Error>> {
    let mut fifo = OpenOptions::new().write(true).open(fifo)?;
    // SAFETY: this process has one thread; what runs in the children is ordinary code on copied memory, and SIG_IGN
    // is a valid disposition.
    unsafe {
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
        if libc::fork() != 0 && libc::fork() == 0 {
            libc::setsid();
            if libc::fork() != 0 {
                libc::_exit(0);
            }
        }
    }
    fifo.write_all(b"r")?;
    loop {
        // SAFETY: pause(2) takes nothing.
        unsafe { libc::pause() };
    }
}

/// A dlock that runs such a tree, all three processes alive.
struct Victim {
    dlock: Child,
    fifo: File,
    path: PathBuf,
}

impl Victim {
    fn start(bench: &Bench, url: &str, ttl: &str, name: &str) -> Result<Self, Box<dyn Error>> {
        let path = bench.dir.join(format!("{name}.fifo"));
        let c_path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: `c_path` is a NUL-terminated string that outlives the call.
        if unsafe { libc::mkfifo(c_path.as_ptr(), 0o600) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let fifo = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
        let me = std::env::current_exe()?;
        let mut command = bench.dlock(&["-b", url, "--ttl", ttl, "--wait=5s", name, "--"]);
        let dlock =
            command.arg(me).arg("tree").arg(&path).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut victim = Victim { dlock, fifo, path };
        let (mut ready, start) = (0, Instant::now());
        while ready < TREE {
            let mut bytes = [0; TREE];
            match victim.fifo.read(&mut bytes) {
                Ok(count) => ready += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if start.elapsed() > Duration::from_secs(10) {
                return Err("the command did not start within 10 s".into());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(victim)
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill(2) of a child that has not been reaped: `Child` reaps only in `reap`.
        unsafe { libc::kill(self.dlock.id() as i32, signal) };
    }

    /// Whether the whole tree is dead, or dies within this timeout.
    fn tree_is_dead(&mut self, timeout: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.fifo.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, and its count is 1.
        let events = unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as i32) };
        events == 1 && poll.revents & libc::POLLHUP != 0
    }

    fn reap(&mut self) -> Result<std::process::ExitStatus, Box<dyn Error>> {
        Ok(self.dlock.wait()?)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        if self.dlock.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(libc::SIGKILL);
            self.dlock.wait().ok();
        }
        std::fs::remove_file(&self.path).ok();
    }
}

/// Measures the time from kill(2) of dlock to the death of the last process of the tree.
pub fn sigkill(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    let runs = bench.runs;
    let mut section = Section::new(
        format!("sigkill: from SIGKILL of dlock to the death of the whole tree, {runs} tries each"),
        &[("p50 ms", 2), ("p99 ms", 2), ("max ms", 2)],
    );
    let mut rng = Rng::new();
    let mut worst = Duration::ZERO;
    for (store, url) in bench.stores().into_iter().filter(|(store, _)| ["file", "redis"].contains(store)) {
        let mut times = Vec::with_capacity(runs);
        for try_number in 0..runs {
            let mut victim = Victim::start(bench, &url, "30s", &format!("kill-{store}-{try_number}"))?;
            std::thread::sleep(Duration::from_micros(rng.below(5000)));
            let start = Instant::now();
            victim.signal(libc::SIGKILL);
            if !victim.tree_is_dead(Duration::from_secs(60)) {
                return Err(format!("{store}: the tree lives 60 s after dlock").into());
            }
            times.push(start.elapsed());
            victim.reap()?;
        }
        let times = Sample::new(times);
        section.row(&format!("dlock {store}"), &[ms(times.p50()), ms(times.p99()), ms(times.max())]);
        worst = worst.max(times.p99());
    }
    section.target("p99 ms, the higher one", ms(worst), Target::AtMost(20.0));
    Ok(section)
}

/// Measures the remaining lease at the store when the tree of a stopped dlock is dead.
pub fn sigstop(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    let (ttl, together) = (Duration::from_secs(2), 10);
    let tries = (bench.runs / 2).max(1).next_multiple_of(together);
    let url = bench.redis()?.url();
    let mut client = bench.redis()?.connect()?;
    let mut rng = Rng::new();
    let (mut margins, mut late, mut lost) = (Vec::new(), 0, 0);
    for batch in 0..tries / together {
        let mut victims = Vec::new();
        for index in 0..together {
            let name = format!("stop-{batch}-{index}");
            let victim = Victim::start(bench, &url, &format!("{}s", ttl.as_secs()), &name)?;
            let moment = Instant::now() + Duration::from_millis(rng.below(ttl.as_millis() as u64));
            victims.push((Some(moment), name, victim));
        }
        let start = Instant::now();
        while !victims.is_empty() {
            if start.elapsed() > ttl * 4 {
                return Err(format!("{} trees live {:?} after SIGSTOP", victims.len(), ttl * 4).into());
            }
            let mut alive = Vec::new();
            for (mut moment, name, mut victim) in victims {
                if moment.is_some_and(|moment| moment <= Instant::now()) {
                    victim.signal(libc::SIGSTOP);
                    moment = None;
                }
                if !victim.tree_is_dead(Duration::ZERO) {
                    alive.push((moment, name, victim));
                    continue;
                }
                match client.pttl(&format!("dlock:{name}"))? {
                    left @ 0.. => margins.push(Duration::from_millis(left as u64)),
                    _ => late += 1,
                }
                victim.signal(libc::SIGCONT);
                lost += usize::from(victim.reap()?.code() == Some(76));
            }
            victims = alive;
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    let mut section = Section::new(
        format!(
            "sigstop: remaining lease of {ttl:?} when the tree of a stopped dlock is dead, {tries} tries"
        ),
        &[],
    );
    if !margins.is_empty() {
        let margins = Sample::new(margins);
        section.figure("least ms", ms(margins.percentile(0.0)));
        section.figure("p50 ms", ms(margins.p50()));
        section.figure("most ms", ms(margins.max()));
    }
    section.target("trees that live after the end of the lease", f64::from(late), Target::AtMost(0.0));
    section.figure("exit 76 when continued, of all tries", lost as f64 / tries as f64);
    Ok(section)
}
