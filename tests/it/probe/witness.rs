//! Proof of life under locks, which the kernel takes back when the last process of a tree is dead.

use crate::{boot_ns, fork, leave, pause_for_ever};
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::process::Command;
use std::time::Duration;

/// The names whose witnesses this process has inherited.
const INHERITED: &str = "WITNESSED";
/// Who tells: one number for everything that one run of dlock starts.
const RUN: &str = "WITNESS_RUN";

/// Bytes of a witness file. One who holds a lock alone has them all locked for writing, one who shares it for reading,
/// and one of several slots has those of its slot and of a seat: so whatever may not be together cannot be.
const SLOTS: i64 = 0;
const SEATS: i64 = 100;
const ALL: i64 = 200;
/// More slots than this nobody asks for.
const MOST: i64 = 3;

/// What the innermost dlock holds, as `DLOCK_HELD` says.
struct Hold {
    name: String,
    mode: String,
    slot: Option<i64>,
    fencing: String,
}

/// Locks a witness file for each lock that is held, appends `start NAME MODE SLOT FENCING NS PID RUN` to DIRECTORY/log,
/// starts a daemon if the words say `daemon`, runs what is behind `inside` and appends `inside STATUS RUN`, works, and
/// appends `end ...`. Who finds a witness that does not go together with it appends `overlap ...` first.
pub fn stand(directory: &str, ms: &str, then: &[&str]) -> ! {
    let path = format!("{directory}/log");
    let mut log = std::fs::File::options().create(true).append(true).open(path).unwrap();
    let run = std::env::var(RUN).unwrap();
    // In one write each: what others write does not come in between.
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
            // Of several names, the variable tells the slot of the first.
            let slot = if mode == "slots" && name == first { slot() } else { None };
            Hold { name, mode, slot, fencing: hold["fencing_token"].to_string() }
        })
        .collect()
}

/// Locks what belongs to this hold, through a descriptor that everything we start inherits. Returns whether all of it was
/// free.
fn occupy(directory: &str, hold: &Hold) -> bool {
    let path = format!("{directory}/{}.witness", hold.name);
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let fd = file.as_raw_fd();
    // SAFETY: the descriptor is open, and stays so until everybody who inherits it has ended.
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

/// Any seat will do; one that somebody leaves while we look may be behind us.
fn sit_down(fd: i32) -> bool {
    (0..10).any(|_| (0..MOST).any(|seat| lock(fd, libc::F_WRLCK, SEATS + seat, 1)))
}

/// An open file description lock (`fcntl(2)`), if it can be had at once.
fn lock(fd: i32, kind: i32, start: i64, length: i64) -> bool {
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: the pointer is to a value that lives through the call.
    unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const range) == 0 }
}

/// Leaves a daemon behind, in a session of its own and without a parent, which lives until it is killed.
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
