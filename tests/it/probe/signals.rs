//! Signals: which arrive, from which sender, how often.

use crate::{leave, ready, say};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use std::path::Path;

/// Prints a line for each signal, `NAME kernel` or `NAME PID`, after `ready`.
///
/// Rules: `exit:NAME=N` exits with N at that signal; `die:NAME` dies of it; `stop:NAME` stops itself at it;
/// `leave:FILE=N` exits with N once FILE exists.
pub fn report(rules: &[&str]) -> ! {
    let mut wanted = SigSet::all();
    for not in [Signal::SIGKILL, Signal::SIGSTOP, Signal::SIGCHLD, Signal::SIGSEGV, Signal::SIGBUS] {
        wanted.remove(not);
    }
    // The kernel keeps even an ignored signal for a process that blocks it; signals ignored at start are not reported.
    for signal in Signal::iterator().filter(|signal| crate::startup::was_ignored(*signal)) {
        wanted.remove(signal);
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&wanted), None).unwrap();
    ready();
    let file = rules.iter().find_map(|rule| rule.strip_prefix("leave:")?.split_once('='));
    loop {
        if let Some((file, code)) = file
            && Path::new(file).exists()
        {
            leave(code.parse().unwrap());
        }
        let Some((signal, sender)) = next(&wanted) else { continue };
        let name = signal.as_str().trim_start_matches("SIG").to_owned();
        say(&format!("{name} {sender}"));
        for rule in rules {
            if let Some((which, code)) = rule.strip_prefix("exit:").and_then(|rule| rule.split_once('='))
                && which == name
            {
                leave(code.parse().unwrap());
            }
            if rule.strip_prefix("die:") == Some(name.as_str()) {
                die(&name);
            }
            if rule.strip_prefix("stop:") == Some(name.as_str()) {
                nix::sys::signal::raise(Signal::SIGSTOP).unwrap();
            }
        }
    }
}

/// Takes the next signal and its sender, if one arrives within some milliseconds.
fn next(wanted: &SigSet) -> Option<(Signal, String)> {
    let patience = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    // SAFETY: an all-zero siginfo is a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the three pointers are to values that live through the call.
    let number = unsafe { libc::sigtimedwait(wanted.as_ref(), &raw mut info, &raw const patience) };
    let signal = Signal::try_from(number).ok()?;
    // SAFETY: si_pid is set for every signal that another process sent.
    let sender = if info.si_code > 0 { "kernel".to_owned() } else { unsafe { info.si_pid() }.to_string() };
    Some((signal, sender))
}

/// Dies of a signal, named or numbered, with its default action.
pub fn die(signal: &str) -> ! {
    let number =
        signal.parse::<i32>().unwrap_or_else(|_| format!("SIG{signal}").parse::<Signal>().unwrap() as i32);
    // SAFETY: default action, an empty mask, and a signal to ourselves; real-time signals have no name in nix.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::kill(libc::getpid(), number);
    }
    leave(99)
}
