//! The processes that descend from this one, and signals for all of them. As a subreaper, a half of dlock is an
//! ancestor of every process of the command's tree: those that forked twice and those in sessions of their own too.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;

use super::sys;

/// What came of signalling a tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Processes that are there and may not be signalled by us (a setuid command).
    pub not_permitted: BTreeSet<i32>,
}

/// Every living descendant of `root`, parents before children. Without `/proc` there is nothing to be found.
pub fn descendants(root: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut seen = HashSet::from([root]);
    let mut next = 0;
    let mut parent = root;
    loop {
        for child in children(parent) {
            if seen.insert(child) {
                found.push(child);
            }
        }
        match found.get(next) {
            Some(pid) => parent = *pid,
            None => return found,
        }
        next += 1;
    }
}

/// The children of one process, of whichever of its threads (`proc_pid_task_tid_children(5)`).
fn children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut children = Vec::new();
    for task in tasks.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(list) => {
                children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()))
            }
            // A kernel without CONFIG_PROC_CHILDREN; a task that has just ended has no children file either.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !has_children_files() => {
                return children_by_scan(pid);
            }
            Err(_) => {}
        }
    }
    children
}

fn has_children_files() -> bool {
    fs::exists(format!("/proc/self/task/{}/children", std::process::id())).unwrap_or(false)
}

fn children_by_scan(parent: i32) -> Vec<i32> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    all.flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| parent_of(*pid) == Some(parent))
        .collect()
}

/// The parent of a process (field 4 of `proc_pid_stat(5)`).
pub fn parent_of(pid: i32) -> Option<i32> {
    stat_field(pid, 4)?.parse().ok()
}

/// The one-letter state of a process (field 3 of `proc_pid_stat(5)`).
pub fn state_of(pid: i32) -> Option<char> {
    stat_field(pid, 3)?.chars().next()
}

/// When a process began, in clock ticks since boot (field 22 of `proc_pid_stat(5)`).
pub fn start_of(pid: i32) -> Option<u64> {
    stat_field(pid, 22)?.parse().ok()
}

/// The process group of a process (field 5 of `proc_pid_stat(5)`).
pub fn group_of(pid: i32) -> Option<i32> {
    stat_field(pid, 5)?.parse().ok()
}

/// One field of `proc_pid_stat(5)`, counted from 1; at least 3, because the name before may hold anything.
fn stat_field(pid: i32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &stat[stat.rfind(')')? + 1..];
    rest.split_ascii_whitespace().nth(number - 3).map(str::to_owned)
}

/// Whether another process than this one is in our process group; `None` where that cannot be known.
pub fn group_is_shared(but_for: &[i32]) -> Option<bool> {
    let group = nix::unistd::getpgrp().as_raw();
    let own = std::process::id() as i32;
    let all = fs::read_dir("/proc").ok()?;
    Some(
        all.flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| *pid != own && !but_for.contains(pid))
            .filter(|pid| group_of(*pid) == Some(group))
            // The parked command may not be among them yet.
            .any(|pid| parent_of(pid).is_some_and(|parent| !but_for.contains(&parent))),
    )
}

/// Sends `signals`, in order, once to each process below `root` except those in `but_for`.
pub fn signal(root: i32, signals: &[i32], but_for: &[i32]) -> Outcome {
    let mut outcome = Outcome::default();
    let found = descendants(root);
    let family: HashSet<i32> = found.iter().copied().chain([root]).collect();
    for pid in found.into_iter().filter(|pid| !but_for.contains(pid)) {
        for signal in signals {
            match signal_one(pid, *signal, &family) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && state_of(pid) != Some('Z') => {
                    outcome.not_permitted.insert(pid);
                }
                Err(_) => {}
            }
        }
    }
    outcome
}

/// Signals a process that was seen in the family a moment ago. Its number may mean another process by now; a pidfd pins
/// whatever it means, and only if that is still a child of the family is it signalled.
#[cfg(target_os = "linux")]
fn signal_one(pid: i32, signal: i32, family: &HashSet<i32>) -> io::Result<()> {
    use std::os::fd::AsFd;
    let gone = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
    let pinned = match sys::pidfd_open(pid) {
        Err(error) if gone(&error) => return Err(error),
        pinned => pinned,
    };
    let is_ours = |parent| family.contains(&parent) || parent == std::process::id() as i32;
    if !parent_of(pid).is_some_and(is_ours) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    match pinned.and_then(|pidfd| sys::pidfd_send_signal(pidfd.as_fd(), signal)) {
        // An old kernel, or a sandbox that does not know the call: kill(2) tells the truth there.
        Err(error) if !gone(&error) => sys::kill(pid, signal),
        result => result,
    }
}

#[cfg(not(target_os = "linux"))]
fn signal_one(pid: i32, signal: i32, _family: &HashSet<i32>) -> io::Result<()> {
    sys::kill(pid, signal)
}
