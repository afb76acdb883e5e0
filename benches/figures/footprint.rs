//! The resources that dlock uses while it holds a lock or waits: memory, requests to the store, and processor time.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Bench;
use crate::report::{Section, Target};
use crate::stats::{Sample, ms};

/// A `dlock run` that is terminated, with its command, when dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Result<Self, Box<dyn Error>> {
        Ok(Running(command.stdout(Stdio::null()).spawn()?))
    }

    fn still_runs(&mut self) -> Result<(), Box<dyn Error>> {
        match self.0.try_wait()? {
            Some(status) => Err(format!("dlock ended while it was measured: {status}").into()),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: kill(2) of a child that has not been reaped: `Child` reaps only below.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        self.0.wait().ok();
    }
}

/// The processes that run `program`, regardless of their parent.
fn processes_of(program: &Path) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The memory of some processes, in kB, and their page faults.
#[derive(Default)]
struct Memory {
    pss: u64,
    rss: u64,
    /// Of pages that no other process has mapped.
    unshared: u64,
    minor_faults: u64,
    major_faults: u64,
}

impl Memory {
    /// Sums what smaps_rollup and stat of these processes say (`proc_pid_smaps(5)`, `proc_pid_stat(5)`).
    fn of(pids: &[u32]) -> Result<Self, Box<dyn Error>> {
        let mut sum = Memory::default();
        for pid in pids {
            for line in fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?.lines() {
                let mut words = line.split_whitespace();
                let (Some(key), Some(value)) = (words.next(), words.next()) else { continue };
                match key {
                    "Pss:" => sum.pss += value.parse::<u64>()?,
                    "Rss:" => sum.rss += value.parse::<u64>()?,
                    "Private_Clean:" | "Private_Dirty:" => sum.unshared += value.parse::<u64>()?,
                    _ => {}
                }
            }
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let (_, after_name) = stat.rsplit_once(") ").ok_or("a malformed stat")?;
            let fields: Vec<&str> = after_name.split(' ').collect();
            // Fields 10 and 12; the first one here is field 3.
            sum.minor_faults += fields[7].parse::<u64>()?;
            sum.major_faults += fields[9].parse::<u64>()?;
        }
        Ok(sum)
    }
}

/// Memory of one run that is alone on the machine: the holder that it waits for is not a dlock, so no pages are shared
/// with the holder.
pub fn memory(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    let mut section = Section::new(
        "memory: all dlock processes of one run, after 2 s; page faults since its start",
        &[("processes", 0), ("PSS kB", 0), ("RSS kB", 0), ("unshared kB", 0), ("minflt", 0), ("majflt", 0)],
    );
    // As flock(1) would: the descriptor is closed when a program is executed.
    let held = fs::File::create(bench.dir.join("waiting.lock"))?;
    held.lock()?;
    if let Ok(redis) = bench.redis() {
        let reply = redis.connect()?.request("SET dlock:waiting foreign NX PX 60000")?;
        if reply != "+OK" {
            return Err(format!("SET: {reply}").into());
        }
    }
    let mut worst = 0;
    for (store, url) in bench.stores() {
        // Consul has no shorter ones than 10 s.
        let ttl = if url.starts_with("consul:") { "--ttl=10s" } else { "--ttl=3s" };
        let holding = ["-b", &url, ttl, "holding", "--", "sleep", "30"];
        let waiting = ["-b", &url, "--wait=30s", "waiting", "--", "sleep", "30"];
        let is_target = ["file", "redis"].contains(&store);
        for (what, args) in [("holds", &holding[..]), ("waits", &waiting[..])] {
            if what == "waits" && !is_target {
                continue;
            }
            let mut running = Running::start(bench.dlock(args))?;
            std::thread::sleep(Duration::from_secs(2));
            running.still_runs()?;
            let pids = processes_of(&bench.dlock)?;
            let memory = Memory::of(&pids)?;
            if is_target {
                worst = worst.max(memory.pss);
            }
            let Memory { pss, rss, unshared, minor_faults, major_faults } = memory;
            let figures = [pids.len() as u64, pss, rss, unshared, minor_faults, major_faults];
            section.row(&format!("{store} {what}"), &figures.map(|figure| figure as f64));
        }
    }
    drop(held);
    if let Ok(redis) = bench.redis() {
        redis.connect()?.request("DEL dlock:waiting")?;
    }
    section.target("MB PSS at most, file and redis", worst as f64 / 1000.0, Target::AtMost(5.5));
    Ok(section)
}

