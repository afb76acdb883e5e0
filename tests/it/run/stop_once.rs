//! The stop signal reaches every process of a tree, once, however the tree changes meanwhile; what is started to clean up
//! is spared.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::pty::Terminal;
use crate::support::running::Exit;
use crate::support::wait::until;
use crate::support::{probe, process};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// How dlock is run.
#[derive(Clone, Copy, Debug)]
enum As {
    /// As root, with a separate cgroup for the command.
    Root,
    /// As a user without any right, where no cgroup can be found.
    User,
}

const EACH: [As; 2] = [As::Root, As::User];

impl As {
    /// In a process group that dlock does not lead, as in a script: the command shares it, and each process is signalled.
    fn prepare(self, place: &Place, run: Dlock) -> Dlock {
        let run = run.in_our_group();
        match self {
            As::Root => run,
            As::User => {
                std::fs::set_permissions(place.path("."), PermissionsExt::from_mode(0o777)).unwrap();
                std::os::unix::fs::chown(place.locks(), Some(65534), None).unwrap();
                run.wrapped_by(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
                    .without_cgroups()
            }
        }
    }
}

/// Longer than any of these trees takes to end by itself after the stop signal.
const GRACE: Duration = Duration::from_secs(60);

const OPTIONS: [&str; 4] = ["--ttl", "5m", "--grace", "60s"];

/// Breaks the lock of a command that notes its signals in a file, and returns what it has noted, by pid.
#[track_caller]
fn notes_of(how: As, mode: &[&str]) -> HashMap<String, Vec<String>> {
    let place = Place::new();
    let run = place.run().args(OPTIONS);
    let file = place.arg("notes");
    let mut words = vec![mode[0], mode[1], &file];
    words.extend(&mode[2..]);
    let run = run.command(std::iter::once(probe::path().to_str().unwrap()).chain(words));
    let mut run = how.prepare(&place, run).spawn();
    run.await_stdout_within(4 * SOON, "ready\n");
    place.break_lock();
    assert_eq!(run.wait_within(8 * SOON).exit, Exit::Code(76), "{how:?}: {}", run.stderr());
    notes_in(&place)
}

fn notes_in(place: &Place) -> HashMap<String, Vec<String>> {
    let mut notes: HashMap<String, Vec<String>> = HashMap::new();
    for line in place.read("notes").lines() {
        let (what, pid) = line.split_once(' ').unwrap();
        notes.entry(pid.to_owned()).or_default().push(what.to_owned());
    }
    notes
}

/// Asserts that each process has noted this and nothing else; returns the number of processes.
#[track_caller]
fn assert_each(how: As, notes: &HashMap<String, Vec<String>>, expected: &[&str]) -> usize {
    let others: Vec<_> = notes.iter().filter(|(_, noted)| *noted != expected).collect();
    assert!(others.is_empty(), "{how:?}: {} of {} differ: {others:?}", others.len(), notes.len());
    notes.len()
}

/// S54: five hundred parents die at once, as a user and as root, and what each of their children starts then is an orphan
/// too.
#[test]
fn children_of_parents_that_die_of_it_get_it_once_and_their_clean_up_does_not() {
    for how in EACH {
        assert_eq!(assert_each(how, &notes_of(how, &["families", "500"]), &["got"]), 500, "{how:?}");
    }
}

/// S54
#[test]
fn children_in_sessions_of_their_own_get_it_once() {
    for how in EACH {
        let notes = notes_of(how, &["families", "500", "session"]);
        assert_eq!(assert_each(how, &notes, &["got"]), 500, "{how:?}");
    }
}

/// S54
#[test]
fn children_that_are_forked_while_it_is_sent_get_it_once() {
    for how in EACH {
        assert_ne!(assert_each(how, &notes_of(how, &["breed", "20"]), &["born", "got"]), 0, "{how:?}");
    }
}

/// S54: a script that does not handle the signal, and its last command; a second pass finds it.
#[test]
fn a_command_of_a_script_ends_with_it() {
    let text = "for i in 1 2 3 4 5 6 7 8; do sh -c 'sleep 1000; :' & done; echo ready; wait; :";
    for how in EACH {
        let place = Place::new();
        let mut run = how.prepare(&place, place.run().args(OPTIONS).sh(text)).spawn();
        run.await_ready();
        let commands = || process::descendants(run.pid()).iter().filter(|stat| stat.comm == "sleep").count();
        until(SOON, "the last commands", || commands() == 8);
        let begun = Instant::now();
        place.break_lock();
        let output = run.wait_within(4 * SOON);
        assert_eq!(output.exit, Exit::Code(76), "{how:?}: {}", output.stderr);
        assert!(begun.elapsed() < GRACE, "{how:?}: ended by SIGKILL");
    }
}

/// The shell waits for `sleep`, which belongs to its clean-up.
#[test]
fn what_a_handler_runs_in_the_foreground_is_spared() {
    let text = "trap 'sleep 1 && echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    for how in EACH {
        let place = Place::new();
        let mut run = how.prepare(&place, place.run().args(OPTIONS).sh(text)).spawn();
        run.await_ready();
        let begun = Instant::now();
        place.break_lock();
        let output = run.wait_within(4 * SOON);
        let outcome = (output.exit, output.stdout.as_str());
        assert_eq!(outcome, (Exit::Code(76), "ready\ncleaned\n"), "{how:?}: {}", output.stderr);
        assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}

/// On a terminal the command has a process group of its own, which gets the signal as a whole.
#[test]
fn a_process_group_on_a_terminal_gets_it_once() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    let file = place.arg("notes");
    for (mode, expected, count) in
        [("families 200", vec!["got"], Some(200)), ("breed 20", vec!["born", "got"], None)]
    {
        let _ = std::fs::remove_file(&file);
        let (mode, number) = mode.split_once(' ').unwrap();
        terminal.line(&format!(
            "\"$DLOCK\" run {} x -- \"$PROBE\" {mode} {number} '{file}'; echo status=$?",
            OPTIONS.join(" ")
        ));
        terminal.expect("ready\n");
        place.break_lock();
        terminal.expect("status=76\n");
        let found = assert_each(As::Root, &notes_in(&place), &expected);
        assert!(found > 0 && count.is_none_or(|count| found == count), "{mode}: {found}");
    }
}
