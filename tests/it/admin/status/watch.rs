//! `--watch`: continuous output, until it is ended.

use super::{holding, parse, status};
use crate::support::SOON;
use crate::support::pty::{CTRL_C, Terminal};
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{eventually, until};
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader};
use std::process::Command;

/// `dlock status --watch` alone on a terminal of this size.
fn on_terminal(store: &Store, args: &[&str], lines: u16, columns: u16) -> Terminal {
    let mut shell = Command::new("sh");
    let text = format!(
        "stty rows {lines} cols {columns}; \"$0\" status -b '{}' \"$@\"; echo \"ended $?\"; stty -a >after; cat",
        store.url()
    );
    shell.args(["-c", &text, crate::support::dlock::BINARY]).args(args).current_dir(store.place.path("."));
    shell.env_remove("NO_COLOR").env_remove("DLOCK_BACKEND");
    Terminal::start(&store.place, shell)
}

/// The screen of a terminal of this width after this output. It supports only what `--watch` uses.
fn drawn(written: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0usize, 0usize);
    let mut rest = written.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' => {
                row += 1;
                column = 0;
                if row == lines.len() {
                    lines.push(Vec::new());
                }
            }
            '\u{1b}' => {
                assert_eq!(rest.next(), Some('['), "{written:?}");
                let mut number = String::new();
                let end = loop {
                    match rest.next().unwrap() {
                        digit if digit.is_ascii_digit() || digit == ';' => number.push(digit),
                        end => break end,
                    }
                };
                match (end, number.as_str()) {
                    ('A', number) => {
                        // The carriage return after it, which the terminal of the tests leaves out.
                        row = row
                            .checked_sub(number.parse().unwrap())
                            .expect("no further than its own first line");
                        column = 0;
                    }
                    ('K', "") => lines[row].truncate(column),
                    ('J', "") => {
                        lines[row].truncate(column);
                        lines.truncate(row + 1);
                    }
                    ('m', _) => {}
                    other => panic!("{other:?}: {written:?}"),
                }
            }
            c => {
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
                assert!(column <= columns, "a line is wider than the terminal: {written:?}");
            }
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect()).collect()
}

#[test]
fn on_a_terminal_the_table_is_redrawn_in_place_on_changes() {
    for store in Store::each() {
        let mut terminal = on_terminal(&store, &["--watch=100ms"], 24, 200);
        let mut await_line = |what: &str| {
            eventually(SOON, what, || {
                let lines = drawn(terminal.screen(), 200);
                // Not in the name of the store, which is random.
                let shows = lines.iter().skip(1).any(|line| line.contains(what));
                (shows && lines[0] == store.url()).then_some(lines)
            })
        };
        await_line("no lock is held or awaited");
        let mut run = holding(store.run_with_ttl("30s").args(["--note", "one"]));
        let lines = await_line("one");
        // The store, the heading, the lock, and where the cursor is.
        assert_eq!((lines.len(), lines[3].as_str()), (4, ""), "{lines:?}");
        drop(run.take_stdin());
        run.wait();
        await_line("no lock is held or awaited");
        let _other = holding(store.run_with_ttl("30s").name("other"));
        let lines = await_line("other");
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(terminal.screen().contains("\u{1b}[33m"));
    }
}

#[test]
fn a_table_larger_than_the_terminal_is_truncated() {
    let store = Store::file();
    let run = (10..40).fold(store.run_with_ttl("30s"), |run, number| run.arg(format!("lock-{number}")));
    let _run = holding(run.args(["--note", "a note that is far too long for a narrow terminal"]));
    let mut terminal = on_terminal(&store, &["--watch=100ms"], 10, 40);
    for _ in 0..3 {
        terminal.expect("... and 25 lines more");
    }
    let lines = drawn(terminal.screen(), 40);
    assert!(lines.len() <= 10, "{lines:?}");
    assert!(lines[2].starts_with("lock-10  exclusive"), "{lines:?}");
}

/// The window is made smaller and larger while it is shown.
#[test]
fn the_table_follows_the_size_of_the_terminal() {
    let store = Store::file();
    let run = (10..40).fold(store.run_with_ttl("30s"), |run, number| run.arg(format!("lock-{number}")));
    let _run = holding(run);
    let mut terminal = on_terminal(&store, &["--watch=100ms"], 10, 100);
    terminal.expect("... and 25 lines more");
    terminal.resize(20, 100);
    terminal.expect("... and 15 lines more");
    terminal.resize(6, 30);
    terminal.expect("... and 29 lines more");
}

#[test]
fn ctrl_c_ends_the_watch_and_restores_the_terminal() {
    let store = Store::file();
    let mut terminal = Terminal::bash(&store.place);
    let before = terminal.settings();
    let _run = holding(store.run_with_ttl("30s"));
    terminal.line("\"$DLOCK\" status --watch=100ms");
    terminal.expect("exclusive");
    terminal.type_keys(CTRL_C);
    terminal.expect(crate::support::pty::PROMPT);
    assert_eq!(terminal.settings(), before);
    // The cursor is visible, no other screen remains, no colour remains.
    let written = terminal.screen();
    assert!(!written.contains("\u{1b}[?"), "{written:?}");
    let colours = written.split("\u{1b}[").filter_map(|part| part.split_once('m').map(|(number, _)| number));
    let colours = colours.filter(|number| number.parse::<u8>().is_ok());
    assert_eq!(colours.last(), Some("0"), "{written:?}");
    assert_eq!(terminal.ask("echo $?"), "130\n");
}

