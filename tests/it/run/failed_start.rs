//! The lock is held, and the command cannot be started: the lock is free again at once.

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::os::unix::fs::PermissionsExt;

fn stores() -> Vec<Store> {
    vec![Store::file(), Store::redis()]
}

/// A run whose lease does not end while a test runs.
fn run(store: &Store) -> Dlock {
    store.run_with_ttl("60s")
}

/// No trace is left: no lock, no process, and the next run gets the lock without waiting.
fn assert_free(store: &Store, what: &str) {
    assert!(!store.is_held(), "{what}");
    assert!(store.place.marker().bearers().is_empty(), "{what}");
    let next = run(store).arg("--no-wait").command(["true"]).output();
    assert_eq!(next.outcome(), (Exit::Code(0), "", ""), "after {what}");
}

fn files(place: &Place) {
    place.script("missing-interpreter", "#!/no/such/interpreter\n");
    place.script("nested-interpreter", &format!("#!{}\n", place.arg("missing-interpreter")));
    place.script("binary", "\u{7f}ELF\u{2}\u{1}\u{1}\u{0}\u{0}garbage\u{0}\u{1}");
    place.script("loop", &format!("#!{}\n", place.arg("loop")));
}

/// F50: errors that PATH and mode bits do not show, only exec.
#[test]
fn a_command_that_cannot_be_executed_frees_the_lock_at_once() {
    for store in stores() {
        files(&store.place);
        for file in ["missing-interpreter", "nested-interpreter", "binary", "loop"] {
            let output = run(&store).command([format!("./{file}")]).output();
            assert_eq!(
                (output.exit, output.stdout.as_str()),
                (Exit::Code(126), ""),
                "{file}: {}",
                output.stderr
            );
            let beginning = format!("dlock: ./{file}: cannot be executed: ");
            let line = &output.stderr;
            assert!(line.starts_with(&beginning) && line.lines().count() == 1, "{line}");
            assert_free(&store, file);
        }
    }
}

/// F50: the file exists at the check, and is gone when the lock is acquired.
#[test]
fn a_command_that_vanishes_during_the_wait_frees_the_lock_at_once() {
    for store in stores() {
        let command = store.place.script("command", "#!/bin/sh\necho ran\n");
        let mut holder = run(&store).stdin(std::process::Stdio::piped()).sh("echo ready; exec cat").spawn();
        holder.await_ready();
        let mut waiter = run(&store).args(["-v", "--wait", "forever"]).command(["./command"]).spawn();
        waiter.await_stderr("waiting");
        std::fs::remove_file(&command).unwrap();
        drop(holder.take_stdin());
        holder.wait();
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(127), ""), "{}", output.stderr);
        assert!(output.stderr.ends_with("dlock: ./command: command not found\n"), "{}", output.stderr);
        assert_free(&store, "a command that vanished");

        // And one that is no longer executable.
        store.place.script("command", "#!/bin/sh\necho ran\n");
        let mut holder = run(&store).stdin(std::process::Stdio::piped()).sh("echo ready; exec cat").spawn();
        holder.await_ready();
        let mut waiter = run(&store).args(["-v", "--wait", "forever"]).command(["./command"]).spawn();
        waiter.await_stderr("waiting");
        std::fs::set_permissions(&command, std::fs::Permissions::from_mode(0o644)).unwrap();
        drop(holder.take_stdin());
        holder.wait();
        assert_eq!(waiter.wait().exit, Exit::Code(126));
        assert_free(&store, "a command without its mode bit");
    }
}

/// F50: with the variables of dlock, the environment is too large for the kernel.
#[test]
fn an_environment_that_is_too_large_frees_the_lock_at_once() {
    for store in stores() {
        let name = "n".repeat(200);
        let mut outcomes = Vec::new();
        // Arguments and environment may have a quarter of the stack (man 2 execve), here 160 KiB. From a size with
        // which dlock itself cannot be started, down to one with which its command can be started.
        for size in (93_000..105_000).rev().step_by(100) {
            let large =
                run(&store).name(&name).env("FIRST", "f".repeat(60_000)).env("SECOND", "f".repeat(size));
            let large = large.command(["/bin/true"]).wrapped_by(["prlimit", "--stack=655360"]);
            let output = large.output();
            if output.stderr.starts_with("prlimit: ") {
                continue;
            }
            outcomes.push(output.exit);
            match output.exit {
                Exit::Code(126) => assert_eq!(
                    output.stderr,
                    "dlock: /bin/true: cannot be executed: argument list too long\n"
                ),
                _ => assert_eq!(output.outcome(), (Exit::Code(0), "", "")),
            }
            let next = run(&store).name(&name).command(["true"]).output();
            assert_eq!(next.outcome(), (Exit::Code(0), "", ""), "with {size} bytes");
            if output.exit == Exit::Code(0) {
                break;
            }
        }
        outcomes.dedup();
        assert_eq!(outcomes, [Exit::Code(126), Exit::Code(0)]);
    }
}

