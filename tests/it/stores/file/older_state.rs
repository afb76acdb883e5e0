//! State that was recorded by a dlock before the ledger was a module of its own (format 1, entries of waiters without
//! tokens) is read, and respected.

use crate::admin::status::{parse, status};
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::store::Store;
use dlock::backend::CLAIM_WITHIN;
use nix::fcntl::{FcntlArg, fcntl};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

const HELD: &str = include_str!("older_state/held.json");
const KEPT: &str = include_str!("older_state/kept.json");
const HISTORY: &str = include_str!("older_state/history.jsonl");

/// What the recorded state says of the last grant.
const FENCING_TOKEN: u64 = 1_763_800_000_000_002;
/// The bytes that the older dlocks have locked as long as they live.
const HOLDER: i64 = (1 << 61) + 1_763_800_000_000_001;
const WAITER: i64 = (1 << 60) + 1_763_800_000_000_003;

/// Writes the recorded state of the lock `x` as if it were of this boot, and returns its lock file.
fn plant(place: &Place, state: &str, is_behind: bool) -> File {
    let lock_file = File::create(place.lock_file("x")).unwrap();
    let metadata = lock_file.metadata().unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    let uptime: u64 = uptime.split('.').next().unwrap().parse().unwrap();
    let state = state
        .replace("DEVICE", &metadata.dev().to_string())
        .replace("INODE", &metadata.ino().to_string())
        .replace("BOOT", boot.trim())
        .replace("SECONDS", &(uptime + 3600).to_string());
    let first = if is_behind {
        format!("{{\"format\":1,\"at\":4096,\"length\":{}}}\n", state.len())
    } else {
        state.clone()
    };
    let padding = " ".repeat(4096 - first.len());
    let content = if is_behind { format!("{first}{padding}{state}") } else { first + &padding };
    fs::write(place.locks().join("x.dlock"), content).unwrap();
    lock_file
}

/// Locks one byte of the sidecar, as a live dlock does.
fn present(place: &Place, byte: i64) -> File {
    let sidecar = File::options().read(true).write(true).open(place.locks().join("x.dlock")).unwrap();
    let range = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&sidecar, FcntlArg::F_OFD_SETLK(&range)).unwrap();
    sidecar
}

fn the_lock(store: &Store) -> Value {
    let output = status(store).args(["--json", "x"]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    parse(&output.stdout)["locks"][0].take()
}

#[test]
fn an_older_holder_and_an_older_waiter_come_first() {
    for is_behind in [false, true] {
        let store = Store::file();
        let place = &store.place;
        let lock_file = plant(place, HELD, is_behind);
        lock_file.try_lock().unwrap();
        let (holder, waiter) = (present(place, HOLDER), present(place, WAITER));

        let lock = the_lock(&store);
        let shown = &lock["holders"][0];
        assert_eq!(
            (&shown["host"], &shown["note"]),
            (&"old-1".into(), &"by an older dlock".into()),
            "{lock}"
        );
        assert_eq!(shown["fencing_token"], FENCING_TOKEN);
        assert_eq!(lock["waiters"][0]["host"], "old-2");
        let busy = place.run().sh("echo ran").output();
        assert_eq!((busy.exit, busy.stdout.as_str()), (Exit::Code(75), ""));
        let line = "dlock: x is held by old-1 (pid 4121, root, backup.sh, note: by an older dlock) for ";
        assert!(busy.stderr.starts_with(line), "{}", busy.stderr);

        let mut next =
            place.run().args(["-v", "--wait", "forever"]).sh("echo \"$DLOCK_FENCING_TOKEN\"").spawn();
        next.await_stderr("waiting at position 2\n");
        // The older one is called first, and does not claim the lock.
        let freed = Instant::now();
        drop(holder);
        lock_file.unlock().unwrap();
        let output = next.wait();
        let elapsed = freed.elapsed();
        assert!(elapsed >= CLAIM_WITHIN - CLAIM_WITHIN / 50, "granted after {elapsed:?}");
        drop(waiter);
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
        assert!(output.stdout.trim().parse::<u64>().unwrap() > FENCING_TOKEN, "{}", output.stdout);
    }
}

#[test]
fn an_older_hold_is_kept_for_its_minimum_time() {
    let store = Store::file();
    plant(&store.place, KEPT, false);
    let busy = store.place.run().sh("echo ran").output();
    assert_eq!((busy.exit, busy.stdout.as_str()), (Exit::Code(75), ""));
    assert!(busy.stderr.starts_with("dlock: x ran on old-1 until "), "{}", busy.stderr);
    assert!(busy.stderr.ends_with(" by --min-hold; not waiting\n"), "{}", busy.stderr);
}

#[test]
fn older_outcomes_are_shown_and_kept() {
    let store = Store::file();
    let path = store.place.locks().join("x%history.dlock");
    fs::write(&path, HISTORY).unwrap();
    assert_eq!(store.place.run().sh("exit 4").output().exit, Exit::Code(4));
    assert!(fs::read_to_string(&path).unwrap().starts_with(HISTORY));
    let output = status(&store).args(["--json", "--history", "x"]).output();
    let history = parse(&output.stdout)["locks"][0]["history"].take();
    let shown: Vec<_> =
        history.as_array().unwrap().iter().map(|one| (&one["outcome"], &one["host"])).collect();
    assert_eq!(shown.len(), 3, "{history}");
    assert_eq!(
        shown[1..],
        [(&"busy".into(), &"old-2".into()), (&"ran".into(), &"old-1".into())],
        "{history}"
    );
}
