//! Processes that are hard to find, hard to count, or hard to kill.

use crate::{boot_ns, fork, leave, pause_for_ever, ready, say, work};
use nix::sys::signal::{SigSet, Signal};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Grows a chain of DEPTH processes, each in a separate session and an orphan (double fork), which
/// write their pids to FILE, ignore every signal they can and live forever. Prints `ready` when the last
/// of them has started, then lives on like them, or exits with a status: `then exit N`.
pub fn grow(depth: usize, file: &str, then: &[&str]) -> ! {
    work::ignore_every_signal();
    let (mut last, announce) = std::io::pipe().unwrap();
    if depth > 0 && fork() {
        drop(last);
        branch(depth, file, announce);
    }
    drop(announce);
    // One byte from the end of the chain, or the end of the pipe when a process died too early.
    assert!(depth == 0 || last.read_exact(&mut [0]).is_ok(), "the tree has died while it grew");
    reap_children();
    match then {
        ["exit", code] => {
            ready();
            leave(code.parse().unwrap())
        }
        ["fork-forever"] => fork_for_ever(2),
        _ => {
            write_down(file);
            ready();
            pause_for_ever()
        }
    }
}

/// One member: a new session, then an orphan, then the rest of the chain below it.
fn branch(depth: usize, file: &str, mut announce: std::io::PipeWriter) -> ! {
    nix::unistd::setsid().unwrap();
    if !fork() {
        leave(0);
    }
    write_down(file);
    if depth > 1 {
        if fork() {
            branch(depth - 1, file, announce);
        }
    } else {
        announce.write_all(b".").unwrap();
    }
    drop(announce);
    pause_for_ever()
}

fn write_down(file: &str) {
    let mut file = std::fs::File::options().create(true).append(true).open(file).unwrap();
    file.write_all(format!("{}\n", std::process::id()).as_bytes()).unwrap();
}

/// Forks COUNT children that ignore every signal they can and live forever, prints `ready`, and lives forever itself.
pub fn many(count: usize) -> ! {
    work::ignore_every_signal();
    for _ in 0..count {
        if fork() {
            pause_for_ever();
        }
    }
    ready();
    pause_for_ever()
}

/// Forks COUNT children, each in a separate session, prints `ready`, and lives forever like them.
pub fn sessions(count: usize) -> ! {
    work::ignore_every_signal();
    for _ in 0..count {
        if fork() {
            nix::unistd::setsid().unwrap();
            pause_for_ever();
        }
    }
    ready();
    pause_for_ever()
}

/// Forks PROCESSES children in separate sessions with THREADS threads each, prints `ready` when all threads are
/// running, and lives forever like them.
pub fn with_threads(processes: usize, threads: usize) -> ! {
    work::ignore_every_signal();
    for _ in 0..processes {
        let (mut all, announce) = std::io::pipe().unwrap();
        if fork() {
            drop(all);
            nix::unistd::setsid().unwrap();
            for _ in 1..threads {
                std::thread::Builder::new().stack_size(16 << 10).spawn(|| pause_for_ever()).unwrap();
            }
            drop(announce);
            pause_for_ever();
        }
        drop(announce);
        all.read_to_end(&mut Vec::new()).unwrap();
    }
    ready();
    pause_for_ever()
}

/// Leaves an orphan in a separate session that is not dumpable, so that /proc hides it under hidepid=2; prints `ready`
/// and lives forever like it.
pub fn hide() -> ! {
    work::ignore_every_signal();
    let (mut is_hidden, announce) = std::io::pipe().unwrap();
    if fork() {
        if fork() {
            nix::unistd::setsid().unwrap();
            nix::sys::prctl::set_dumpable(false).unwrap();
            drop(announce);
            pause_for_ever();
        }
        leave(0);
    }
    drop(announce);
    reap_one();
    is_hidden.read_to_end(&mut Vec::new()).unwrap();
    ready();
    pause_for_ever()
}

/// Starts LINES chains of processes: each process forks its successor in a new session and ends, without a pause. When
/// they are not reaped, they print `crowded` and pause forever before the host runs out of processes.
pub fn run_away(lines: usize) -> ! {
    work::ignore_every_signal();
    let many = tasks() + 6000;
    for _ in 0..lines {
        if fork() {
            let mut generation = 0u32;
            loop {
                if !fork() {
                    leave(0);
                }
                let _ = nix::unistd::setsid();
                generation += 1;
                if generation.is_multiple_of(64) {
                    await_room(many);
                }
            }
        }
    }
    ready();
    pause_for_ever()
}

