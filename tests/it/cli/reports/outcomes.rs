//! The report of each way in which a run can end.

use super::{Expected, ran, refused, said};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::until;
use nix::sys::signal::Signal;
use std::process::Stdio;

fn holding(store: &Store) -> Running {
    let run = store.run_with_ttl("60s").args(["--note", "a \"note\""]).stdin(Stdio::piped());
    let mut run = run.sh("echo ready; exec cat").spawn();
    run.await_ready();
    run
}

/// A holder that runs `sh`, as the others see it.
fn seen(holder: &Running, store: &Store) -> String {
    let expires = if store.url().starts_with("file:") { "null" } else { "MS" };
    format!(
        "{{\"host\":HOST,\"pid\":{},\"user\":USER,\"command\":\"sh\",\"note\":\"a \\\"note\\\"\",\"url\":null,\
         \"phase\":\"running\",\"slot\":null,\"acquired_at\":TIME,\"expires_in_ms\":{expires},\"immortal\":false,\
         \"fencing_token\":N,\"foreign\":false,\"waits_for\":null}}",
        holder.pid()
    )
}

/// A command may itself exit with a status that means something else when dlock has it.
#[test]
fn a_command_that_ran_is_reported_with_its_own_status() {
    for store in Store::each() {
        for status in [0, 1, 69, 75, 76, 124, 127, 255] {
            let output =
                store.run_with_ttl("60s").args(["--report", "r"]).sh(&format!("exit {status}")).output();
            ran(&store, Exit::Code(status)).assert(&store.place, &output);
        }
    }
}

#[test]
fn a_command_that_died_of_a_signal_is_reported_with_it() {
    for store in Store::each() {
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV] {
            let output = store
                .run_with_ttl("60s")
                .args(["--report", "r"])
                .probe(["die", &signal.to_string()])
                .output();
            ran(&store, Exit::Signal(signal)).assert(&store.place, &output);
        }
    }
}

#[test]
fn all_locks_are_reported() {
    for store in Store::each() {
        let run = store.run_with_ttl("60s").args(["--report", "r", "b \"c\"", "a\\", "x"]);
        let output = run.command(["true"]).output();
        let expected = Expected { names: &["a\\", "b \"c\"", "x"], ..ran(&store, Exit::Code(0)) };
        expected.assert(&store.place, &output);
    }
}

#[test]
fn the_holder_is_reported() {
    for store in Store::each() {
        let holder = holding(&store);
        let holder_seen = seen(&holder, &store);
        let expected = |exit| Expected { holder: &holder_seen, ..refused("contended", exit, &store) };
        for options in [&["--no-wait"][..], &["--wait", "10ms"]] {
            let output =
                store.run_with_ttl("60s").args(options).args(["--report", "r"]).command(["true"]).output();
            Expected { error: Some(said(&output)), ..expected(75) }.assert(&store.place, &output);
        }
        let output = store.run_with_ttl("60s").args(["-E", "0", "--report", "r"]).command(["true"]).output();
        Expected { error: Some(said(&output)), ..expected(0) }.assert(&store.place, &output);
    }
}

/// `-q` silences standard error, not the report.
#[test]
fn quiet_changes_nothing_in_a_report() {
    let store = Store::file();
    let run = || store.run_with_ttl("60s").args(["--report", "r"]).command(["true"]);
    let output = run().arg("-q").output();
    assert_eq!(output.stderr, "");
    ran(&store, Exit::Code(0)).assert(&store.place, &output);
    let _holder = holding(&store);
    let output = run().arg("-q").output();
    assert_eq!(output.outcome(), (Exit::Code(75), "", ""));
    let report: serde_json::Value = serde_json::from_str(&store.place.read("r")).unwrap();
    let error = report["error"].as_str().unwrap();
    assert!(error.starts_with("x is held by ") && error.ends_with("; not waiting, see --wait"), "{error}");
}

#[test]
fn a_signal_that_ends_the_wait_is_reported() {
    for store in Store::each() {
        let _holder = holding(&store);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1] {
            let run = store.run_with_ttl("60s").args(["-v", "--wait", "forever", "--report", "r"]);
            let mut run = run.command(["true"]).spawn();
            run.await_stderr("waiting at position 1");
            run.signal(signal);
            let output = run.wait();
            assert_eq!(output.exit, Exit::by(signal));
            refused("interrupted", 128 + signal as i32, &store).assert(&store.place, &output);
        }
    }
}

#[test]
fn a_command_over_max_runtime_is_reported_with_how_it_was_stopped() {
    for store in Store::each() {
        let run = store.run_with_ttl("60s").args(["--max-runtime", "1ms", "--report", "r"]);
        let output = run.command(["sleep", "1000"]).output();
        let expected = Expected {
            outcome: "max_runtime",
            dlock_exit: 124,
            error: Some(said(&output)),
            ..ran(&store, Exit::by(Signal::SIGTERM))
        };
        expected.assert(&store.place, &output);
    }
}

#[test]
fn a_command_that_cannot_be_run_is_reported() {
    for store in Store::each() {
        store.place.write("plain", "");
        for (command, exit) in [("./plain", 126), ("no-such-command", 127)] {
            let output = store.run_with_ttl("60s").args(["--report", "r"]).command([command]).output();
            let expected = Expected { error: Some(said(&output)), ..refused("not_executable", exit, &store) };
            expected.assert(&store.place, &output);
        }
        // Errors that only exec detects, under the lock.
        store.place.script("script", "#!/no/such/interpreter\n");
        let output = store.run_with_ttl("60s").args(["--report", "r"]).command(["./script"]).output();
        let expected = Expected {
            released: Some(true),
            error: Some(said(&output)),
            ..refused("not_executable", 126, &store)
        };
        expected.assert(&store.place, &output);
    }
}

