//! `--watch` on a terminal: the alternate screen is entered, redrawn, and left in every case.

use super::screen::{shown, watching};
use crate::admin::status::holding;
use crate::support::SOON;
use crate::support::dlock::BINARY;
use crate::support::process;
use crate::support::pty::{CTRL_BACKSLASH, CTRL_C, CTRL_Z, PROMPT, Terminal};
use crate::support::running::Running;
use crate::support::store::Store;
use crate::support::wait::{eventually, throughout, until};
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, Termios};
use std::process::Command;
use std::time::Duration;

/// Ctrl-S, which stops the output, and Ctrl-Q, which continues it.
const CTRL_S: &str = "\u{13}";
const CTRL_Q: &str = "\u{11}";

/// Waits until a row of the alternate screen of this size has the text; returns the rows.
#[track_caller]
fn await_row(terminal: &mut Terminal, (rows, columns): (usize, usize), text: &str) -> Vec<String> {
    eventually(SOON, text, || {
        let lines = shown(terminal.screen(), rows, columns).alternate?;
        // Not in the name of the store, which is random.
        lines.iter().skip(1).any(|line| line.contains(text)).then_some(lines)
    })
}

/// A run that holds thirty locks.
fn holding_thirty(store: &Store) -> Running {
    let run =
        (10..40).fold(store.run_with_ttl("30s").no_name(), |run, number| run.arg(format!("lock-{number}")));
    holding(run.args(["--note", "a note that is far too long for a narrow terminal"]))
}

#[test]
fn the_table_is_redrawn_in_place_on_changes() {
    for store in Store::each() {
        let mut terminal = watching(&store, &["--watch=100ms"], 24, 200);
        let size = (24, 200);
        let lines = await_row(&mut terminal, size, "no lock is held or awaited");
        assert_eq!(lines, [store.url(), "no lock is held or awaited"]);
        let mut run = holding(store.run_with_ttl("30s").args(["--note", "one"]));
        let lines = await_row(&mut terminal, size, "one");
        // The store, the heading, the lock.
        assert_eq!(lines.len(), 3, "{lines:?}");
        drop(run.take_stdin());
        run.wait();
        await_row(&mut terminal, size, "no lock is held or awaited");
        let _other = holding(store.run_with_ttl("30s").name("other"));
        let lines = await_row(&mut terminal, size, "other");
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(terminal.screen().contains("\u{1b}[33m"));
        let now = shown(terminal.screen(), 24, 200);
        assert_eq!((now.normal.as_str(), now.has_cursor, now.entered), ("before\n", false, 1));
    }
}

#[test]
fn a_table_higher_than_the_terminal_says_how_many_rows_are_hidden() {
    let store = Store::file();
    let _run = holding_thirty(&store);
    let mut terminal = watching(&store, &["--watch=100ms"], 10, 40);
    let lines = await_row(&mut terminal, (10, 40), "... 23 more");
    assert_eq!((lines.len(), lines[9].as_str()), (10, "... 23 more"));
    assert!(lines[2].starts_with("lock-10  exclusive") && lines[8].starts_with("lock-16  "), "{lines:?}");
    // All fit.
    terminal.resize(32, 40);
    await_row(&mut terminal, (32, 40), "lock-39  exclusive");
}

/// At once, not with the next look.
#[test]
fn the_table_follows_the_size_of_the_terminal() {
    let store = Store::file();
    let _run = holding_thirty(&store);
    let mut terminal = watching(&store, &["--watch=1h"], 10, 100);
    terminal.expect("... 23 more");
    let size = |terminal: &mut Terminal| terminal.screen().len();
    for (rows, columns, last) in [(20, 100, "... 13 more"), (6, 30, "... 27 more"), (40, 100, "lock-39")] {
        let before = size(&mut terminal);
        terminal.resize(rows, columns);
        terminal.expect(last);
        // Of the new frame only.
        let frame = eventually(SOON, "a whole frame", || {
            let written = terminal.screen()[before..].to_owned();
            let lines = shown(&format!("\u{1b}[?1049h{written}"), rows.into(), columns.into()).alternate?;
            lines.last()?.starts_with(last).then_some(lines)
        });
        assert_eq!(frame.len(), usize::from(rows).min(32), "{frame:?}");
    }
}

/// Whether keys are read one by one, and are not shown.
fn is_raw(settings: &Termios) -> bool {
    !settings.local_flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO)
}

