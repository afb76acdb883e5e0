//! Proof of life under locks, which the kernel takes back when the last process of a tree is dead.

use crate::{boot_ns, fork, leave, pause_for_ever};
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::process::Command;
use std::time::Duration;

/// The names whose witnesses this process has inherited.
const INHERITED: &str = "WITNESSED";
/// The writer: one number for everything that one run of dlock starts.
const RUN: &str = "WITNESS_RUN";

/// Bytes of a witness file. An exclusive holder has all of them locked for writing, a sharing one for reading,
/// and a holder of one of several slots has those of its slot and of a seat: so incompatible holds conflict.
const SLOTS: i64 = 0;
const SEATS: i64 = 100;
const ALL: i64 = 200;
/// No test uses more slots than this.
const MOST: i64 = 3;

/// The holds of the innermost dlock, from `DLOCK_HELD`.
struct Hold {
    name: String,
    mode: String,
    slot: Option<i64>,
    fencing: String,
}

/// Locks a witness file for each lock that is held, appends `start NAME MODE SLOT FENCING NS PID RUN` to DIRECTORY/log,
/// starts a daemon if the words contain `daemon`, runs what follows `inside` and appends `inside STATUS RUN`, works,
/// and appends `end ...`. A process that finds an incompatible witness appends `overlap ...` first.
pub fn stand(directory: &str, ms: &str, then: &[&str]) -> ! {
    let path = format!("{directory}/log");
    let mut log = std::fs::File::options().create(true).append(true).open(path).unwrap();
    let run = std::env::var(RUN).unwrap();
    // One write for each record: records of other processes do not interleave.
    let mut tell = |line: String| log.write_all(format!("{line} {run}\n").as_bytes()).unwrap();
    let holds = holds();
    let inherited = std::env::var(INHERITED).unwrap_or_default();
    let mut witnessed: Vec<&str> = inherited.split_whitespace().collect();
    for hold in &holds {
        if !witnessed.contains(&hold.name.as_str()) {
            if !occupy(directory, hold) {
                tell(hold.in_words("overlap"));
            }
            witnessed.push(&hold.name);
        }
        tell(hold.in_words("start"));
    }
    let (daemon, inside) = match then {
        ["daemon", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if daemon {
        leave_a_daemon();
    }
    if let ["inside", program, arguments @ ..] = inside {
        let mut inner = Command::new(program);
        let status = inner.args(arguments).env(INHERITED, witnessed.join(" ")).status().unwrap();
        tell(status.code().map_or("inside signal".to_owned(), |code| format!("inside {code}")));
    }
    std::thread::sleep(Duration::from_millis(ms.parse().unwrap()));
    for hold in &holds {
        tell(hold.in_words("end"));
    }
    leave(0)
}

impl Hold {
    fn in_words(&self, what: &str) -> String {
        let Hold { name, mode, slot, fencing } = self;
        let slot = slot.map_or("-".to_owned(), |slot| slot.to_string());
        format!("{what} {name} {mode} {slot} {fencing} {} {}", boot_ns(), std::process::id())
    }
}

fn holds() -> Vec<Hold> {
    let held = std::env::var("DLOCK_HELD").unwrap();
    let held: Vec<serde_json::Value> = serde_json::from_str(&held).unwrap();
    let first = std::env::var("DLOCK_NAME").unwrap();
    let slot = || std::env::var("DLOCK_SLOT").ok()?.parse().ok();
    let innermost = &held.last().unwrap()["pid"];
    let of_innermost = held.iter().filter(|hold| hold["pid"] == *innermost);
    of_innermost
        .map(|hold| {
            let text = |key: &str| hold[key].as_str().unwrap().to_owned();
            let (name, mode) = (text("name"), text("mode"));
            // Of several names, the variable has the slot of the first.
            let slot = if mode == "slots" && name == first { slot() } else { None };
            Hold { name, mode, slot, fencing: hold["fencing_token"].to_string() }
        })
        .collect()
}

/// Locks the bytes of this hold, through a descriptor that every child inherits. Returns whether all of it
/// was free.
fn occupy(directory: &str, hold: &Hold) -> bool {
    let path = format!("{directory}/{}.witness", hold.name);
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let fd = file.as_raw_fd();
    // SAFETY: the descriptor is open, and stays so until every process that inherits it has ended.
    assert_eq!(unsafe { libc::fcntl(file.into_raw_fd(), libc::F_SETFD, 0) }, 0);
    match hold.mode.as_str() {
        "exclusive" => lock(fd, libc::F_WRLCK, SLOTS, ALL),
        "shared" => lock(fd, libc::F_RDLCK, SLOTS, ALL),
        "slots" => {
            let own = hold.slot.is_none_or(|slot| slot < MOST && lock(fd, libc::F_WRLCK, SLOTS + slot, 1));
            own && sit_down(fd)
        }
        other => panic!("a mode that the probe does not know: {other}"),
    }
}

/// Any seat is sufficient; one that is freed during the search may be missed.
fn sit_down(fd: i32) -> bool {
    (0..10).any(|_| (0..MOST).any(|seat| lock(fd, libc::F_WRLCK, SEATS + seat, 1)))
}

/// Takes an open file description lock (`fcntl(2)`), if it is available at once.
pub fn lock(fd: i32, kind: i32, start: i64, length: i64) -> bool {
    let range = range(kind, start, length);
    // SAFETY: the pointer is to a value that lives through the call.
    unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const range) == 0 }
}

/// The bytes of a lock; a length of 0 reaches to the end of the file.
pub fn range(kind: i32, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

/// Leaves a daemon, in a separate session and without a parent, which lives until it is killed.
fn leave_a_daemon() {
    if fork() {
        nix::unistd::setsid().unwrap();
        if fork() {
            pause_for_ever();
        }
        leave(0);
    }
    nix::sys::wait::wait().unwrap();
}
