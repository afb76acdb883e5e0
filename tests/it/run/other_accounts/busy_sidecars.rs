//! Sidecars that are very long, or that another process keeps locked.

use crate::admin::status::{parse, status};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::eventually;
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

/// Locks the content of a sidecar, as dlock does, until the file is closed.
fn lock_content(path: &Path) -> File {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let first_byte = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    // A live dlock may have it locked for a moment.
    fcntl(&file, FcntlArg::F_OFD_SETLKW(&first_byte)).unwrap();
    file
}

/// The text of a sidecar with this many additional waiters, all of them dead.
fn with_dead_waiters(mut content: serde_json::Value, count: u64) -> String {
    let waiter = |ticket: u64| {
        serde_json::json!({"ticket": ticket, "mode": "exclusive", "since": 1, "turn": null,
            "identity": {"host": "h", "pid": 1, "user": "u", "command": "c"}})
    };
    let mut line = content["line"].as_array().cloned().unwrap_or_default();
    line.extend((1..=count).map(waiter));
    content["line"] = line.into();
    let content = format!("{content}\n");
    let mut text = format!("{{\"format\":1,\"at\":4096,\"length\":{}}}\n", content.len());
    text.push_str(&" ".repeat(4096 - text.len()));
    text + &content
}

fn write_dead_waiters(place: &Place, count: u64) -> String {
    let text =
        with_dead_waiters(serde_json::json!({"format": 1, "fencing_token": 1, "ticket": count}), count);
    fs::write(place.locks().join("x.dlock"), &text).unwrap();
    text
}

/// F47: as many as fit are removed when the next waiter joins.
#[test]
fn a_queue_of_dead_waiters_is_removed() {
    let place = Place::new();
    write_dead_waiters(&place, 8000);
    for mode in [&[][..], &["--wait", "forever"]] {
        let output = place.run().args(mode).sh("echo ran").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
        assert_eq!(place.noted("x")["line"], serde_json::json!([]));
    }
}

/// F47: dlock does not read what it would never write.
#[test]
fn a_sidecar_of_more_than_a_mebibyte_is_refused() {
    let place = Place::new();
    for count in [20_000, 100_000] {
        let before = write_dead_waiters(&place, count);
        let output = place.run().args(["--wait", "forever"]).sh("echo ran").output();
        let why = "larger than dlock writes it (1024 KiB)";
        let path = place.locks().join("x.dlock");
        let line =
            format!("dlock: x on {}: {}: {why}; the command did not run\n", place.url(), path.display());
        assert_eq!(output.outcome(), (Exit::Code(78), "", line.as_str()));
        assert!(fs::read_to_string(&path).unwrap() == before, "it was changed");
    }
}

/// F47: also those behind a live waiter, when they use up the space.
#[test]
fn dead_waiters_behind_a_live_one_block_no_other() {
    let place = Place::new();
    let wait = |position: u32| {
        let mut run = place.run().args(["-v", "--wait", "forever"]).command(["true"]).spawn();
        run.await_stderr(&format!("waiting at position {position}\n"));
        run
    };
    let mut holder = place.run().stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    holder.await_ready();
    let mut waiters: Vec<Running> = vec![wait(1)];
    let path = place.locks().join("x.dlock");
    // In place: live processes have locked this very file.
    let locked = lock_content(&path);
    let dead = with_dead_waiters(place.noted("x"), 7000);
    std::os::unix::fs::FileExt::write_all_at(&locked, dead.as_bytes(), 0).unwrap();
    drop(locked);
    waiters.push(wait(2));
    let line = eventually(SOON, "a whole sidecar", || place.noted("x")["line"].as_array().cloned());
    assert_eq!(line.len(), 2);
    drop(holder.take_stdin());
    for run in [holder].iter_mut().chain(&mut waiters) {
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    }
}

/// F47: the total wait for all of them is limited to that for one of them.
#[test]
fn a_lock_with_a_locked_sidecar_is_shown_as_unknown() {
    let store = Store::file();
    let _run = crate::admin::status::holding(store.run_with_ttl("60s").name("z"));
    let locks = store.place.locks();
    let names: Vec<String> = (10..40).map(|number| format!("x{number}")).collect();
    let kept: Vec<File> = names
        .iter()
        .map(|name| {
            let path = locks.join(format!("{name}.dlock"));
            fs::write(&path, "{\"format\":1,\"fencing_token\":1}\n").unwrap();
            lock_content(&path)
        })
        .collect();
    let states = |args: &[&str]| -> Vec<(String, String)> {
        let output = status(&store).arg("--json").args(args).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let seen = parse(&output.stdout);
        let locks = seen["locks"].as_array().unwrap();
        locks.iter().map(|lock| (text(&lock["name"]), text(&lock["state"]))).collect()
    };
    let mut expected: Vec<_> = names.iter().map(|name| (name.clone(), "unknown".to_owned())).collect();
    expected.push(("z".to_owned(), "held".to_owned()));
    assert_eq!(states(&[]), expected);
    assert_eq!(states(&["x10"]), expected[..1]);
    let code = |args: &[&str]| status(&store).arg("--exit-code").args(args).output().exit;
    assert_eq!(code(&["x10"]), Exit::Code(77));
    assert_eq!(code(&["x10", "x11", "y"]), Exit::Code(77));
    assert_eq!(code(&["x10", "z"]), Exit::Code(75));
    let table = status(&store).arg("x10").output();
    assert!(
        table.stdout.contains("unknown") && table.stdout.contains("is locked by another dlock")
            || table.stdout.contains("has been locked for a second"),
        "{}",
        table.stdout
    );
    drop(kept);
    assert_eq!(states(&["x10"]), [("x10".to_owned(), "free".to_owned())]);
}
