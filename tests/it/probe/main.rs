//! The program that the tests run under `dlock`: it reports what happens to it.
//!
//! `probe [--inherited-lock FILE] MODE [ARG...]`. With `--inherited-lock` it takes a shared open file description lock on FILE
//! through a descriptor that everything it forks inherits: FILE can be locked exclusively as soon as, and not
//! before, the last of them is dead.

// A probe that cannot do its work must die loudly.
#![allow(clippy::unwrap_used)]

// The probe needs only the functions of the tests that end processes.
#[allow(dead_code)]
#[path = "../support/process.rs"]
mod process;
mod signals;
mod startup;
mod state;
mod tree;
mod witness;
mod work;

use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "--inherited-lock") {
        take_inherited_lock(&args[1]);
        args.drain(..2);
    }
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["signals", rules @ ..] => signals::report(rules),
        ["die", signal] => signals::die(signal),
        ["fds"] => state::descriptors(),
        ["state"] => state::print(),
        ["terminal"] => state::terminal(),
        ["tree", depth, file, then @ ..] => tree::grow(depth.parse().unwrap(), file, then),
        ["many", count] => tree::many(count.parse().unwrap()),
        ["sessions", count] => tree::sessions(count.parse().unwrap()),
        ["threads", processes, threads] => {
            tree::with_threads(processes.parse().unwrap(), threads.parse().unwrap())
        }
        ["families", count, file, options @ ..] => tree::families(count.parse().unwrap(), file, options),
        ["breed", count, file] => tree::breed(count.parse().unwrap(), file),
        ["hidden"] => tree::hide(),
        ["runaway", lines] => tree::run_away(lines.parse().unwrap()),
        ["fork-forever", width] => tree::fork_for_ever(width.parse().unwrap()),
        ["orphan-zombies", count] => tree::orphan_zombies(count.parse().unwrap()),
        ["short-children", count] => tree::short_children(count.parse().unwrap()),
        ["vfork"] => tree::wait_in_vfork(),
        ["traced"] => tree::trace_a_child(),
        ["hold", file, then @ ..] => work::hold(file, then),
        ["tick", file] => work::tick(file),
        ["ignore-term"] => work::ignore_term(),
        ["stop"] => work::stop(),
        ["hold-inherited-lock", fd] => hold_inherited_lock(fd.parse().unwrap()),
        ["next-holder", file] => work::next_holder(file),
        ["witness", directory, ms, then @ ..] => witness::stand(directory, ms, then),
        ["become-root"] => work::become_root(),
        ["reap", mark] => work::reap(mark),
        _ => panic!("what the probe does not know: {words:?}"),
    }
}

/// Reports that everything is set up.
fn ready() {
    say("ready");
}

/// Prints a line at once, to the file $PROBE_OUTPUT if that is set.
fn say(line: &str) {
    if let Some(path) = std::env::var_os("PROBE_OUTPUT") {
        let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
        return;
    }
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Nanoseconds of the clock that counts through suspend.
fn boot_ns() -> i64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}

/// Locks an inherited lock for everything that this process forks.
fn take_inherited_lock(file: &str) {
    let inherited_lock = std::fs::File::options().create(true).read(true).append(true).open(file).unwrap();
    let fd = inherited_lock.into_raw_fd();
    // SAFETY: a call on a descriptor that is open and stays so until this process and its forks end.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
    hold_inherited_lock(fd);
}

/// Locks the inherited lock behind a descriptor, for every process that has it.
fn hold_inherited_lock(fd: i32) {
    assert!(witness::lock(fd, libc::F_RDLCK, 0, 0), "{}", std::io::Error::last_os_error());
}

/// Whether every process that had the inherited lock is dead. Does not lock it, so two observers do not disturb each
/// other.
fn inherited_lock_is_free(inherited_lock: &std::fs::File) -> bool {
    let mut range = witness::range(libc::F_WRLCK, 0, 0);
    // SAFETY: a call on a descriptor that is open, with a pointer to a value that lives through the call.
    let result = unsafe { libc::fcntl(inherited_lock.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    range.l_type == libc::F_UNLCK as libc::c_short
}

/// Sleeps until a signal ends it.
fn pause_for_ever() -> ! {
    loop {
        nix::unistd::pause();
    }
}

/// Forks; true in the child.
fn fork() -> bool {
    // SAFETY: the probe has one thread only.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Parent { .. } => false,
        nix::unistd::ForkResult::Child => true,
    }
}

/// Exits at once, without flushing inherited buffers.
fn leave(code: i32) -> ! {
    // SAFETY: _exit(2) has no requirements.
    unsafe { libc::_exit(code) }
}
