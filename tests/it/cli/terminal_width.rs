//! Text on a terminal: it fits the width, words are not broken, and a terminal without control sequences gets none.

use crate::support::dlock::BINARY;
use crate::support::pty::Terminal;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::process::{Command, Stdio};

/// What `dlock` writes on a terminal of this width.
fn shown(store: &Store, columns: usize, terminal: &str, args: &[&str]) -> String {
    let mut shell = Command::new("sh");
    let text = format!(
        "stty rows 24 cols {columns}; export TERM={terminal}; echo begin; \"$0\" \"$@\"; echo ended; cat"
    );
    shell.args(["-c", &text, BINARY]).args(args).current_dir(store.place.path("."));
    shell.env_remove("NO_COLOR").env("DLOCK_BACKEND", store.url());
    let mut terminal = Terminal::start(&store.place, shell);
    terminal.expect("ended\n");
    let screen = terminal.screen();
    let (_, screen) = screen.split_once("begin\n").expect("its beginning");
    screen.split_once("ended\n").expect("its end").0.to_owned()
}

/// No line is wider than the terminal, except for a single word.
#[track_caller]
fn assert_fits(text: &str, columns: usize) {
    for line in text.lines() {
        let is_word = !line.trim().trim_start_matches("-> ").contains(' ');
        assert!(line.chars().count() <= columns || is_word, "{columns}: {line:?} in\n{text}");
    }
}

#[test]
fn the_table_of_locks_is_cut_with_a_mark_and_not_wrapped() {
    for store in Store::each() {
        let note = "a note that is longer than what fits beside it on a narrow terminal";
        let run = store.run_with_ttl("1h").args(["--note", note]).stdin(Stdio::piped());
        let mut run = run.sh("echo token=$DLOCK_FENCING_TOKEN; echo ready; exec cat").spawn();
        run.await_ready();
        let token = run.stdout().lines().next().unwrap().trim_start_matches("token=").to_owned();
        for columns in [80, 40] {
            let text = shown(&store, columns, "dumb", &["status"]);
            let (url, table) = text.split_once('\n').unwrap();
            assert_eq!((url, table.lines().count()), (store.url(), 2), "{text}");
            assert_fits(table, columns);
            assert!(table.lines().all(|line| line.ends_with('\u{2026}') || line.ends_with("NOTE")), "{text}");
            assert!(!table.contains(&token) && !table.contains("FENCING"), "{text}");
            let wide = shown(&store, columns, "dumb", &["status", "--wide"]);
            let [_, heading, held] = wide.lines().collect::<Vec<_>>()[..] else { panic!("{wide}") };
            assert!(heading.contains("  FENCING TOKEN  ") && heading.ends_with("  NOTE"), "{wide}");
            assert!(held.ends_with(&format!("  {token}  {note}")), "{wide}");
        }
        drop(run.take_stdin());
        assert_eq!(run.wait().exit, Exit::Code(0));
    }
}

/// Outcome, time, host and reason are what a history is read for.
#[test]
fn a_history_keeps_when_what_where_and_why() {
    for store in Store::each() {
        let mut holder = store.run_with_ttl("60s").stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
        holder.await_ready();
        let missed = store.run_with_ttl("60s").args(["--wait", "1ms"]).command(["true"]).output();
        assert_eq!(missed.exit, Exit::Code(75));
        let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
        let why = format!("held by {host} (pid {}, {user}, sh)", holder.pid());
        for columns in [200, 80] {
            let text = shown(&store, columns, "dumb", &["status", "--history", "x"]);
            let [url, name, heading, row] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
            assert_eq!((url, name), (store.url(), "x"));
            let headings: Vec<&str> =
                heading.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
            let has = |heading: &&str| headings.contains(heading);
            let spare: Vec<&str> = ["PID", "USER", "WAITED"].into_iter().filter(has).collect();
            assert_eq!(spare, if columns == 80 { &[][..] } else { &["PID", "USER", "WAITED"] }, "{text}");
            assert!(row.chars().count() <= columns && row.ends_with(&why), "{text}");
            assert!(row.contains("  contended  ") && row.contains(&format!("  {host}  ")), "{text}");
            let time = row.split("  ").next().unwrap();
            assert_eq!((time.len(), time.matches(':').count()), ("2026-01-31 02:00:00".len(), 2), "{text}");
        }
        drop(holder.take_stdin());
        holder.wait();
    }
}

#[test]
fn help_and_doctor_wrap_between_words() {
    let store = Store::file();
    for columns in [80, 40] {
        for args in [&["run", "-h"][..], &["run", "--help"], &["--help"], &["break", "--help"], &["doctor"]] {
            let text = shown(&store, columns, "xterm", args);
            let plain = [0, 31, 32, 33]
                .iter()
                .fold(text, |text, colour| text.replace(&format!("\u{1b}[{colour}m"), ""));
            assert_fits(&plain, columns);
        }
    }
    let help = shown(&store, 40, "xterm", &["run", "-h"]);
    assert!(help.contains("Usage: dlock run [OPTIONS] NAME... --\n"), "{help}");
}

#[test]
fn a_dumb_terminal_gets_no_control_sequences() {
    let store = Store::file();
    let mut run = store.run_with_ttl("60s").stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    for args in [
        &["status"][..],
        &["status", "--history", "x"],
        &["history", "--timeline"],
        &["doctor"],
        &["run", "--help"],
        &["--nonsense"],
    ] {
        let text = shown(&store, 80, "dumb", args);
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    assert!(shown(&store, 80, "xterm", &["status"]).contains("\u{1b}[33m"));
    // A new table follows the old one.
    let mut shell = Command::new("env");
    shell.args(["TERM=dumb", BINARY, "status", "--watch=100ms", "-b", store.url()]);
    let mut terminal = Terminal::start(&store.place, shell);
    terminal.expect("exclusive");
    terminal.expect("exclusive");
    assert!(!terminal.screen().contains('\u{1b}'), "{}", terminal.screen());
    assert!(terminal.screen().contains(&format!("\n\n{}\nLOCK ", store.url())), "{}", terminal.screen());
}