/// Requests seen by MONITOR; commands called by a script are not counted.
pub fn requests(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    let url = bench.redis()?.url();
    let (ttl, ttls) = (Duration::from_secs(2), 5);
    let watch = |command: Command, skip: Duration, window: Duration| -> Result<Vec<String>, Box<dyn Error>> {
        let mut monitor = bench.redis()?.connect()?;
        monitor.request("MONITOR")?;
        monitor.set_timeout(Duration::from_millis(100))?;
        let _running = Running::start(command)?;
        let start = Instant::now();
        let mut seen = Vec::new();
        while start.elapsed() < skip + window {
            let Ok(line) = monitor.line() else { continue };
            if start.elapsed() >= skip && !line.contains(" lua] ") {
                let request =
                    line.split("] ").nth(1).unwrap_or_default().split(' ').next().unwrap_or_default();
                seen.push(request.trim_matches('"').to_uppercase());
            }
        }
        Ok(seen)
    };
    let mut section = Section::new("requests: to redis, each script counts as one", &[]);
    let whole =
        watch(bench.dlock(&["-b", &url, "once", "--", "true"]), Duration::ZERO, Duration::from_millis(500));
    if let Ok(whole) = whole {
        section.figure(&format!("a whole run of true ({})", whole.join(" ")), whole.len() as f64);
    }
    let ttl_text = format!("--ttl={}s", ttl.as_secs());
    let holding = bench.dlock(&["-b", &url, &ttl_text, "counted", "--", "sleep", "30"]);
    let seen = watch(holding, Duration::from_millis(300), ttl * ttls)?;
    if seen.is_empty() {
        return Err("no renewal was seen: did dlock end?".into());
    }
    let mut kinds = seen.clone();
    kinds.sort_unstable();
    kinds.dedup();
    let per_ttl = seen.len() as f64 / f64::from(ttls);
    section.target(&format!("holding, per ttl ({})", kinds.join(" ")), per_ttl, Target::AtMost(3.0));
    bench.redis()?.connect()?.request("SET dlock:counted-wait foreign PX 60000")?;
    let waiting = bench.dlock(&["-b", &url, "--wait=30s", "counted-wait", "--", "true"]);
    let seen = watch(waiting, Duration::from_secs(1), Duration::from_secs(5))?;
    section.figure("waiting, per second", seen.len() as f64 / 5.0);
    bench.redis()?.connect()?.request("DEL dlock:counted-wait")?;
    Ok(section)
}

/// Runs a fixed number of rounds on every processor at once and prints the elapsed nanoseconds.
pub fn spin(rounds: &str) -> Result<(), Box<dyn Error>> {
    println!("{}", spin_all(rounds.parse()?)?.as_nanos());
    Ok(())
}

fn spin_all(rounds: u64) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut x = 88_172_645_463_325_252_u64;
                for _ in 0..rounds {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                }
                std::hint::black_box(x);
            });
        }
    });
    Ok(start.elapsed())
}

/// A processor-bound command with and without dlock, interleaved, timed by the command; and dlock's processor time.
pub fn slowdown(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    let rounds = 20_000_000;
    let target = Duration::from_millis(1100); // longer than a third of the ttl: a renewal falls into each run
    let rounds = (rounds as f64 * target.as_secs_f64() / spin_all(rounds)?.as_secs_f64()) as u64;
    let me = std::env::current_exe()?;
    let me_text = me.to_str().ok_or("the build directory's path is not UTF-8")?;
    let rounds_text = rounds.to_string();
    let url = bench.redis()?.url();
    let mut plain = bench.command(&me);
    plain.args(["spin", &rounds_text]);
    let mut locked = bench.dlock(&["-b", &url, "--ttl=3s", "spin", "--", me_text, "spin", &rounds_text]);
    let time = |command: &mut Command| -> Result<Option<Duration>, Box<dyn Error>> {
        let output = command.stderr(Stdio::null()).output()?;
        match output.status.code() {
            Some(0) => Ok(Some(Duration::from_nanos(String::from_utf8(output.stdout)?.trim().parse()?))),
            Some(76) => Ok(None),
            _ => Err(format!("ended with {}", output.status).into()),
        }
    };
    let runs = (bench.runs / 8).max(1);
    let (mut without, mut with, mut lost) = (Vec::new(), Vec::new(), 0);
    for _ in 0..runs {
        without.extend(time(&mut plain)?);
        match time(&mut locked)? {
            Some(time) => with.push(time),
            None => lost += 1,
        }
    }
    if with.is_empty() {
        return Err("every run lost its lock".into());
    }
    let (without, with) = (Sample::new(without), Sample::new(with));
    let mut section = Section::new(
        format!("slowdown: a processor-bound command on every CPU, {runs} runs each, interleaved"),
        &[("p25 ms", 2), ("p50 ms", 2), ("p75 ms", 2)],
    );
    for (name, times) in [("without dlock", &without), ("with dlock", &with)] {
        section.row(name, &[25.0, 50.0, 75.0].map(|percent| ms(times.percentile(percent))));
    }
    section.target("locks lost during the runs", f64::from(lost), Target::AtMost(0.0));
    section.figure("% slower", (ms(with.p50()) / ms(without.p50()) - 1.0) * 100.0);
    let mut running = Running::start(bench.dlock(&["-b", &url, "--ttl=1s", "idle", "--", "sleep", "30"]))?;
    std::thread::sleep(Duration::from_secs(1));
    let pids = processes_of(&bench.dlock)?;
    let used = || -> Result<u64, Box<dyn Error>> {
        let mut sum = 0;
        for pid in &pids {
            let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
            sum += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(sum)
    };
    let (before, start) = (used()?, Instant::now());
    std::thread::sleep(Duration::from_secs(6));
    let share = (used()? - before) as f64 / start.elapsed().as_nanos() as f64;
    running.still_runs()?;
    section.figure("% of one CPU that dlock uses while it holds, ttl 1s", share * 100.0);
    Ok(section)
}
