//! The file of a report, and failures to write it.

use super::{assert_nothing_else, ran};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::eventually;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use std::fs::{File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Stdio;

/// Reported before the command runs, and before the lock is requested.
#[test]
fn an_unwritable_file_is_refused_before_anything_happens() {
    let place = Place::new();
    place.write("file", "content");
    std::fs::create_dir(place.path("directory")).unwrap();
    symlink("loop", place.path("loop")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
    for (path, why) in [
        ("no/such/r", "cannot create a file in no/such: no such file or directory"),
        ("file/r", "not a directory"),
        ("directory", "is a directory"),
        ("directory/", "is a directory"),
        ("loop", "too many symbolic links encountered"),
        ("socket", "neither a file, a FIFO nor a character device"),
        ("/dev/fd/77", "bad file number"),
        ("/dev/stdin", "it is open for reading only"),
        ("/proc/r", "cannot create a file in /proc: no such file or directory"),
    ] {
        for option in ["--report", "--metrics-file"] {
            let output = place.run().args([option, path]).command(["touch", "ran"]).output();
            let line = format!("dlock: {option}: cannot write '{path}': {why}\n");
            assert_eq!(output.outcome(), (Exit::Code(64), "", line.as_str()));
            assert!(!place.path("ran").exists() && !place.lock_file("x").exists());
            assert_nothing_else(&place);
        }
    }
    drop(socket);
}

#[test]
fn an_empty_name_counts_as_unset() {
    let place = Place::new();
    let output = place.run().args(["--report", ""]).command(["touch", "ran"]).output();
    assert_eq!(output.exit, Exit::Code(64));
    assert!(output.stderr.contains("--report"), "{}", output.stderr);
}

/// As a shell would have it: mode 0666 less the umask when new, the old mode when there was one.
#[test]
fn the_mode_is_what_a_user_expects() {
    let place = Place::new();
    let run = || place.run().args(["--report", "r"]).after_shell("umask 027").command(["true"]);
    let mode = || std::fs::metadata(place.path("r")).unwrap().mode() & 0o7777;
    assert_eq!(run().output().exit, Exit::Code(0));
    assert_eq!(mode(), 0o640);
    for kept in [0o600, 0o664] {
        std::fs::set_permissions(place.path("r"), Permissions::from_mode(kept)).unwrap();
        assert_eq!(run().output().exit, Exit::Code(0));
        assert_eq!(mode(), kept);
    }
}

/// A reader of the old one can read it to its end: the new one is another file.
#[test]
fn a_report_is_replaced_and_never_rewritten() {
    let store = Store::file();
    let before = store.place.write("r", "before\n");
    let inode = std::fs::metadata(&before).unwrap().ino();
    let mut open = File::open(&before).unwrap();
    let output = store.run().args(["--report", "r"]).command(["cat", "r"]).output();
    assert_eq!(output.stdout, "before\n", "it is what it was while the command runs");
    assert_ne!(std::fs::metadata(&before).unwrap().ino(), inode);
    assert_eq!(std::io::read_to_string(&mut open).unwrap(), "before\n");
    ran(&store, Exit::Code(0)).assert(&store.place, &output);
}

#[test]
fn a_symbolic_link_is_preserved() {
    let place = Place::new();
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    symlink("elsewhere/link", place.path("r")).unwrap();
    symlink("../elsewhere/report", place.path("elsewhere/link")).unwrap();
    for _ in ["there is no such file yet", "there is one"] {
        let output = place.run().args(["--report", "r"]).command(["true"]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
        assert_eq!(std::fs::read_link(place.path("r")).unwrap().to_str(), Some("elsewhere/link"));
        assert!(place.read("elsewhere/report").starts_with("{\"version\":1,"));
        assert!(std::fs::symlink_metadata(place.path("elsewhere/report")).unwrap().is_file());
    }
}

/// In a directory such as /tmp no other user can make dlock replace a file of their choice.
#[test]
fn files_of_others_in_a_world_writable_directory_are_refused() {
    let place = Place::new();
    let shared = place.path("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    place.write("target", "content");
    symlink("../target", shared.join("link")).unwrap();
    std::fs::write(shared.join("file"), "").unwrap();
    nix::unistd::mkfifo(&shared.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let names = ["link", "file", "fifo"];
    for name in names {
        std::os::unix::fs::lchown(shared.join(name), Some(65534), None).expect("the tests run as root");
    }
    let run = |name: &str, option: &str| {
        place.run().args([option, &format!("shared/{name}")]).command(["touch", "ran"]).output()
    };
    for (name, option) in names.into_iter().flat_map(|name| [(name, "--report"), (name, "--metrics-file")]) {
        let line = format!(
            "dlock: {option}: cannot write 'shared/{name}': it belongs to another user, in a \
             world-writable directory\n"
        );
        assert_eq!(run(name, option).outcome(), (Exit::Code(64), "", line.as_str()));
        assert!(!place.path("ran").exists());
    }
    assert_eq!(place.read("target"), "content");
    // A file of the user, and a new one.
    std::os::unix::fs::lchown(shared.join("link"), Some(nix::unistd::getuid().as_raw()), None).unwrap();
    for name in ["link", "new"] {
        assert_eq!(run(name, "--report").outcome(), (Exit::Code(0), "", ""));
    }
    assert!(place.read("target").starts_with("{\"version\":1,"));
}

/// A log file on standard error gets the report at its current end, and stays the same file.
#[test]
fn a_descriptor_that_is_open_is_written_to() {
    let store = Store::file();
    for path in ["-", "/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"] {
        let run = store.run().args(["--report", path]).sh("echo before >&2");
        let output = run.output();
        let (before, report) = output.stderr.split_once('\n').unwrap();
        assert_eq!(before, "before");
        store.place.write("r", report);
        ran(&store, Exit::Code(0)).assert(&store.place, &output);
    }
    let run = store.run().args(["--report", "/dev/fd/3"]).command(["true"]);
    let output = run.after_shell("exec 3>>r").output();
    assert_eq!(output.stderr, "");
    ran(&store, Exit::Code(0)).assert(&store.place, &output);
}

/// Descriptors that were closed when dlock started are in use by dlock itself.
#[test]
fn a_descriptor_that_is_closed_is_refused() {
    let store = Store::file();
    for number in 3..10 {
        let path = format!("/dev/fd/{number}");
        let run = store.run().args(["--report", &path]).command(["touch", "ran"]);
        let output = run.after_shell(&format!("exec {number}>&-")).output();
        let line = format!("dlock: --report: cannot write '{path}': bad file number\n");
        assert_eq!(output.outcome(), (Exit::Code(64), "", line.as_str()));
    }
    let run = store.run().args(["--report", "-"]).command(["touch", "ran"]);
    assert_eq!(run.after_shell("exec 2>&-").output().exit, Exit::Code(64));
    assert!(!store.place.path("ran").exists());
}

#[test]
fn a_pipe_and_a_device_are_written_to() {
    let store = Store::file();
    let run = store.run().args(["--report", "/dev/fd/3"]).command(["true"]);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let number = writer.as_raw_fd();
    let run = run.with_descriptor(3, number).current_dir(store.place.path("."));
    let output = run.output();
    drop(writer);
    store.place.write("r", &std::io::read_to_string(&mut reader).unwrap());
    ran(&store, Exit::Code(0)).assert(&store.place, &output);
    let output = store.run().args(["--report", "/dev/null"]).command(["true"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
}

/// The check before the command does not end the reader of the FIFO either.
#[test]
fn a_fifo_is_written_to() {
    let store = Store::file();
    let fifo = store.place.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || std::fs::read_to_string(fifo).unwrap()
    });
    let output = store.run().args(["--report", "fifo"]).command(["true"]).output();
    store.place.write("r", &reader.join().unwrap());
    ran(&store, Exit::Code(0)).assert(&store.place, &output);
    assert!(!std::fs::metadata(fifo).unwrap().is_file());
}

#[test]
fn a_fifo_without_a_reader_delays_nothing() {
    let place = Place::new();
    nix::unistd::mkfifo(&place.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let output = place.run().args(["--report", "fifo"]).sh("exit 7").output();
    let line = "dlock: --report: cannot write 'fifo': it has no reader\n";
    assert_eq!(output.outcome(), (Exit::Code(7), "", line));
}

/// S05: the same when a signal ends a wait, which is not to take the two seconds that a reader else gets.
#[test]
fn a_fifo_without_a_reader_does_not_delay_a_signal() {
    let place = Place::new();
    nix::unistd::mkfifo(&place.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut holder = place.run().probe(["ignore-term"]).spawn();
    holder.await_ready();
    // Delays of the machine itself do not count: one of five tries decides.
    let mut took = Vec::new();
    for _ in 0..5 {
        let waiter = place.run().args(["-v", "--wait", "forever", "--report", "fifo"]);
        let mut waiter = waiter.command(["true"]).spawn();
        waiter.await_stderr("waiting at position 1");
        waiter.signal(Signal::SIGTERM);
        let begun = std::time::Instant::now();
        assert_eq!(waiter.wait().exit, Exit::by(Signal::SIGTERM));
        if begun.elapsed() < std::time::Duration::from_millis(1900) {
            return;
        }
        took.push(begun.elapsed());
    }
    panic!("{took:?}");
}

/// A limit on the file size: to a writer, a full disk looks like that.
fn no_room() -> std::io::Result<()> {
    Ok(setrlimit(Resource::RLIMIT_FSIZE, 4096, 4096)?)
}

/// The disk fills up at the end: a warning, the command's own status, and the old content is still complete.
#[test]
fn a_full_disk_leaves_the_old_report_and_the_status() {
    let place = Place::new();
    place.write("r", "before\n");
    let names: Vec<String> = (0..25).map(|n| format!("{n}-{}", "n".repeat(180))).collect();
    let run = || place.run().args(["--report", "r"]).args(&names).before_exec(no_room).sh("exit 7");
    let line = "dlock: --report: cannot write 'r': file too large\n";
    assert_eq!(run().output().outcome(), (Exit::Code(7), "", line));
    assert_eq!(run().arg("-q").output().outcome(), (Exit::Code(7), "", ""));
    assert_eq!(place.read("r"), "before\n");
    assert_nothing_else(&place);
}

/// The signal of that limit is for dlock, whose messages have reached it, and not for the command.
#[test]
fn a_full_disk_for_messages_leaves_the_command_alone() {
    let place = Place::new();
    place.write("log", &"-".repeat(4096));
    let log = std::fs::OpenOptions::new().append(true).open(place.path("log")).unwrap();
    let run = place.run().args(["-v", "--min-hold", "1s"]).before_exec(no_room);
    let run = run.sh("trap 'exit 5' XFSZ; sleep 1; echo ran; exit 7");
    let output = run.stderr(log).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(7), "ran\n"));
    assert_eq!(place.read("log").len(), 4096);
}

/// The same when there is only a command line.
#[test]
fn a_full_disk_leaves_the_status_of_wrong_usage() {
    let place = Place::new();
    let before = "{\"version\":1,\"outcome\":\"ran\"}\n";
    place.write("r", before);
    let bad = format!("--{}", "b".repeat(5000));
    let output = place.run().args(["--report", "r", &bad]).before_exec(no_room).output();
    assert_eq!(output.exit, Exit::Code(64), "{}", output.stderr);
    let last = output.stderr.lines().last();
    assert_eq!(last, Some("dlock: --report: cannot write 'r': file too large"));
    assert_eq!(place.read("r"), before);
    assert_nothing_else(&place);
}

#[test]
fn a_directory_removed_while_the_command_runs_causes_a_warning() {
    let place = Place::new();
    std::fs::create_dir(place.path("d")).unwrap();
    let output = place.run().args(["--report", "d/r"]).sh("rmdir d; exit 7").output();
    let line = "dlock: --report: cannot write 'd/r': no such file or directory\n";
    assert_eq!(output.outcome(), (Exit::Code(7), "", line));
}

/// Two that hold different locks write one file: it is one of the two, whole, at every moment.
#[test]
fn concurrent_reports_never_mix() {
    let place = Place::new();
    let mut runs: Vec<Running> = (0..20)
        .map(|n| {
            let name = format!("{n}-{}", "n".repeat(n * 8));
            place.run().args(["--report", "r"]).name(name).stdin(Stdio::null()).command(["true"]).spawn()
        })
        .collect();
    let whole = || {
        let text = place.read("r");
        if !text.is_empty() {
            let report: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!((report["outcome"].as_str(), text.ends_with("}\n")), (Some("ran"), true));
        }
    };
    eventually(SOON, "their end", || {
        whole();
        let ended = runs.iter_mut().filter_map(|run| run.poll().map(|output| output.exit)).count();
        (ended == 20).then_some(())
    });
    whole();
    assert_nothing_else(&place);
}