/// An interactive shell that watches the store of its place, in which a lock is held.
fn shell_that_watches(store: &Store, command: &str) -> (Terminal, Termios) {
    let mut terminal = Terminal::bash(&store.place);
    terminal.ask("stty echo");
    let before = terminal.settings();
    terminal.line(command);
    terminal.expect("exclusive");
    (terminal, before)
}

/// Asserts that the terminal is as it was: the shell prompts on its normal screen.
#[track_caller]
fn assert_restored(terminal: &mut Terminal, before: &Termios) {
    terminal.expect("\u{1b}[?1049l");
    terminal.expect(PROMPT);
    assert_eq!(terminal.settings(), *before);
    let now = shown(terminal.screen(), 24, 80);
    assert!(now.alternate.is_none() && now.has_cursor, "{now:?}");
    assert!(!now.normal.contains("exclusive"), "{now:?}");
    let colours = terminal.screen().split("\u{1b}[").filter_map(|part| part.split_once('m'));
    let colours = colours.filter(|(number, _)| number.parse::<u8>().is_ok()).map(|(number, _)| number);
    assert_eq!(colours.last(), Some("0"));
}

#[test]
fn every_end_restores_the_terminal() {
    let store = Store::file();
    let _run = holding(store.run_with_ttl("30s"));
    let of_key = [("q", 0), ("Q", 0), ("xyzq", 0), (CTRL_C, 130), (CTRL_BACKSLASH, 131)];
    let of_signal =
        [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGUSR1, 138), (Signal::SIGINT, 130)];
    for interval in ["--watch=100ms", "--watch=1h"] {
        let command = format!("\"$DLOCK\" status {interval}");
        for (key, status) in of_key {
            let (mut terminal, before) = shell_that_watches(&store, &command);
            assert!(is_raw(&terminal.settings()));
            terminal.type_keys(key);
            assert_restored(&mut terminal, &before);
            let asked = terminal.ask("echo \"<$?>\"");
            assert!(asked.contains(&format!("<{status}>\n")), "{key:?}: {asked:?}");
        }
    }
    for (signal, status) in of_signal {
        let (mut terminal, before) = shell_that_watches(&store, "\"$DLOCK\" status --watch");
        process::send(terminal.process("dlock"), signal);
        assert_restored(&mut terminal, &before);
        let asked = terminal.ask("echo \"<$?>\"");
        assert!(asked.contains(&format!("<{status}>\n")), "{signal}: {asked:?}");
    }
}

#[test]
fn ctrl_z_leaves_the_screen_and_fg_draws_it_again() {
    let store = Store::file();
    let _run = holding(store.run_with_ttl("30s"));
    let (mut terminal, before) = shell_that_watches(&store, "\"$DLOCK\" status --watch=1h");
    let dlock = terminal.process("dlock");
    for round in 1..=2 {
        terminal.type_keys(CTRL_Z);
        terminal.expect("Stopped");
        assert_restored_after_stop(&mut terminal, &before);
        assert!(process::stopped(dlock));
        terminal.line("fg");
        terminal.expect("exclusive");
        until(SOON, "keys one by one", || is_raw(&terminal.settings()));
        assert_eq!(shown(terminal.screen(), 24, 80).entered, round + 1);
    }
    terminal.type_keys("q");
    assert_restored(&mut terminal, &before);
    assert!(!process::alive(dlock));
}

#[track_caller]
fn assert_restored_after_stop(terminal: &mut Terminal, before: &Termios) {
    terminal.expect(PROMPT);
    assert_eq!(terminal.settings(), *before);
    let now = shown(terminal.screen(), 24, 80);
    assert!(now.alternate.is_none() && now.has_cursor, "{now:?}");
}

/// The shell has the terminal.
#[test]
fn a_background_job_draws_nothing() {
    let store = Store::file();
    let _run = holding(store.run_with_ttl("30s"));
    for interval in ["100ms", "1h"] {
        let command = format!("\"$DLOCK\" status --watch={interval}");
        let (mut terminal, before) = shell_that_watches(&store, &command);
        let dlock = terminal.process("dlock");
        terminal.type_keys(CTRL_Z);
        terminal.expect("Stopped");
        terminal.expect(PROMPT);
        terminal.line("bg");
        terminal.expect(PROMPT);
        until(SOON, "a job that goes on", || !process::stopped(dlock));
        throughout(Duration::from_millis(500), "the shell alone writes", || {
            shown(terminal.screen(), 24, 80).entered == 1 && !process::stopped(dlock)
        });
        assert_eq!(terminal.settings(), before);
        // bash does not tell a job that is not stopped.
        terminal.line("fg");
        terminal.expect("exclusive");
        terminal.type_keys("q");
        assert_restored(&mut terminal, &before);
    }
}

