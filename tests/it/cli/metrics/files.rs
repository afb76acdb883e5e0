//! The file of `--metrics-file`: its owner, and failures to write it.

use super::{counts, runs};
use crate::cli::reports::assert_nothing_else;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::store::Store;
use nix::sys::resource::{Resource, setrlimit};
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

/// Reported before the command runs, and the file is not changed.
#[test]
fn a_file_of_others_is_refused_and_left_alone() {
    for (content, why) in [
        ("node_load1 0.5\n", "line 1: node_load1 is not a metric of dlock"),
        ("# TYPE dlock_runs_total counter\n{}\n", "line 2: neither a sample nor a comment"),
        (
            "dlock_runs_total{name=\"x\"} 1\n",
            "line 1: not a sample of dlock_runs_total in the format of dlock",
        ),
        (
            "dlock_runs_total{name=\"x\",outcome=\"ran\"} 1\ndlock_runs_to",
            "line 2: neither a sample nor a comment",
        ),
        (
            "dlock_runs_total{name=\"x\",outcome=\"ran\"} 1.5\n",
            "line 1: not a sample of dlock_runs_total in the format of dlock",
        ),
        (
            "dlock_runs_total{outcome=\"ran\"} 1\n",
            "line 1: not a sample of dlock_runs_total in the format of dlock",
        ),
        (
            "dlock_last_exit_status{name=\"x\",host=\"y\"} 1\n",
            "line 1: not a sample of dlock_last_exit_status in the format of dlock",
        ),
        (
            "dlock_wait_seconds_bucket{name=\"x\",le=\"much\"} 1\n",
            "line 1: not a sample of dlock_wait_seconds_bucket in the format of dlock",
        ),
        (
            "dlock_wait_seconds_sum{name=\"x\"} inf\n",
            "line 1: not a sample of dlock_wait_seconds_sum in the format of dlock",
        ),
        (
            "dlock_wait_seconds{name=\"x\"} 1\n",
            "line 1: not a sample of dlock_wait_seconds in the format of dlock",
        ),
    ] {
        let place = Place::new();
        place.write("m", content);
        let output = place.run().args(["--metrics-file", "m"]).command(["touch", "ran"]).output();
        let line = format!(
            "dlock: --metrics-file: 'm': is not a metrics file of dlock: {why}; it is left unchanged\n"
        );
        assert_eq!(output.outcome(), (Exit::Code(64), "", line.as_str()));
        assert_eq!(place.read("m"), content);
        assert!(!place.path("ran").exists() && !place.lock_file("x").exists());
    }
    let place = Place::new();
    std::fs::write(place.path("m"), b"\xff\n").unwrap();
    let output = place.run().args(["--metrics-file", "m"]).command(["true"]).output();
    assert_eq!(output.outcome(), (Exit::Code(64), "", "dlock: --metrics-file: 'm': is not UTF-8\n"));
}

