//! The state that a process has inherited, or finds.

use crate::{say, startup};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

/// Prints each open descriptor and its target.
pub fn descriptors() {
    let mut lines = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let fd: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        if let Ok(target) = std::fs::read_link(entry.path()) {
            lines.insert(fd, target.display().to_string());
        }
    }
    // The directory that was just read is open no longer.
    let own = format!("/proc/{}/fd", std::process::id());
    lines.retain(|_, target| *target != own);
    let closed = |fd: &i32| startup::open_streams().get(usize::try_from(*fd).unwrap()) == Some(&false);
    lines.retain(|fd, _| !closed(fd));
    for (fd, target) in lines {
        say(&format!("{fd} {target}"));
    }
}

/// Prints everything as one JSON object.
pub fn print() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default();
        line.trim().to_owned()
    };
    // Rust's start-up code has ignored SIGPIPE, whatever its action was.
    let pipe = startup::bit(libc::SIGPIPE);
    let mut ignored = u64::from_str_radix(&field("SigIgn"), 16).unwrap();
    ignored = if startup::was_ignored(Signal::SIGPIPE) { ignored | pipe } else { ignored & !pipe };
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let stat: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    let state = json!({
        "blocked": field("SigBlk"),
        "ignored": format!("{ignored:016x}"),
        "pending": field("SigPnd"),
        "umask": field("Umask"),
        "uids": field("Uid"),
        "gids": field("Gid"),
        "groups": field("Groups"),
        "no_new_privileges": field("NoNewPrivs"),
        "affinity": field("Cpus_allowed"),
        "capabilities": [field("CapInh"), field("CapPrm"), field("CapEff"), field("CapBnd"), field("CapAmb")],
        "subreaper": subreaper(),
        "death_signal": death_signal(),
        "nice": stat[16],
        "policy": stat[38],
        "tty": stat[4],
        "foreground": stat[5],
        "pid": std::process::id(),
        "pgrp": nix::unistd::getpgrp().as_raw(),
        "session": nix::unistd::getsid(None).unwrap().as_raw(),
        "directory": std::env::current_dir().map(|path| path.display().to_string()).unwrap_or_default(),
        "oom_score_adj": std::fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim(),
        "timer_slack": timer_slack(),
        "limits": limits(),
        "streams": startup::open_streams(),
        "environment": environment,
        "arguments": std::env::args().collect::<Vec<_>>(),
    });
    say(&state.to_string());
}

fn limits() -> BTreeMap<String, Value> {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap();
    let split = |line: &str| Some((line.get(..26)?.trim().to_owned(), json!(line.get(26..)?.trim())));
    text.lines().skip(1).filter_map(split).collect()
}

fn subreaper() -> i32 {
    let mut value = -1;
    // SAFETY: the kernel writes one int.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut value) };
    value
}

fn death_signal() -> i32 {
    let mut value = -1;
    // SAFETY: the kernel writes one int.
    unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut value) };
    value
}

fn timer_slack() -> i32 {
    // SAFETY: the call only reads.
    unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
}

/// Prints what the terminal on standard input reports about this process, as one JSON object, and waits for a
/// line: the output of a session leader just before its end is not always shown.
pub fn terminal() {
    // SAFETY: standard input stays open while this runs.
    let input = unsafe { BorrowedFd::borrow_raw(0) };
    let foreground = nix::unistd::tcgetpgrp(input).map(nix::unistd::Pid::as_raw).unwrap_or(-1);
    let own = nix::unistd::getpgrp().as_raw();
    say(&json!({"group_of_its_own": own == nix::unistd::getpid().as_raw(), "foreground": foreground == own})
        .to_string());
    let _ = std::io::stdin().read_line(&mut String::new());
}
