//! Work whose start and end can be seen afterwards.

use crate::process::Marker;
use crate::{boot_ns, leave, pause_for_ever, ready, say};
use nix::sys::signal::{SigHandler, Signal, signal};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Appends `start PID NS` to FILE, works, appends `end PID NS`; a second one that works at the same
/// time appends `overlap`. It works for `for MS`, or until `until PATH` exists; then `exit N`.
pub fn hold(file: &str, then: &[&str]) -> ! {
    let mut log = std::fs::File::options().create(true).append(true).open(file).unwrap();
    let alone = std::fs::File::options().create(true).append(true).open(format!("{file}.alone")).unwrap();
    // SAFETY: flock(2) on a descriptor that is open until this process ends.
    let is_alone = unsafe { libc::flock(alone.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    let mut write =
        |what: &str| log.write_all(format!("{what} {} {}\n", std::process::id(), boot_ns()).as_bytes());
    if !is_alone {
        write("overlap").unwrap();
    }
    write("start").unwrap();
    ready();
    let mut code = 0;
    for step in then.chunks(2) {
        match step {
            ["for", ms] => std::thread::sleep(Duration::from_millis(ms.parse().unwrap())),
            ["until", path] => {
                while !std::path::Path::new(path).exists() {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            ["exit", status] => code = status.parse().unwrap(),
            _ => panic!("what `hold` does not know: {step:?}"),
        }
    }
    write("end").unwrap();
    leave(code)
}

/// Writes the time into the first bytes of FILE repeatedly: its last instruction can be read there.
pub fn tick(file: &str) -> ! {
    ignore_every_signal();
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(file).unwrap();
    let mut first = true;
    loop {
        file.write_all_at(format!("{:020}\n", boot_ns()).as_bytes(), 0).unwrap();
        if std::mem::take(&mut first) {
            ready();
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Ignores TERM and every other signal it can, and lives forever.
pub fn ignore_term() -> ! {
    ignore_every_signal();
    ready();
    pause_for_ever()
}

/// Stops itself; prints a line before, and one when it is continued.
pub fn stop() -> ! {
    ready();
    nix::sys::signal::raise(Signal::SIGSTOP).unwrap();
    say("resumed");
    pause_for_ever()
}

/// Prints whether every process that had the inherited lock is dead: `clean`, or `overlap`.
pub fn next_holder(inherited_lock: &str) {
    let file = std::fs::File::options().create(true).append(true).open(inherited_lock).unwrap();
    say(if crate::inherited_lock_is_free(&file) { "clean" } else { "overlap" });
}

/// Waits until standard input ends, and kills every process that carries a marker.
pub fn reap(mark: &str) {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    Marker::from(mark.to_owned()).kill_all();
}

/// From a set-user-id file: becomes root permanently, so that its caller may not signal it.
pub fn become_root() -> ! {
    let root = nix::unistd::Uid::from_raw(0);
    nix::unistd::setresuid(root, root, root).unwrap();
    ignore_term()
}

/// Ignores every signal that ends a process and can be ignored.
pub fn ignore_every_signal() {
    use Signal::{SIGALRM, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    for which in [SIGALRM, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { signal(which, SigHandler::SigIgn) }.unwrap();
    }
}