#[test]
fn options_that_contradict_each_other_are_reported() {
    for store in Store::each() {
        let run = store.run_with_ttl("60s").args(["--no-wait", "--wait", "5", "--report", "r"]);
        let output = run.command(["true"]).output();
        Expected { error: Some(said(&output)), ..refused("usage", 64, &store) }.assert(&store.place, &output);
    }
}

/// Everything after `--` belongs to the command.
#[test]
fn an_invalid_command_line_is_reported() {
    let store = Store::file();
    let place = &store.place;
    for args in [
        &["run", "--report", "r", "--bad", "x", "--", "true"][..],
        &["run", "--ttl", "5M", "--report=r", "x", "--", "true"],
        &["run", "x", "-E", "256", "--report", "r", "-c", "true"],
        &["run", "--report", "r", "--ttl"],
        &["run", "--report=r", "--bad"],
    ] {
        let output = place.bare().args(args).output();
        let expected = Expected { names: &[], backend: None, ..refused("usage", 64, &store) };
        Expected { error: Some(said(&output)), ..expected }.assert(place, &output);
    }
    for args in [
        &["run", "--bad", "x", "--", "true", "--report", "r"][..],
        &["run", "--bad", "--report"],
        &["--report", "r"],
        &["run", "--bad", "--report=", "x"],
        &["run", "--bad", "--report", "--", "r"],
        &["run", "--bad", "--reports", "r"],
    ] {
        assert_eq!(place.bare().args(args).output().exit, Exit::Code(64));
        assert!(!place.path("r").exists(), "{args:?}");
    }
}

/// Without `--`, the option is taken for one of dlock: it may have been meant for the command.
#[test]
fn a_file_of_the_command_is_not_replaced_by_the_report_of_wrong_usage() {
    let place = Place::new();
    place.write("results.xml", "<results/>\n");
    let output = place.bare().args(["run", "x", "pytest", "--report", "results.xml"]).output();
    assert_eq!(output.exit, Exit::Code(64), "{}", output.stderr);
    let line = "dlock: --report: cannot write 'results.xml': it is not a report of dlock\n";
    assert!(output.stderr.ends_with(line), "{}", output.stderr);
    assert_eq!(place.read("results.xml"), "<results/>\n");
}

#[test]
fn invalid_names_are_reported_as_an_empty_list() {
    let store = Store::file();
    let output = store.run_with_ttl("60s").name("..").args(["--report", "r"]).command(["true"]).output();
    let expected = Expected { names: &[], ..refused("usage", 64, &store) };
    Expected { error: Some(said(&output)), ..expected }.assert(&store.place, &output);
}

#[test]
fn an_invalid_environment_or_url_is_reported() {
    let store = Store::file();
    let nowhere = "file:///no/such/directory";
    let run = || store.place.run().args(["--report", "r"]).command(["true"]);
    for (backend, run) in [
        (None, run().env("DLOCK_TTL", "nonsense")),
        (None, run().backend("nonsense:")),
        (Some(nowhere), run().backend(nowhere)),
    ] {
        let output = run.output();
        let expected = Expected { backend, error: Some(said(&output)), ..refused("config", 78, &store) };
        expected.assert(&store.place, &output);
    }
}

#[test]
fn the_death_of_the_guard_is_reported() {
    for store in Store::each() {
        let mut run =
            store.run_with_ttl("60s").args(["--report", "r"]).sh("echo ready; exec sleep 1000").spawn();
        run.await_ready();
        crate::support::process::send(run.guard(), Signal::SIGKILL);
        let output = run.wait();
        let expected =
            Expected { released: Some(true), error: Some(said(&output)), ..refused("internal", 70, &store) };
        expected.assert(&store.place, &output);
    }
}

/// The times are those of the run, and the lock is free before the report is written.
#[test]
fn times_are_those_of_the_run() {
    let store = Store::file();
    let holder = holding(&store);
    let run = store.run_with_ttl("60s").args(["-v", "--wait", "forever", "--report", "r"]);
    let mut run = run.sh("echo ready; until [ -e go ]; do sleep 0.05; done").spawn();
    run.await_stderr("waiting");
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(holder);
    run.await_ready();
    std::thread::sleep(std::time::Duration::from_millis(150));
    store.place.write("go", "");
    let elapsed = run.wait().elapsed.as_millis() as u64;
    let report: serde_json::Value = serde_json::from_str(&store.place.read("r")).unwrap();
    let ms = |key: &str| report[key].as_u64().unwrap();
    assert!(ms("waited_ms") >= 100 && ms("held_ms") >= 150, "{report}");
    assert!(ms("waited_ms") + ms("held_ms") <= elapsed, "{report} {elapsed}");
}

/// A lock kept by `--min-hold` was released nevertheless.
#[test]
fn a_lock_kept_by_min_hold_counts_as_released() {
    for store in Store::each() {
        let run = store.run_with_ttl("60s").args(["--min-hold", "300ms", "--report", "r"]);
        let output = run.command(["true"]).output();
        ran(&store, Exit::Code(0)).assert(&store.place, &output);
    }
}

/// The end of a run does not wait for the report: here it cannot be written until the FIFO is read.
#[test]
fn the_lock_is_free_before_the_report_is_written() {
    let store = Store::file();
    nix::unistd::mkfifo(&store.place.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut run = store
        .run_with_ttl("60s")
        .args(["--report", "fifo"])
        .sh("echo ready; until [ -e go ]; do sleep 0.05; done")
        .spawn();
    run.await_ready();
    store.place.write("go", "");
    until(SOON, "the release", || !store.is_held());
    let report = std::fs::read_to_string(store.place.path("fifo")).unwrap();
    assert!(report.starts_with("{\"version\":1,\"outcome\":\"ran\","), "{report}");
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
}