/// Its keys are those of another program.
#[test]
fn a_standard_input_that_is_no_terminal_is_left_alone() {
    let store = Store::file();
    let _run = holding(store.run_with_ttl("30s"));
    let (mut terminal, before) = shell_that_watches(&store, "\"$DLOCK\" status --watch=100ms </dev/null");
    assert_eq!(terminal.settings(), before);
    terminal.type_keys("q");
    let frames = terminal.screen().matches("exclusive").count();
    until(SOON, "more frames", || terminal.screen().matches("exclusive").count() > frames + 2);
    // Ctrl-C would discard what was typed, which is left to the shell.
    process::send(terminal.process("dlock"), Signal::SIGTERM);
    assert_restored(&mut terminal, &before);
    assert!(terminal.ask("").contains("q: command not found"));
}

#[test]
fn a_stopped_terminal_does_not_delay_the_end() {
    let store = Store::file();
    let _run = holding(store.run_with_ttl("30s"));
    let (mut terminal, before) = shell_that_watches(&store, "\"$DLOCK\" status --watch=100ms");
    terminal.type_keys(CTRL_S);
    throughout(Duration::from_millis(300), "it waits", || !terminal.processes("dlock").is_empty());
    terminal.type_keys(CTRL_Q);
    terminal.expect("exclusive");
    terminal.expect("exclusive");
    terminal.type_keys(CTRL_S);
    let dlock = terminal.process("dlock");
    process::send(dlock, Signal::SIGTERM);
    until(SOON, "its end", || !process::alive(dlock));
    assert_eq!(terminal.settings().local_flags, before.local_flags);
}

/// The terminal that it was on has been closed.
#[test]
fn the_watch_ends_with_its_terminal() {
    let store = Store::file();
    let mut terminal = watching(&store, &["--watch=100ms"], 24, 80);
    terminal.expect(store.url());
    let hung_up = terminal.hang_up();
    until(SOON, "its end", || hung_up.processes("dlock").is_empty());
}

/// As under nohup: only the terminal itself tells.
#[test]
fn the_watch_ends_with_its_terminal_though_it_ignores_hangups() {
    let store = Store::file();
    let mut shell = Command::new("sh");
    let text = format!("trap '' HUP; \"$0\" status -b '{}' --watch=100ms; :", store.url());
    shell.args(["-c", &text, BINARY]).current_dir(store.place.path("."));
    let mut terminal = Terminal::start(&store.place, shell);
    terminal.expect(store.url());
    let hung_up = terminal.hang_up();
    until(SOON, "its end", || hung_up.processes("dlock").is_empty());
}

#[test]
fn a_first_look_that_fails_leaves_the_screen_alone() {
    let store = Store::at("redis://127.0.0.1:1".to_owned());
    let mut terminal = watching(&store, &["--watch"], 24, 80);
    terminal.expect("ended 69");
    let now = shown(terminal.screen(), 24, 80);
    assert_eq!(now.entered, 0, "{now:?}");
    assert!(now.normal.contains("connection refused"), "{now:?}");
}

mod on_redis {
    use super::*;
    use crate::support::redis::Redis;

    /// What is left on the screen is the message.
    #[test]
    fn an_error_restores_the_terminal_before_it_is_reported() {
        let redis = Redis::start();
        let store = Store::on(&redis);
        let _run = holding(store.run_with_ttl("30s"));
        let command = format!("\"$DLOCK\" status -b '{}' --watch=100ms", store.url());
        let (mut terminal, before) = shell_that_watches(&store, &command);
        redis.command(&["SET", "dlock#locks", "of another type"]);
        terminal.expect("\u{1b}[?1049l");
        terminal.expect("has another type");
        terminal.expect(PROMPT);
        assert_eq!(terminal.settings(), before);
        let now = shown(terminal.screen(), 24, 80);
        assert!(now.alternate.is_none() && now.normal.contains("dlock: redis://"), "{now:?}");
        let asked = terminal.ask("echo \"<$?>\"");
        assert!(asked.contains("<78>\n"), "{asked:?}");
    }
}