/// Starts WIDTH chains of processes of which each one forks the next and exits: a process found in
/// /proc is gone by the time it is signalled. When they are not reaped, they print `crowded` and pause forever
/// before the host runs out of processes.
pub fn fork_for_ever(width: usize) -> ! {
    work::ignore_every_signal();
    let many = tasks() + 6000;
    for _ in 0..width {
        if fork() {
            loop {
                await_room(many);
                if fork() {
                    std::thread::sleep(Duration::from_micros(500));
                } else {
                    leave(0);
                }
            }
        }
    }
    ready();
    loop {
        reap_children();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits while the host has more tasks than this: others run tests as well, and who reaps needs time on a busy host. If
/// that lasts for three seconds, prints `crowded` and pauses forever.
fn await_room(many: u32) {
    let until = Instant::now() + Duration::from_secs(3);
    while tasks() > many {
        if Instant::now() > until {
            say("crowded");
            pause_for_ever();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many tasks the host has, zombies counted too.
fn tasks() -> u32 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').nth(3).and_then(|tasks| tasks.split_once('/')?.1.parse().ok()).unwrap_or(0)
}

/// Leaves COUNT orphans which end at once, at most a hundred of them at a time.
pub fn orphan_zombies(count: usize) {
    for _ in 0..count {
        if fork() {
            // The parent of the next one is gone before it ends: its new parent must reap it.
            fork();
            leave(0);
        }
        reap_one();
    }
    say("done");
}

/// Runs COUNT short children one after another, as a loop in a shell does.
pub fn short_children(count: usize) {
    for _ in 0..count {
        if fork() {
            leave(0);
        }
        reap_one();
    }
    say("done");
}

/// Waits in vfork(2) for a child that never calls exec.
pub fn wait_in_vfork() -> ! {
    ready();
    // SAFETY: without CLONE_VM this is fork(2), except that the parent waits; there is one thread only.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0, 0, 0, 0) };
    assert_eq!(child, 0, "the parent goes on although its child still lives");
    pause_for_ever()
}

/// Holds a child in a ptrace stop, as a debugger does.
pub fn trace_a_child() -> ! {
    if fork() {
        // SAFETY: PTRACE_TRACEME takes no arguments.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_TRACEME) }, 0);
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP).unwrap();
        pause_for_ever();
    }
    let stopped = nix::sys::wait::waitpid(None, Some(nix::sys::wait::WaitPidFlag::WUNTRACED)).unwrap();
    assert!(matches!(stopped, nix::sys::wait::WaitStatus::Stopped(..)), "{stopped:?} at {}", boot_ns());
    ready();
    pause_for_ever()
}

fn reap_one() {
    let _ = nix::sys::wait::wait();
}

fn reap_children() {
    while matches!(
        nix::sys::wait::waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG)),
        Ok(status) if status != nix::sys::wait::WaitStatus::StillAlive
    ) {}
}

/// Forks COUNT parents, of which each one forks a child, in a session of its own if there is a `session`. The parents die of
/// SIGTERM. A child appends `got PID` to FILE for each SIGTERM, and begins to clean up at the first one: it leaves an orphan,
/// which appends `cleaning PID` if it gets a SIGTERM too. Both exit after a while. Prints `ready` when all are prepared.
pub fn families(count: usize, file: &str, options: &[&str]) -> ! {
    let (mut prepared, announce) = std::io::pipe().unwrap();
    for _ in 0..count {
        if fork() {
            drop(prepared);
            if fork() {
                if options == ["session"] {
                    nix::unistd::setsid().unwrap();
                }
                block_term();
                drop(announce);
                count_terms(file)
            }
            drop(announce);
            pause_for_ever();
        }
    }
    drop(announce);
    prepared.read_to_end(&mut Vec::new()).unwrap();
    ready();
    pause_for_ever()
}

/// Starts COUNT parents, which die of SIGTERM and until then fork children one after another, while those live. A child
/// appends `born PID` to FILE when it is prepared, and then does what the children of [`families`] do. Prints `ready` when
/// the first ones are prepared.
pub fn breed(count: usize, file: &str) -> ! {
    /// Each parent has no more than that many children.
    const MANY: usize = 100;
    /// Processes that only take time to be found and to be signalled, so that more is forked meanwhile. They are younger than
    /// the parents, and so come before the children.
    const BALLAST: usize = 400;
    const PERIOD: Duration = Duration::from_millis(20);
    /// SIGTERM ends a child for that long, and is then blocked for longer before the child waits for it: some children are
    /// found while it would end them, and survive it.
    const PREPARATION: Duration = Duration::from_millis(20);
    for index in 0..count {
        if fork() {
            // They fork in turn, not all at the same moment.
            std::thread::sleep(PERIOD / count as u32 * index as u32);
            for _ in 0..MANY {
                if fork() {
                    std::thread::sleep(PREPARATION);
                    block_term();
                    note(file, "born");
                    std::thread::sleep(5 * PREPARATION);
                    count_terms(file)
                }
                std::thread::sleep(PERIOD);
            }
            pause_for_ever();
        }
    }
    let (mut prepared, announce) = std::io::pipe().unwrap();
    if fork() {
        drop(prepared);
        for _ in 0..BALLAST {
            if fork() {
                drop(announce);
                pause_for_ever();
            }
        }
        drop(announce);
        pause_for_ever();
    }
    drop(announce);
    prepared.read_to_end(&mut Vec::new()).unwrap();
    while std::fs::metadata(file).map_or(0, |metadata| metadata.len()) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    ready();
    pause_for_ever()
}

fn block_term() {
    term().thread_block().unwrap();
}

fn term() -> SigSet {
    SigSet::from_iter([Signal::SIGTERM])
}

/// Counts the SIGTERMs of a member of a family, as described there.
fn count_terms(file: &str) -> ! {
    term().wait().unwrap();
    note(file, "got");
    if fork() {
        if fork() {
            watch_for_term(file, "cleaning");
        }
        // Long enough to be found with the orphan below it.
        std::thread::sleep(Duration::from_millis(30));
        leave(0);
    }
    reap_one();
    watch_for_term(file, "got")
}

/// Notes each further SIGTERM, for a while, and exits.
fn watch_for_term(file: &str, what: &str) -> ! {
    /// Much longer than the stop signal takes to reach every process.
    const A_WHILE: Duration = Duration::from_secs(2);
    let until = Instant::now() + A_WHILE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            leave(0);
        }
        let left = libc::timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // SAFETY: the pointers are to values that live through the call; a null siginfo is not written.
        let signal = unsafe { libc::sigtimedwait(term().as_ref(), std::ptr::null_mut(), &raw const left) };
        if signal == libc::SIGTERM {
            note(file, what);
        }
    }
}

fn note(file: &str, what: &str) {
    let mut file = std::fs::File::options().create(true).append(true).open(file).unwrap();
    file.write_all(format!("{what} {}\n", std::process::id()).as_bytes()).unwrap();
}
