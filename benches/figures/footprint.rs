//! The resources that dlock uses while it holds a lock or waits: memory, requests to the store, and processor time.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Bench;
use crate::stats::{Sample, ms, verdict};

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

/// Sums of the kilobytes in smaps_rollup: (PSS, RSS, private).
fn kilobytes(pids: &[u32]) -> Result<(u64, u64, u64), Box<dyn Error>> {
    let (mut pss, mut rss, mut private) = (0, 0, 0);
    for pid in pids {
        for line in fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?.lines() {
            let mut words = line.split_whitespace();
            let (Some(key), Some(value)) = (words.next(), words.next()) else { continue };
            match key {
                "Pss:" => pss += value.parse::<u64>()?,
                "Rss:" => rss += value.parse::<u64>()?,
                "Private_Clean:" | "Private_Dirty:" => private += value.parse::<u64>()?,
                _ => {}
            }
        }
    }
    Ok((pss, rss, private))
}

/// Memory of one run that is alone on the machine: the holder that it waits for is not a dlock, so no pages are shared
/// with the holder.
pub fn memory(bench: &Bench) -> Result<(), Box<dyn Error>> {
    println!("memory: all dlock processes of one run, after 2 s, kB");
    println!("  {:<14} {:>9} {:>8} {:>8} {:>8}", "", "processes", "PSS", "RSS", "private");
    let file = bench.file_url();
    let redis = bench.redis.url();
    let (mut worst, mut one) = (0, bench.redis.connect()?);
    let reply = one.request("SET dlock:waiting foreign NX PX 60000")?;
    if reply != "+OK" {
        return Err(format!("SET: {reply}").into());
    }
    let mut flock = bench.command(Path::new("/usr/bin/flock"));
    flock.args(["-o", "waiting.lock", "sleep", "30"]);
    let mut flock = flock.spawn()?;
    for (what, args) in [
        ("file holding", ["-b", &file, "--ttl=1s", "holding", "--", "sleep", "30"]),
        ("file waiting", ["-b", &file, "--wait=30s", "waiting", "--", "sleep", "30"]),
        ("redis holding", ["-b", &redis, "--ttl=1s", "holding", "--", "sleep", "30"]),
        ("redis waiting", ["-b", &redis, "--wait=30s", "waiting", "--", "sleep", "30"]),
    ] {
        let mut running = Running::start(bench.dlock(&args))?;
        std::thread::sleep(Duration::from_secs(2));
        running.still_runs()?;
        let pids = processes_of(&bench.dlock)?;
        let (pss, rss, private) = kilobytes(&pids)?;
        worst = worst.max(pss);
        println!("  {what:<14} {:>9} {pss:>8} {rss:>8} {private:>8}", pids.len());
    }
    flock.kill()?;
    flock.wait()?;
    one.request("DEL dlock:waiting")?;
    println!("  {:.1} MB PSS at most, target <= 6: {}", worst as f64 / 1000.0, verdict(worst <= 6000));
    Ok(())
}

/// Requests seen by MONITOR; commands called by a script are not counted.
pub fn requests(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let url = bench.redis.url();
    let (ttl, ttls) = (Duration::from_secs(2), 5);
    let watch = |command: Command, skip: Duration, window: Duration| -> Result<Vec<String>, Box<dyn Error>> {
        let mut monitor = bench.redis.connect()?;
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
    println!("requests: to redis, each script counts as one");
    let whole =
        watch(bench.dlock(&["-b", &url, "once", "--", "true"]), Duration::ZERO, Duration::from_millis(500));
    if let Ok(whole) = whole {
        println!("  a whole run of true: {} ({})", whole.len(), whole.join(" "));
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
    println!(
        "  holding: {per_ttl:.1} per ttl ({}), target <= 3: {}",
        kinds.join(" "),
        verdict(per_ttl <= 3.0)
    );
    bench.redis.connect()?.request("SET dlock:counted-wait foreign PX 60000")?;
    let waiting = bench.dlock(&["-b", &url, "--wait=30s", "counted-wait", "--", "true"]);
    let seen = watch(waiting, Duration::from_secs(1), Duration::from_secs(5))?;
    println!("  waiting: {:.1} per second", seen.len() as f64 / 5.0);
    bench.redis.connect()?.request("DEL dlock:counted-wait")?;
    Ok(())
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
pub fn slowdown(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let rounds = 20_000_000;
    let target = Duration::from_millis(1100); // longer than a third of the ttl: a renewal falls into each run
    let rounds = (rounds as f64 * target.as_secs_f64() / spin_all(rounds)?.as_secs_f64()) as u64;
    let me = std::env::current_exe()?;
    let me_text = me.to_str().ok_or("the build directory's path is not UTF-8")?;
    let rounds_text = rounds.to_string();
    let url = bench.redis.url();
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
    println!("slowdown: a processor-bound command on every CPU, {runs} runs each, interleaved");
    println!("  without dlock p50 {:.2} ms, p25 {:.2}", ms(without.p50()), ms(without.percentile(25.0)));
    println!("  with dlock    p50 {:.2} ms, p25 {:.2}", ms(with.p50()), ms(with.percentile(25.0)));
    let spread = (ms(without.percentile(75.0)) - ms(without.percentile(25.0))) / ms(without.p50()) * 100.0;
    let slower = (ms(with.p50()) / ms(without.p50()) - 1.0) * 100.0;
    println!("  locks lost during the runs: {lost}, target 0: {}", verdict(lost == 0));
    println!("  {slower:+.2} % (the middle half of the runs without dlock spreads over {spread:.2} %)");

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
    println!("  dlock's processor time while holding, ttl 1s: {:.4} % of one CPU", share * 100.0);
    Ok(())
}
