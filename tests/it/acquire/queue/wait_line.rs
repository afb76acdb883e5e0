//! The line of a waiter on a terminal, which is redrawn in place.

use super::fixture::{Queue, assert_ran};
use crate::support::SOON;
use crate::support::pty::{CTRL_C, CTRL_Z, PROMPT, Terminal};
use crate::support::running::Running;
use crate::support::store::Store;
use crate::support::wait::until;

/// What clears the line: up, to its beginning, and erase; the terminal of the tests leaves out carriage returns.
const CLEAR: &str = "\u{1b}[1A\u{1b}[J";

/// A terminal of this width, and a lock that is held.
fn stage(columns: u16) -> (Queue, Running, Terminal) {
    let queue = Queue::of(Store::file());
    let holder = queue.holder("holder");
    let terminal = Terminal::bash(&queue.store.place);
    terminal.resize(24, columns);
    (queue, holder, terminal)
}

/// The end of the line about this holder.
fn held_by(holder: &Running) -> String {
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
    format!(" by {host} (pid {}, {user}, sh)", holder.pid())
}

/// What came before the next line that was drawn, and the line, with `AGE` for how long the lock has been held.
#[track_caller]
fn drawn(terminal: &mut Terminal) -> (String, String) {
    let before = terminal.expect("dlock: ");
    let line = terminal.expect("\n");
    let (front, back) = line.split_once(" is held for ").expect("a holder");
    let (_age, back) = back.split_once(' ').expect("its name");
    (before, format!("{front} is held for AGE {back}"))
}

/// Reads a duration such as `9m58s`; nothing is no time.
fn seconds(text: &str) -> u64 {
    let parts = text.split_inclusive(['m', 's']).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (number, unit) = part.split_at(part.len() - 1);
            number.parse::<u64>().expect("a number") * if unit == "m" { 60 } else { 1 }
        })
        .sum()
}

#[test]
fn the_line_is_redrawn_each_second_and_cleared_before_the_command_runs() {
    let (queue, mut holder, mut terminal) = stage(200);
    terminal.line("\"$DLOCK\" run --wait 10m x -- echo ran; echo status=$?");
    let held = format!(" left: x is held for AGE{}", held_by(&holder));
    let mut last = None;
    for _ in 0..3 {
        let (before, line) = drawn(&mut terminal);
        let times = line.strip_prefix("#1").and_then(|line| line.strip_suffix(&held)).expect("its form");
        let (waited, left) = times.split_once(", ").expect("two times");
        let (waited, left) = (seconds(waited.trim_start_matches(" for ")), seconds(left));
        // A busy host may draw it late, but not with wrong times.
        assert!((599..=601).contains(&(waited + left)), "{line:?}");
        if let Some(last) = last.replace(waited) {
            assert_eq!(before, CLEAR);
            assert!(waited > last, "{line:?}");
        }
    }
    queue.let_go("holder");
    assert_ran([&mut holder]);
    let end = terminal.expect("status=0\n");
    assert!(end.ends_with(&format!("{CLEAR}ran\n")), "{end:?}");
}

#[test]
fn the_line_is_cut_at_the_width_of_the_terminal() {
    for columns in [40, 50] {
        let (_queue, _holder, mut terminal) = stage(columns);
        terminal.line("\"$DLOCK\" run --wait 10m x -- true");
        let line = format!("{}dlock: {}", terminal.expect("dlock: "), terminal.expect("\n"));
        assert!(line.starts_with("dlock: #1"), "{line:?}");
        assert_eq!((line.chars().count(), line.ends_with('…')), (usize::from(columns), true), "{line:?}");
    }
}

#[test]
fn ctrl_c_and_ctrl_z_leave_a_clean_line() {
    let (queue, mut holder, mut terminal) = stage(200);
    let before = terminal.settings();
    terminal.line("\"$DLOCK\" run --wait forever x -- echo ran");
    drawn(&mut terminal);
    terminal.type_keys(CTRL_Z);
    let stopped = terminal.expect(PROMPT);
    assert!(stopped.contains(&format!("{CLEAR}\n[1]+  Stopped")), "{stopped:?}");
    // In the background, the line belongs to the shell: a wait is reported as without a terminal.
    assert_eq!(terminal.ask("echo shell"), "shell\n");
    terminal.line("fg");
    assert!(drawn(&mut terminal).1.starts_with("#1"));
    terminal.type_keys(CTRL_C);
    let ended = terminal.expect(PROMPT);
    assert!(ended.contains(CLEAR), "{ended:?}");
    assert_eq!(terminal.ask("echo $?"), "130\n");
    assert_eq!(terminal.settings(), before);
    until(SOON, "no waiter", || queue.pids().is_empty());
    queue.let_go("holder");
    assert_ran([&mut holder]);
}

#[test]
fn a_dumb_terminal_gets_one_line_for_each_change() {
    let (queue, mut holder, mut terminal) = stage(200);
    terminal.line("TERM=dumb \"$DLOCK\" run --wait forever x -- sleep 0; echo status=$?");
    terminal.expect("; waiting at position 1\n");
    queue.let_go("holder");
    assert_ran([&mut holder]);
    // Nothing in between.
    assert_eq!(terminal.expect("status=0\n"), "");
}
