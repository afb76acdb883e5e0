//! Information about processes from `/proc` (`proc(5)`).

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Reads a file that the kernel generates. Its size is unknown and most have less than a page: two calls are enough,
/// where [`fs::read_to_string`] begins with 32 bytes.
///
/// # Errors
/// The file cannot be opened or read, or is not UTF-8.
pub(super) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::with_capacity(4096);
    File::open(path)?.take(u64::MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns whether `/proc` exists and shows this process's PID namespace. After `unshare --pid --fork` without a new
/// mount, `/proc` shows the pids of the outer namespace: the same numbers refer to other processes here.
pub fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| {
        let shown = fs::read_link("/proc/self").ok();
        shown.is_some_and(|shown| shown.as_os_str() == std::process::id().to_string().as_str())
    })
}

/// Returns why `/proc` is not usable, in a few words.
pub fn why_unusable() -> Option<&'static str> {
    let shows_something = || fs::exists("/proc/stat").unwrap_or(false);
    match is_usable() {
        true => None,
        false if shows_something() => Some("/proc belongs to another PID namespace"),
        false => Some("no /proc here"),
    }
}

/// Fields of `proc_pid_stat(5)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// One letter: `R`, `S`, `D`, `T` (stopped), `t` (stopped by a tracer), `Z`, ...
    pub state: char,
    /// Its parent, or 0 if that is outside of this PID namespace.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its start time, in clock ticks since boot.
    pub start: u64,
    /// The signals 1 to 31 that it ignores or catches, with bit N-1 for signal N.
    not_default: u64,
    /// The kernel has begun to end it, or its only thread ends: it forks nothing more.
    is_ending: bool,
}

impl Stat {
    /// Reads the fields; `None` if there is no such process, or it is hidden from this one (`hidepid`).
    pub fn of(pid: i32) -> Option<Stat> {
        if !is_usable() {
            return None;
        }
        let stat = read(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain anything.
        let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let mut number = |skipped| fields.nth(skipped)?.parse::<u64>().ok();
        let flags = number(3)?;
        let threads = number(10)?;
        let start = number(1)?;
        let pending = number(8)?;
        let not_default = number(1)? | number(0)?;
        // The first thread may end before the others.
        let exits = flags & PF_EXITING != 0 && threads <= 1;
        let is_ending = exits || flags & PF_SIGNALED != 0 || pending & bit(libc::SIGKILL) != 0;
        Some(Stat { state, parent, group, start, not_default, is_ending })
    }

    /// Returns whether it leaves the default action to a signal, which it may block; `None` for a real-time signal, which these
    /// fields do not include.
    pub fn leaves_default(&self, signal: i32) -> Option<bool> {
        (signal < 32).then_some(self.not_default & bit(signal) == 0)
    }
}

/// Flags of a thread that is ending, and of one that a signal ends (`linux/sched.h`).
const PF_EXITING: u64 = 0x4;
const PF_SIGNALED: u64 = 0x400;

/// Returns whether a process has ended and waits to be reaped. Its first thread may have ended before the others, which
/// live on.
pub fn is_zombie(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| matches!(stat.state, 'Z' | 'X')) && threads_of(pid) <= 1
}

/// Returns whether a process is gone, or the kernel has begun to end it. When a signal is sent whose default action ends the
/// process, that usually begins at once; if the process is stopped or traced, has other signals pending, or blocks
/// this one, or if a core is dumped, it begins when the process takes the signal.
pub fn is_ending(pid: i32) -> bool {
    match Stat::of(pid) {
        Some(stat) => stat.is_ending,
        // Nor is it there if no descriptor is left to read that.
        None => !Path::new(&format!("/proc/{pid}")).exists(),
    }
}

/// Returns the parent of a process.
pub fn parent_of(pid: i32) -> Option<i32> {
    Stat::of(pid).map(|stat| stat.parent)
}

/// Returns the one-letter state of a process.
pub fn state_of(pid: i32) -> Option<char> {
    Stat::of(pid).map(|stat| stat.state)
}

/// Returns whether a process is stopped, by a signal or by a tracer.
pub fn is_stopped(pid: i32) -> bool {
    matches!(state_of(pid), Some('T' | 't'))
}

/// Returns how long the calling process has run on a processor or waited for one (`/proc/PID/schedstat`). This time stands
/// still while the process is frozen or its host is suspended. `None` if the kernel does not account for it.
pub fn scheduled_time() -> Option<Duration> {
    let text = read("/proc/self/schedstat").ok()?;
    let mut fields = text.split_ascii_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_nanos(next()?.saturating_add(next()?)))
}

/// Returns the process group of a process, without using `/proc`.
pub fn group_of(pid: i32) -> Option<i32> {
    use nix::unistd::{Pid, getpgid};
    getpgid(Some(Pid::from_raw(pid))).ok().map(Pid::as_raw)
}

/// Returns the start time of a process, in clock ticks since boot.
pub fn start_of(pid: i32) -> Option<u64> {
    Stat::of(pid).map(|stat| stat.start)
}

