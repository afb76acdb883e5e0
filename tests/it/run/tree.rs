//! Trees that are hard to stop.

use crate::support::place::Place;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use crate::support::{SOON, probe};
use nix::sys::signal::Signal;
use std::process::Stdio;

/// Stops a command once it is set up, and asserts that no process is left.
#[track_caller]
fn assert_stopped(is_set_up: impl Fn(&Running) -> bool, args: &[&str]) {
    for hidden in [false, true] {
        let place = Place::new();
        let inherited_lock = place.inherited_lock();
        let run = place.run().args(["--grace", "200ms"]);
        let mut command = vec![probe::path().into_os_string().into_string().unwrap()];
        command.extend(
            ["--inherited-lock", inherited_lock.path()].iter().chain(args).map(|arg| (*arg).to_owned()),
        );
        let run = run.command(command);
        let mut run = if hidden { run.without_cgroups().spawn() } else { run.spawn() };
        run.await_ready();
        until(SOON, "a command that is set up", || is_set_up(&run));
        let halves = [run.pid(), run.guard()];
        place.break_lock();
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
        // `dlock break` wakes a dlock, which may still continue a command that was stopped.
        assert!(["ready\n", "ready\nresumed\n"].contains(&output.stdout.as_str()), "{}", output.stdout);
        assert!(inherited_lock.is_free(), "somebody is left");
        assert!(place.lock_is_free("x"));
        until(SOON, "the end of everybody", || place.marker().bearers().is_empty());
        until(SOON, "the end of its cgroup", || process::cgroups_named_after(&halves).is_empty());
    }
}

/// S20
#[test]
fn a_command_that_ignores_sigterm_is_killed() {
    assert_stopped(|_| true, &["ignore-term"]);
}

/// S21
#[test]
fn a_stopped_command_is_killed() {
    assert_stopped(|run| process::stopped(run.command()), &["stop"]);
}

/// S23
#[test]
fn two_thousand_processes_are_killed() {
    assert_stopped(|_| true, &["many", "2000"]);
}

/// S23
#[test]
fn processes_that_keep_forking_are_killed() {
    assert_stopped(|_| true, &["fork-forever", "8"]);
}

/// S34
#[test]
fn a_command_in_vfork_is_killed() {
    assert_stopped(|run| !process::children(run.command()).is_empty(), &["vfork"]);
}

/// S34
#[test]
fn a_traced_child_is_killed() {
    assert_stopped(|_| true, &["traced"]);
}

/// S21
#[test]
fn a_stopped_command_is_continued_so_that_it_can_exit() {
    let place = Place::new();
    let run = place.run().args(["--grace", "10s"]);
    let mut run = run.probe(["signals", "exit:TERM=0"]).spawn();
    run.await_ready();
    let command = run.command();
    process::send(command, Signal::SIGSTOP);
    until(SOON, "a stopped command", || process::stopped(command));
    place.break_lock();
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    let names: Vec<&str> = output.stdout.lines().map(|line| line.split(' ').next().unwrap()).collect();
    // The kernel determines the order of the two: both are pending when it is continued.
    assert!(names.first() == Some(&"ready") && names.contains(&"TERM"), "{}", output.stdout);
}

/// S21: it is not in the group of the command, whose signals do not reach it.
#[test]
fn a_stopped_process_in_another_session_is_continued_so_that_it_can_exit() {
    let place = Place::new();
    let pid = place.arg("pid");
    let other = format!("echo $$ >'{pid}'; exec '{}' signals exit:TERM=0", probe::path().display());
    let run = place.run().args(["--grace", "10s"]).env("OTHER", other);
    let mut run = run.sh("setsid sh -c \"$OTHER\" & wait").spawn();
    run.await_ready();
    let stopped = place.read("pid").trim().parse().unwrap();
    process::send(stopped, Signal::SIGSTOP);
    until(SOON, "a stopped process", || process::stopped(stopped));
    place.break_lock();
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stdout.contains("TERM"), "{}", output.stdout);
}

/// S21
#[test]
fn a_command_stopped_by_another_process_can_be_continued() {
    let place = Place::new();
    let mut run = place.run().probe(["signals", "exit:TERM=5"]).spawn();
    run.await_ready();
    let command = run.command();
    process::send(command, Signal::SIGSTOP);
    until(SOON, "a stopped command", || process::stopped(command));
    assert!(!place.lock_is_free("x"));
    process::send(command, Signal::SIGCONT);
    run.signal(Signal::SIGCONT);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait().exit, Exit::Code(5));
}

/// S26
#[test]
fn ten_thousand_orphans_are_reaped() {
    let place = Place::new();
    let go = place.arg("go");
    let text = format!(
        "'{}' orphan-zombies 10000; while ! test -e '{go}'; do sleep 0.05; done",
        probe::path().display()
    );
    let mut run = place.run().sh(&text).spawn();
    until(4 * SOON, "the end of ten thousand processes", || run.stdout() == "done\n");
    assert_no_zombies(&run);
    place.write("go", "");
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "done\n", ""));
}

/// S26
#[test]
fn the_first_process_of_a_container_reaps_ten_thousand_orphans() {
    let place = Place::new();
    let text = format!(
        "'{}' orphan-zombies 10000; n=0; while ps -eo stat= | grep -q Z; do n=$((n + 1)); test $n -lt 500 || exit 1; sleep 0.02; done",
        probe::path().display()
    );
    let mut run = place.run().sh(&text).wrapped_by(["unshare", "-pf", "--mount-proc"]).spawn();
    assert_eq!(run.wait_within(2 * SOON).outcome(), (Exit::Code(0), "done\n", ""));
}

/// S27
#[test]
fn ten_thousand_short_children_cost_nothing() {
    let place = Place::new();
    let probe = probe::path();
    let text =
        format!("'{0}' short-children 500; read a; '{0}' short-children 10000; read b", probe.display());
    let mut run = place.run().sh(&text).stdin(Stdio::piped()).spawn();
    let mut stdin = run.take_stdin();
    run.await_stdout("done\n");
    let halves = [run.pid(), run.guard()];
    let before = halves.map(|pid| (process::descriptor_count(pid), resident_kib(pid)));
    std::io::Write::write_all(&mut stdin, b"\n").unwrap();
    // As long as a busy machine takes to run so many programs.
    run.await_stdout_within(SOON * 4, "done\ndone\n");
    assert_no_zombies(&run);
    for (pid, (descriptors, before)) in halves.into_iter().zip(before) {
        // One more may be open for a moment.
        until(SOON, "as many descriptors as before", || process::descriptor_count(pid) <= descriptors);
        let after = resident_kib(pid);
        assert!(after <= before + 512, "memory grew from {before} to {after} KiB");
    }
    drop(stdin);
    assert_eq!(run.wait().exit, Exit::Code(1));
}

fn resident_kib(pid: i32) -> u64 {
    process::status_field(pid, "VmRSS").unwrap().trim_end_matches(" kB").parse().unwrap()
}

/// Asserts that ended processes below dlock were reaped.
#[track_caller]
fn assert_no_zombies(run: &Running) {
    let parents = [run.pid(), run.guard()];
    until(SOON, "no zombies", || {
        !process::all().iter().any(|stat| parents.contains(&stat.ppid) && !stat.is_alive())
    });
}