#[test]
fn families_and_bounds_of_another_version_are_kept() {
    let place = Place::new();
    place.write("m", "dlock_hold_seconds_bucket{name=\"x\",le=\"7\"} 2\ndlock_new_total{name=\"x\"} 7\n");
    let output = place.run().args(["--metrics-file", "m"]).command(["true"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    let text = place.read("m");
    assert!(text.contains("\ndlock_hold_seconds_bucket{name=\"x\",le=\"7\"} 3\n"), "{text}");
    assert_eq!(text.matches("dlock_hold_seconds_bucket{").count(), 1, "{text}");
    assert!(text.ends_with("\ndlock_new_total{name=\"x\"} 7\n"), "{text}");
}

#[test]
fn only_a_regular_file_can_hold_counters() {
    let place = Place::new();
    nix::unistd::mkfifo(&place.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in ["fifo", "/dev/null", "/dev/stderr"] {
        let output = place.run().args(["--metrics-file", path]).command(["touch", "ran"]).output();
        let line = format!("dlock: --metrics-file: '{path}' is not a regular file, which counters need\n");
        assert_eq!(output.outcome(), (Exit::Code(64), "", line.as_str()));
        assert!(!place.path("ran").exists());
    }
}

/// Neither is written then, as each would overwrite the other.
#[test]
fn report_and_metrics_cannot_share_a_file() {
    let place = Place::new();
    symlink("f", place.path("link")).unwrap();
    for path in ["f", "./f", "link", "home/../f"] {
        let run = place.run().args(["--report", "f", "--metrics-file", path]);
        let output = run.command(["touch", "ran"]).output();
        let line = format!("dlock: --metrics-file: '{path}' is the file of --report too\n");
        assert_eq!(output.outcome(), (Exit::Code(64), "", line.as_str()));
        assert!(!place.path("ran").exists() && !place.path("f").exists());
    }
}

#[test]
fn a_bad_metrics_file_is_in_the_report() {
    let place = Place::new();
    place.write("m", "node_load1 0.5\n");
    let run = place.run().args(["--metrics-file", "m", "--report", "r"]);
    assert_eq!(run.command(["true"]).output().exit, Exit::Code(64));
    let report: serde_json::Value = serde_json::from_str(&place.read("r")).unwrap();
    assert_eq!(report["outcome"], "usage");
    assert!(report["error"].as_str().unwrap().starts_with("--metrics-file: 'm'"), "{report}");
}

/// node_exporter reads it as another user; a mode chosen by the user is kept.
#[test]
fn a_new_file_can_be_read_by_others_and_an_old_one_keeps_its_mode() {
    let place = Place::new();
    let run = |umask: &str| {
        let run = place.run().args(["--metrics-file", "m"]).after_shell(&format!("umask {umask}"));
        assert_eq!(run.command(["true"]).output().exit, Exit::Code(0));
        std::fs::metadata(place.path("m")).unwrap().mode() & 0o7777
    };
    assert_eq!(run("002"), 0o644);
    std::fs::set_permissions(place.path("m"), Permissions::from_mode(0o664)).unwrap();
    assert_eq!(run("077"), 0o664);
    std::fs::remove_file(place.path("m")).unwrap();
    assert_eq!(run("027"), 0o640);
}

/// An empty one, as `touch` or `install` make it, is taken; comments may go.
#[test]
fn an_empty_file_is_initialised() {
    let place = Place::new();
    for content in ["", "# made by hand\n"] {
        place.write("m", content);
        let run = place.run().args(["--metrics-file", "m"]);
        assert_eq!(run.command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
        assert_eq!(runs(&place, "x"), counts([("ran", 1)]));
    }
}

#[test]
fn a_symbolic_link_is_preserved() {
    let place = Place::new();
    std::fs::create_dir(place.path("d")).unwrap();
    symlink("d/metrics", place.path("m")).unwrap();
    for count in 1..3 {
        let run = place.run().args(["--metrics-file", "m"]);
        assert_eq!(run.command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
        assert_eq!(runs(&place, "x"), counts([("ran", count)]));
        assert!(std::fs::symlink_metadata(place.path("m")).unwrap().is_symlink());
    }
}

/// Whatever happens to the file while the command runs does not affect the run.
#[test]
fn a_file_that_is_damaged_while_the_command_runs_is_left_alone() {
    let place = Place::new();
    let run = || place.run().args(["--metrics-file", "m"]).sh("echo hello >m; exit 7");
    let line = "dlock: --metrics-file: this run is not counted: is not a metrics file of dlock: line 1: neither a sample nor a \
                comment; it is left unchanged\n";
    assert_eq!(run().output().outcome(), (Exit::Code(7), "", line));
    assert_eq!(place.read("m"), "hello\n");
    place.write("m", "");
    assert_eq!(run().arg("-q").output().outcome(), (Exit::Code(7), "", ""));
}

/// The lock is free long before; and the wait of dlock is limited.
#[test]
fn a_file_kept_locked_is_not_waited_for_indefinitely() {
    let place = Place::new();
    let lock = File::create(place.path(".m.lock")).unwrap();
    lock.lock().unwrap();
    let output = place.run().args(["--metrics-file", "m"]).sh("exit 7").output();
    let line = "dlock: --metrics-file: this run is not counted: other processes keep it locked\n";
    assert_eq!(output.outcome(), (Exit::Code(7), "", line));
    assert!(!place.path("m").exists());
    drop(lock);
    let output = place.run().args(["--metrics-file", "m"]).sh("exit 7").output();
    assert_eq!(output.outcome(), (Exit::Code(7), "", ""));
    assert_eq!(runs(&place, "x"), counts([("ran", 1)]));
}

/// A lock file that leads elsewhere is not followed.
#[test]
fn a_link_as_lock_file_is_refused() {
    let place = Place::new();
    place.write("target", "content");
    symlink("target", place.path(".m.lock")).unwrap();
    let output = place.run().args(["--metrics-file", "m"]).command(["touch", "ran"]).output();
    let line = "dlock: --metrics-file: cannot use 'm': too many symbolic links encountered\n";
    assert_eq!(output.outcome(), (Exit::Code(64), "", line));
    assert_eq!(place.read("target"), "content");
    assert!(!place.path("ran").exists());
}

fn no_room() -> std::io::Result<()> {
    Ok(setrlimit(Resource::RLIMIT_FSIZE, 4096, 4096)?)
}

/// The disk fills up at the end: the counts stay unchanged.
#[test]
fn a_full_disk_keeps_the_counts_and_the_status() {
    let store = Store::file();
    let run = || store.run().args(["--metrics-file", "m"]);
    assert_eq!(run().command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
    let before = store.place.read("m");
    let output = run().args(["y", "z"]).before_exec(no_room).sh("exit 7").output();
    let line = "dlock: --metrics-file: this run is not counted: file too large\n";
    assert_eq!(output.outcome(), (Exit::Code(7), "", line));
    assert_eq!(store.place.read("m"), before);
    assert_nothing_else(&store.place);
}

/// No file that would be collected by its name is created beside it, not even temporarily.
#[test]
fn no_other_content_counts_as_metrics() {
    let place = Place::new();
    std::fs::create_dir(place.path("d")).unwrap();
    let run = place.run().args(["--metrics-file", "d/dlock.prom"]);
    assert_eq!(run.command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
    let mut names: Vec<_> =
        std::fs::read_dir(place.path("d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".dlock.prom.lock", "dlock.prom"]);
}
