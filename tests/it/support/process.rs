//! Facts about processes, from /proc.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// One line of /proc/PID/stat.
#[derive(Debug, Clone)]
pub struct Stat {
    /// Process id.
    pub pid: i32,
    /// What the kernel calls the program.
    pub comm: String,
    /// `R`, `S`, `D`, `T`, `t`, `Z`, ...
    pub state: char,
    /// Parent.
    pub ppid: i32,
    /// Process group.
    pub pgrp: i32,
    /// Session.
    pub session: i32,
    /// Device number of the controlling terminal, 0 without one.
    pub tty: i32,
    /// Foreground process group of that terminal, -1 without one.
    pub foreground: i32,
    /// Clock ticks after boot when it started: with the pid, who it is.
    pub start: u64,
}

impl Stat {
    /// Reads it; nothing when there is no such process.
    pub fn of(pid: i32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (front, back) = text.rsplit_once(')')?;
        let comm = front.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = back.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<i64>().ok();
        let small = |index: usize| i32::try_from(number(index)?).ok();
        Some(Self {
            pid,
            comm,
            state: fields.first()?.chars().next()?,
            ppid: small(1)?,
            pgrp: small(2)?,
            session: small(3)?,
            tty: small(4)?,
            foreground: small(5)?,
            start: u64::try_from(number(19)?).ok()?,
        })
    }

    /// Whether it can still do anything: a zombie cannot.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    /// Whether it is stopped by a signal.
    pub fn is_stopped(&self) -> bool {
        self.state == 'T'
    }
}

/// Whether the process can still run an instruction (a zombie is dead).
pub fn alive(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.is_alive())
}

/// Whether the process is stopped by a signal.
pub fn stopped(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.is_stopped())
}

/// Every process there is now, zombies too.
pub fn all() -> Vec<Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Stat::of).collect()
}

/// Every living descendant, parents before children.
pub fn descendants(pid: i32) -> Vec<Stat> {
    let all = all();
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for stat in all.iter().filter(|stat| stat.ppid == parent) {
            parents.push(stat.pid);
            found.push(stat.clone());
        }
    }
    found.retain(Stat::is_alive);
    found
}

/// Direct children, zombies too.
pub fn children(pid: i32) -> Vec<Stat> {
    all().into_iter().filter(|stat| stat.ppid == pid).collect()
}

/// One line of /proc/PID/status, such as `SigIgn`.
pub fn status_field(pid: i32, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// A set of signals from /proc/PID/status (`SigBlk`, `SigIgn`, `SigCgt`), bit N-1 for signal N.
pub fn signal_set(pid: i32, field: &str) -> Option<u64> {
    u64::from_str_radix(&status_field(pid, field)?, 16).ok()
}

/// Arguments of a process, joined by blanks; empty for a zombie.
pub fn command_line(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
}

/// Clock ticks that a process has computed for so far.
pub fn cpu_ticks(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    fields.into_iter().flatten().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// How many descriptors a process has open.
pub fn descriptor_count(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0)
}

/// Cgroups beside our own whose name has one of these numbers as its last part: what a dlock or its guard
/// has made, and has not taken away.
pub fn cgroups_named_after(pids: &[i32]) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let version_2 =
        mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|words| words[2] == "cgroup2");
    let directories = version_2.filter_map(|words| std::fs::read_dir(PathBuf::from(words[1]).join(own)).ok());
    let paths = directories.flatten().flatten().map(|entry| entry.path());
    let named = |path: &PathBuf| {
        let last = path.file_name().and_then(|name| name.to_str()?.rsplit('-').next()?.parse::<i32>().ok());
        last.is_some_and(|number| pids.contains(&number))
    };
    paths.filter(named).collect()
}

/// Sends a signal; the process may be gone already.
pub fn send(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

/// A mark in the environment by which processes are found again, however far they went.
#[derive(Debug, Clone)]
pub struct Marker(String);

impl From<String> for Marker {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl Marker {
    /// The variable that carries it.
    pub const VARIABLE: &'static str = "IT_MARK";

    /// A mark that nobody else has.
    pub fn unique() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(format!("{}.{}.", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// A mark below this one: whoever looks for this one finds it as well.
    pub fn child(&self, number: u32) -> Self {
        Self(format!("{}{number}.", self.0))
    }

    /// What the variable is set to.
    pub fn value(&self) -> &str {
        &self.0
    }

    /// Every living process that carries it or a mark below it.
    pub fn bearers(&self) -> Vec<Stat> {
        let wanted = format!("{}={}", Self::VARIABLE, self.0).into_bytes();
        let mut found = all();
        found.retain(|stat| {
            stat.is_alive() && {
                let environment = std::fs::read(format!("/proc/{}/environ", stat.pid)).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(&wanted))
            }
        });
        found
    }

    /// Kills the bearers and what descends from them, until two looks in a row find nobody.
    pub fn kill_all(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        let mut quiet = 0;
        while quiet < 2 && Instant::now() < until {
            let bearers = self.bearers();
            quiet = if bearers.is_empty() { quiet + 1 } else { 0 };
            for bearer in &bearers {
                for stat in descendants(bearer.pid).iter().chain([bearer]) {
                    send(stat.pid, Signal::SIGKILL);
                }
            }
        }
    }
}