/// Returns the number of threads of a process; 0 if it is gone.
pub fn threads_of(pid: i32) -> usize {
    use std::os::unix::fs::MetadataExt;
    // One directory for each thread, plus the usual two links: one for itself and one from its parent.
    fs::metadata(format!("/proc/{pid}/task")).map_or(0, |tasks| tasks.nlink().saturating_sub(2) as usize)
}

/// The signal state of a process (`proc_pid_status(5)`): sets with bit N-1 for signal N.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// The context switches of the first thread: if the number has not changed, it has slept meanwhile.
    switches: u64,
    pending: u64,
    blocked: u64,
    ignored: u64,
    caught: u64,
}

impl Signals {
    /// Returns whether the signal has been sent and not been taken yet.
    pub fn is_pending(&self, signal: i32) -> bool {
        self.pending & bit(signal) != 0
    }

    /// Marks a pending signal as taken; returns whether it was pending.
    pub fn take_pending(&mut self, signal: i32) -> bool {
        let was_pending = self.is_pending(signal);
        self.pending &= !bit(signal);
        was_pending
    }

    /// Returns whether the kernel takes its default action as soon as it is sent.
    pub fn is_default(&self, signal: i32) -> bool {
        self.leaves_default(signal) && self.blocked & bit(signal) == 0
    }

    /// Returns whether its default action is left to it, as soon as it is not blocked.
    pub fn leaves_default(&self, signal: i32) -> bool {
        (self.ignored | self.caught) & bit(signal) == 0
    }
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1).clamp(0, 63)
}

/// Returns the signal state of a process; `None` if it is gone or hidden.
pub fn signals_of(pid: i32) -> Option<Signals> {
    if !is_usable() {
        return None;
    }
    let status = read(format!("/proc/{pid}/status")).ok()?;
    let mut signals = Signals::default();
    for line in status.lines() {
        let Some((name, value)) = line.split_once(":\t") else { continue };
        if name.ends_with("voluntary_ctxt_switches") {
            signals.switches += value.parse::<u64>().unwrap_or(0);
        }
        let set = match name {
            "SigPnd" | "ShdPnd" => &mut signals.pending,
            "SigBlk" => &mut signals.blocked,
            "SigIgn" => &mut signals.ignored,
            "SigCgt" => &mut signals.caught,
            _ => continue,
        };
        *set |= u64::from_str_radix(value, 16).ok()?;
    }
    Some(signals)
}

/// Returns whether a thread of the process is in `sigwait(3)`. The signals that it waits for are unblocked meanwhile, and
/// seem to have their default action. `None` if one is running, or the kernel does not show
/// where one sleeps.
pub fn is_awaiting_signals(pid: i32) -> Option<bool> {
    let mut known = true;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let wait_channel = read(task.path().join("wchan")).unwrap_or_default();
        if wait_channel.contains("sigtimedwait") {
            return Some(true);
        }
        known &= !matches!(wait_channel.as_str(), "" | "0");
    }
    known.then_some(false)
}

/// Returns the pid of the process that was created last in this PID namespace (`proc_loadavg(5)`).
pub fn newest() -> Option<i32> {
    if !is_usable() {
        return None;
    }
    read("/proc/loadavg").ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// Returns every visible process.
pub fn all() -> Vec<i32> {
    if !is_usable() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The children of a process, if they can be read cheaply.
pub enum Children {
    /// All of them, in the order in which they became its children.
    Listed(Vec<i32>),
    /// Not known: it has many threads, each with a separate list, or the kernel keeps no lists
    /// (`CONFIG_PROC_CHILDREN`). They can be found by scanning the parents of all processes.
    Unlisted,
    /// They cannot be read: no descriptor or no memory is available, or a security module does not allow it.
    Unreadable,
}

/// Beyond this number of threads a scan of all processes is cheaper than a list for each thread.
const FEW_THREADS: usize = 16;

/// Returns the children of one process, whichever of its threads forked them (`proc_pid_task_tid_children(5)`).
pub fn children(pid: i32) -> Children {
    if !is_usable() {
        return Children::Listed(Vec::new());
    }
    let tasks = match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(tasks) => tasks,
        Err(error) if is_gone(&error) => return Children::Listed(Vec::new()),
        Err(_) => return Children::Unreadable,
    };
    let mut children = Vec::new();
    for (index, task) in tasks.flatten().enumerate() {
        if index == FEW_THREADS {
            return Children::Unlisted;
        }
        match read(task.path().join("children")) {
            Ok(list) => {
                children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
            }
            // A thread that has just ended has no list, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !has_lists() => {
                return Children::Unlisted;
            }
            Err(error) if is_gone(&error) => {}
            Err(_) => return Children::Unreadable,
        }
    }
    Children::Listed(children)
}

/// Returns whether the process or thread has ended.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

fn has_lists() -> bool {
    fs::exists(format!("/proc/self/task/{}/children", std::process::id())).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handled_signals_of_this_process_are_read() {
        let own = std::process::id() as i32;
        let stat = Stat::of(own).expect("a process that runs");
        // The test harness, as every Rust program, ignores SIGPIPE and leaves SIGTERM alone.
        assert_eq!(stat.leaves_default(libc::SIGPIPE), Some(false));
        assert_eq!(stat.leaves_default(libc::SIGTERM), Some(true));
        assert_eq!(stat.leaves_default(libc::SIGRTMIN()), None);
    }
}
