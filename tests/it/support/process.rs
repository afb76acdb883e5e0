//! Facts about processes, from /proc.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{DirEntry, File};
use std::io::Read;
use std::os::unix::fs::DirEntryExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One line of /proc/PID/stat.
#[derive(Debug, Clone)]
pub struct Stat {
    /// Process id.
    pub pid: i32,
    /// The name of the program as the kernel has it.
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
    /// Start time in clock ticks after boot: identifies the process together with the pid.
    pub start: u64,
}

impl Stat {
    /// Reads it; `None` when the process does not exist.
    pub fn of(pid: i32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (front, back) = text.rsplit_once(')')?;
        let comm = front.split_once('(')?.1.to_owned();
        // Every process is read often, and the rest of the line is of no use.
        let fields: Vec<&str> = back.split_ascii_whitespace().take(20).collect();
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

    /// Whether it can still run: a zombie cannot.
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

/// Whether each thread of the process is stopped by a signal: until then, one that was in a system call may finish it.
pub fn wholly_stopped(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    stopped(pid) && threads.filter_map(Stat::of).all(|stat| stat.is_stopped())
}

/// Every process that exists now, including zombies.
pub fn all() -> Vec<Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Stat::of).collect()
}

/// Every live descendant, parents before children.
pub fn descendants(pid: i32) -> Vec<Stat> {
    descendants_in(&all(), pid)
}

fn descendants_in(all: &[Stat], pid: i32) -> Vec<Stat> {
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

/// Direct children, including zombies. While some of them end, others may be left out.
pub fn children(pid: i32) -> Vec<Stat> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let Ok(lists) = lists.collect::<Result<Vec<String>, _>>() else {
        // A kernel without these lists, or a thread that has ended.
        return all().into_iter().filter(|stat| stat.ppid == pid).collect();
    };
    let pids = lists.iter().flat_map(|list| list.split_ascii_whitespace()).filter_map(|pid| pid.parse().ok());
    pids.filter_map(Stat::of).filter(|stat| stat.ppid == pid).collect()
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

/// Clock ticks of CPU time that a process has used.
pub fn cpu_ticks(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    fields.into_iter().flatten().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Number of open descriptors of a process.
pub fn descriptor_count(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0)
}

/// Cgroups beside that of the tests whose name ends in one of these numbers: those that a dlock or its guard
/// has created and not removed.
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

/// Sends a signal to each process, as `kill -- -1` does: busy processors do not delay one after the other, if this process
/// has the privilege for that. Processes may be gone already.
pub fn send_to_all(pids: &[i32], signal: Signal) {
    const HIGHEST: i32 = -20;
    // SAFETY: getpriority(2) and setpriority(2) take integers; 0 is the calling thread.
    let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // SAFETY: as above.
    let set = |nice| unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    set(HIGHEST);
    pids.iter().for_each(|pid| send(*pid, signal));
    set(before);
}

/// Now, as the start time of a process is given.
fn ticks_since_boot() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").expect("a file of Linux");
    // Hundredths of a second are ticks, cut off as those of a start time are.
    let digits: String = text.chars().take_while(|char| *char != ' ').filter(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Every process that exists now and was started at this time or later, in clock ticks after boot.
///
/// Tests ask thousands of times, and most processes are servers of other tests, or threads of the kernel: the start of each
/// is read once. A directory of /proc has the same inode number as long as its process exists, unless the kernel needs the
/// memory: then the start is read again.
fn started_since(ticks: u64) -> Vec<i32> {
    static STARTS: Mutex<BTreeMap<(i32, u64), u64>> = Mutex::new(BTreeMap::new());
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pid = |entry: &DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let directories: Vec<(i32, u64)> =
        entries.flatten().filter_map(|entry| Some((pid(&entry)?, entry.ino()))).collect();
    let mut starts = STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = |directory: &(i32, u64)| {
        let start = starts.get(directory).copied().or_else(|| Some(Stat::of(directory.0)?.start));
        Some((*directory, start?))
    };
    *starts = directories.iter().filter_map(known).collect();
    starts.iter().filter(|(_, start)| **start >= ticks).map(|((pid, _), _)| *pid).collect()
}

/// Room for the environment of most processes.
const LONGEST_ENVIRONMENT: usize = 1 << 16;

/// Whether one of the variables begins with these bytes. Of thousands of environments most have none that does, and the tests
/// are compiled without optimization: so the C library searches.
fn has_variable(environment: &[u8], wanted: &[u8]) -> bool {
    let mut rest = 0;
    while let Some(found) = find(&environment[rest..], wanted) {
        let at = rest + found;
        if at == 0 || environment[at - 1] == 0 {
            return true;
        }
        rest = at + 1;
    }
    false
}

/// The first place of these bytes.
fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    // SAFETY: both are slices, with their lengths.
    let found =
        unsafe { libc::memmem(bytes.as_ptr().cast(), bytes.len(), wanted.as_ptr().cast(), wanted.len()) };
    (!found.is_null()).then(|| found as usize - bytes.as_ptr() as usize)
}

/// A marker in the environment by which processes are found again, wherever they moved.
#[derive(Debug, Clone)]
pub struct Marker {
    value: String,
    /// When it was made, in clock ticks after boot: processes that were there before do not carry it.
    made: u64,
}

impl From<String> for Marker {
    fn from(value: String) -> Self {
        Self { value, made: 0 }
    }
}

impl Marker {
    /// The variable that carries it.
    pub const VARIABLE: &'static str = "IT_MARK";

    /// A unique marker.
    pub fn unique() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let value = format!("{}.{}.", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { value, made: ticks_since_boot() }
    }

    /// A marker below this one: a search for this one finds it as well.
    pub fn child(&self, number: u32) -> Self {
        Self { value: format!("{}{number}.", self.value), made: self.made }
    }

    /// The value of the variable.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Every live process that carries it or a marker below it.
    pub fn bearers(&self) -> Vec<Stat> {
        let wanted = format!("{}={}", Self::VARIABLE, self.value).into_bytes();
        let mut environment = Vec::with_capacity(LONGEST_ENVIRONMENT);
        let mut carries = |pid: &i32| {
            environment.clear();
            let read = File::open(format!("/proc/{pid}/environ"));
            let read = read.and_then(|mut file| file.read_to_end(&mut environment));
            read.is_ok() && has_variable(&environment, &wanted)
        };
        let found = started_since(self.made).into_iter().filter(|pid| carries(pid));
        found.filter_map(Stat::of).filter(Stat::is_alive).collect()
    }

    /// Kills the bearers and their descendants, until two scans in a row find none.
    pub fn kill_all(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        let mut quiet = 0;
        while quiet < 2 && Instant::now() < until {
            let bearers = self.bearers();
            if bearers.is_empty() {
                quiet += 1;
                continue;
            }
            quiet = 0;
            let all = all();
            for bearer in &bearers {
                for stat in descendants_in(&all, bearer.pid).iter().chain([bearer]) {
                    send(stat.pid, Signal::SIGKILL);
                }
            }
        }
    }
}