/// F50: no further process is permitted. Root has no such limit, so it is another user, a new one for each try.
#[test]
fn a_failed_fork_leaves_no_lock() {
    for (index, store) in stores().into_iter().enumerate() {
        let directories = [store.place.path("."), store.place.locks(), store.place.home()];
        for directory in directories {
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let mut outcomes = Vec::new();
        for processes in 1..=6 {
            let id = 20_000 + std::process::id() % 1000 + 1000 * processes + 7000 * index as u32;
            let user = [format!("--reuid={id}"), format!("--regid={id}"), "--clear-groups".to_owned()];
            let limited = run(&store).name(format!("x{processes}")).command(["/bin/true"]);
            let limited = limited.wrapped_by(["prlimit".to_owned(), format!("--nproc={processes}")]);
            let output = limited.wrapped_by(std::iter::once("setpriv".to_owned()).chain(user)).output();
            assert!(matches!(output.exit, Exit::Code(0 | 70)), "{processes}: {output:?}");
            assert_eq!(output.stderr.lines().count(), usize::from(output.exit != Exit::Code(0)));
            outcomes.push(output.exit);
        }
        outcomes.dedup();
        assert_eq!(outcomes, [Exit::Code(70), Exit::Code(0)]);
        assert!(store.place.marker().bearers().is_empty());
        if index == 1 {
            assert_eq!(store.space().keys(), [""; 0]);
        }
    }
}

/// F50: whichever fork fails, `--min-hold` does not keep a lock under which nothing ran.
#[test]
fn a_failed_fork_applies_no_min_hold_and_gives_the_same_explanation() {
    let sentence = "dlock: cannot start the command: the limit on processes is reached \
                    (see ulimit -u, and pids.max of the cgroup)\n";
    for (index, store) in stores().into_iter().enumerate() {
        for directory in [store.place.path("."), store.place.locks(), store.place.home()] {
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let mut failures = 0;
        for processes in 1..=2 {
            for attempt in 0..20 {
                let id = 300_000
                    + std::process::id() % 1000 * 1000
                    + 100 * index as u32
                    + 30 * processes
                    + attempt;
                let user = [format!("--reuid={id}"), format!("--regid={id}"), "--clear-groups".to_owned()];
                let name = format!("x{processes}-{attempt}");
                let limited = run(&store).name(&name).args(["--min-hold", "1h"]).command(["/bin/true"]);
                let limited = limited.wrapped_by(["prlimit".to_owned(), format!("--nproc={processes}")]);
                let output = limited.wrapped_by(std::iter::once("setpriv".to_owned()).chain(user)).output();
                if output.exit == Exit::Code(0) {
                    continue;
                }
                failures += 1;
                assert_eq!(output.outcome(), (Exit::Code(70), "", sentence));
                assert!(store.place.lock_is_free(&name));
            }
        }
        assert!(failures >= 20, "{failures}");
        if index == 1 {
            assert_eq!(store.space().keys(), [""; 0]);
        }
    }
}

/// A name is resolved in a thread, which counts as a process.
#[test]
fn without_a_thread_for_the_name_lookup_the_store_is_unavailable() {
    let place = Place::new();
    for directory in [place.path("."), place.home()] {
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let id = (310_000 + std::process::id() % 1000).to_string();
    let user = [format!("--reuid={id}"), format!("--regid={id}"), "--clear-groups".to_owned()];
    // dlock, its guard and the parked command; unless a first thread is started before the command is forked. The last
    // attempt is made long after that.
    let run = place.run().backend("redis://localhost:1/0").args(["--retry", "4s"]).command(["true"]);
    let run = run.wrapped_by(["prlimit", "--nproc=3"]);
    let output = run.wrapped_by(std::iter::once("setpriv".to_owned()).chain(user)).output();
    let why = match output.exit {
        Exit::Code(70) => "dlock: cannot start the command: the limit on processes is reached",
        _ => "cannot find the address of localhost: cannot start a thread: the limit on processes is reached",
    };
    assert!(matches!(output.exit, Exit::Code(69 | 70)) && output.stdout.is_empty(), "{output:?}");
    assert!(output.stderr.contains(why) && output.stderr.lines().count() == 1, "{}", output.stderr);
}

/// F50: memory that is just enough to get the lock, or not.
#[test]
fn too_little_memory_leaves_no_lock_in_redis() {
    let store = Store::redis();
    let limited = |kib: u32| run(&store).sh("exit 0").after_shell(&format!("ulimit -v {kib}")).output();
    let mut enough = 0;
    let mut outcomes = Vec::new();
    for kib in (3000..400_000).step_by(250) {
        let output = limited(kib);
        assert!(!store.is_held(), "with {kib} KiB: {output:?}");
        if matches!(output.exit, Exit::Signal(_)) {
            // Nobody waits for the guard of a dlock that was killed.
            store.place.marker().await_end();
        }
        assert!(store.place.marker().bearers().is_empty(), "with {kib} KiB");
        outcomes.push(output.exit);
        match output.exit {
            Exit::Code(0) => enough += 1,
            Exit::Code(69 | 70) => {
                assert!(output.stderr.starts_with("dlock: "), "with {kib} KiB: {output:?}")
            }
            // Where not even dlock, or the command, can be loaded.
            Exit::Code(126 | 127) => assert!(!output.stderr.is_empty(), "with {kib} KiB: {output:?}"),
            Exit::Signal(_) => assert!(!outcomes.contains(&Exit::Code(0)), "with {kib} KiB: {output:?}"),
            Exit::Code(_) => panic!("with {kib} KiB: {output:?}"),
        }
        if enough == 10 {
            return;
        }
    }
    panic!("never enough: {outcomes:?}");
}