fn objects(run: &Running) -> Vec<serde_json::Value> {
    run.stdout().split_inclusive('\n').filter(|line| line.ends_with('\n')).map(parse).collect()
}

#[test]
fn with_json_each_line_is_an_object() {
    for store in Store::each() {
        let mut watch = status(&store).args(["--watch=100ms", "--json"]).spawn();
        let mut run = holding(store.run_with_ttl("30s"));
        until(SOON, "a lock that is held", || {
            objects(&watch).iter().any(|seen| seen["locks"][0]["holders"][0]["pid"] == run.pid())
        });
        drop(run.take_stdin());
        run.wait();
        until(SOON, "a lock that is free", || {
            objects(&watch).last().unwrap()["locks"] == serde_json::json!([])
        });
        watch.assert_running();
        watch.signal(Signal::SIGTERM);
        assert_eq!(watch.wait().exit, Exit::by(Signal::SIGTERM));
        assert_eq!(watch.stderr(), "");
    }
}

#[test]
fn without_a_terminal_tables_are_separated_by_empty_lines() {
    for store in Store::each() {
        let mut watch = status(&store).args(["--watch=100ms", "x"]).spawn();
        let free = format!("{}\nLOCK  STATE\nx     free\n", store.url());
        watch.await_stdout(&format!("{free}\n{free}\n{free}"));
        watch.signal(Signal::SIGINT);
        let output = watch.wait();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::by(Signal::SIGINT), ""));
        let tables: Vec<&str> = output.stdout.split("\n\n").map(str::trim_end).collect();
        assert!(tables.iter().all(|table| *table == free.trim_end()), "{tables:?}");
    }
}

/// `dlock status --watch | head -1`
#[test]
fn the_watch_ends_when_its_output_is_closed() {
    for store in Store::each() {
        for args in [&["--watch=100ms"][..], &["--watch=100ms", "--json"]] {
            let (reader, writer) = std::io::pipe().unwrap();
            let mut watch = status(&store).args(args).stdout(writer).spawn();
            let mut line = String::new();
            let mut reader = BufReader::new(reader);
            reader.read_line(&mut line).unwrap();
            assert!(line.contains(store.url()), "{line}");
            drop(reader);
            assert_eq!(watch.wait().outcome(), (Exit::Code(0), "", ""));
        }
    }
}

/// The terminal that it was on has been closed.
#[test]
fn the_watch_ends_with_its_terminal() {
    let store = Store::file();
    let mut terminal = on_terminal(&store, &["--watch=100ms"], 24, 80);
    terminal.expect(store.url());
    let hung_up = terminal.hang_up();
    until(SOON, "its end", || hung_up.processes("dlock").is_empty());
}

mod on_redis {
    use super::{objects, on_terminal};
    use crate::admin::status::{holding, status};
    use crate::support::SOON;
    use crate::support::redis::Redis;
    use crate::support::store::Store;
    use crate::support::wait::until;

    #[test]
    fn the_watch_survives_a_restart_of_the_store() {
        let mut redis = Redis::start();
        let store = Store::on(&redis);
        let mut watch = status(&store).args(["--watch=100ms", "--json", "-q"]).spawn();
        let mut terminal = on_terminal(&store, &["--watch=100ms"], 24, 200);
        watch.await_stdout("\n");
        terminal.expect(&redis.url());
        redis.kill();
        watch.await_stderr("connection refused");
        terminal.expect("connection refused");
        // It is reported once, however long it lasts.
        let before = objects(&watch).len();
        until(SOON, "more looks in vain", || terminal.screen().matches("connection refused").count() > 3);
        assert_eq!(
            (watch.stderr().matches("connection refused").count(), objects(&watch).len()),
            (1, before),
            "{}",
            watch.stderr()
        );
        redis.restart();
        let run = holding(store.run_with_ttl("30s"));
        until(SOON, "the lock that is held now", || {
            objects(&watch).last().unwrap()["locks"][0]["holders"][0]["pid"] == run.pid()
        });
        terminal.expect("exclusive");
        watch.assert_running();
    }

    /// One update takes a handful of requests, and leaves no trace at the server.
    #[test]
    fn watching_costs_the_store_little() {
        let redis = Redis::start();
        let store = Store::on(&redis);
        let _run = holding(store.run_with_ttl("1h"));
        let watch = status(&store).args(["--watch=100ms", "--json"]).spawn();
        until(SOON, "some looks", || objects(&watch).len() > 3);
        let asked = || {
            let info = redis.command(&["INFO", "stats"]).text();
            let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
            line.unwrap().trim().parse::<usize>().unwrap()
        };
        let (looks, before) = (objects(&watch).len(), asked());
        until(SOON, "more looks", || objects(&watch).len() >= looks + 10);
        // In this order: the looks that are counted are at least those that were asked for.
        let after = asked();
        let looks = objects(&watch).len() - looks;
        // Commands that scripts call count too: those for one lock are ten or so.
        assert!(after - before <= (looks + 2) * 16, "{} commands for {looks} looks", after - before);
        let clients = redis.command(&["CLIENT", "LIST"]).text().lines().count();
        assert!(clients <= 5, "{clients}");
    }
}
