//! The confirmation prompt at a terminal.

use super::{assert_broken, assert_ended, breaking, working};
use crate::support::dlock::BINARY;
use crate::support::pty::{CTRL_C, CTRL_D, Terminal};
use crate::support::running::Exit;
use crate::support::store::Store;
use nix::sys::signal::Signal;
use std::process::Command;

/// `dlock break` at a terminal.
pub fn at_a_terminal(store: &Store, options: &[&str]) -> Terminal {
    let mut command = Command::new(BINARY);
    command.args(["break", "-b", store.url()]).args(options).arg("x");
    command.env_remove("DLOCK_BACKEND").env_remove("DLOCK_CONFIG");
    Terminal::start(&store.place, command)
}

const QUESTION: &str = "dlock: stop its command and break it? [y/N] ";

#[test]
fn at_a_terminal_a_break_is_confirmed_with_yes() {
    for store in Store::each() {
        for answer in ["y\n", "Yes\n"] {
            let mut run = working(store.run_with_ttl("30s"));
            let mut terminal = at_a_terminal(&store, &[]);
            let shown = terminal.expect(QUESTION);
            assert!(shown.starts_with("x is held by ") && shown.ends_with('\n'), "{shown:?}");
            run.assert_running();
            terminal.type_keys(answer);
            assert_eq!(terminal.expect(": that hold has ended\n"), format!("x on {}", store.url()));
            assert_eq!(terminal.wait(), Exit::Code(0));
            assert_broken(&store, "x", &mut run);
        }
    }
}

#[test]
fn any_reply_but_yes_declines() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("30s"));
        for answer in ["n\n", "\n", "yesterday\n", CTRL_D] {
            for options in [&[][..], &["--force"]] {
                let mut terminal = at_a_terminal(&store, options);
                terminal.expect("[y/N] ");
                terminal.type_keys(answer);
                // On a separate line, also where no line was typed.
                let line_end = if answer == CTRL_D { "\n" } else { "" };
                assert_eq!(terminal.expect("dlock: x is left unchanged\n"), line_end);
                assert_eq!(terminal.wait(), Exit::Code(75));
            }
        }
        let mut terminal = at_a_terminal(&store, &[]);
        terminal.expect(QUESTION);
        terminal.type_keys(CTRL_C);
        assert_eq!(terminal.wait(), Exit::by(Signal::SIGINT));
        run.assert_running();
        let shown =
            store.place.bare().args(["status", "-b", store.url(), "--json"]).name("x").output().stdout;
        assert!(shown.contains("\"phase\":\"running\""), "{shown}");
    }
}

#[test]
fn with_yes_no_prompt_is_shown() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("30s"));
        let mut terminal = at_a_terminal(&store, &["--yes"]);
        terminal.expect(": that hold has ended\n");
        assert!(!terminal.screen().contains("[y/N]"), "{}", terminal.screen());
        assert_eq!(terminal.wait(), Exit::Code(0));
        assert_broken(&store, "x", &mut run);
        let mut run = working(store.run_with_ttl("30s"));
        assert_ended(&breaking(&store).output());
        assert_broken(&store, "x", &mut run);
    }
}

/// Neither an empty standard input nor one that declines is a confirmation.
#[test]
fn without_a_terminal_yes_has_to_be_given() {
    let line = "dlock: break asks for confirmation, and standard input is not a terminal: give --yes\n";
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("30s"));
        for input in ["", "n\n", "y\n"] {
            let mut unconfirmed = store.place.bare().args(["break", "-b", store.url(), "x"]);
            unconfirmed = unconfirmed.stdin(std::process::Stdio::piped());
            let mut unconfirmed = unconfirmed.spawn();
            let mut keyboard = unconfirmed.take_stdin();
            let _ = std::io::Write::write_all(&mut keyboard, input.as_bytes());
            drop(keyboard);
            assert_eq!(unconfirmed.wait().outcome(), (Exit::Code(64), "", line), "{input:?}");
        }
        run.assert_running();
    }
}

#[test]
fn a_free_lock_needs_no_confirmation() {
    for store in Store::each() {
        let mut terminal = at_a_terminal(&store, &[]);
        terminal.expect(&format!("x on {} is free\n", store.url()));
        assert_eq!(terminal.wait(), Exit::Code(0));
    }
}

/// The shown holder has ended when the confirmation arrives, and another one has the lock.
#[test]
fn a_late_confirmation_does_not_break_the_next_holder() {
    for options in [&[][..], &["--force"]] {
        for store in Store::each() {
            let mut first = working(store.run_with_ttl("30s"));
            let mut terminal = at_a_terminal(&store, options);
            terminal.expect("[y/N] ");
            first.signal(Signal::SIGTERM);
            first.wait();
            let mut second = working(store.run_with_ttl("30s"));
            terminal.type_keys("y\n");
            terminal.expect(": that hold has ended\n");
            assert_eq!(terminal.wait(), Exit::Code(0));
            second.assert_running();
            let shown = store.place.bare().args(["status", "-b", store.url(), "--json"]).name("x").output();
            assert!(shown.stdout.contains("\"phase\":\"running\""), "{}", shown.stdout);
        }
    }
}

/// A server may close an idle connection.
#[test]
fn a_late_confirmation_does_not_need_the_first_connection() {
    use crate::support::{SOON, redis::Redis, wait::until};
    let redis = Redis::start();
    let store = Store::on(&redis);
    let mut run = working(store.run_with_ttl("30s"));
    let mut terminal = at_a_terminal(&store, &[]);
    terminal.expect(QUESTION);
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    until(SOON, "the end of its connection", || {
        let list = redis.command(&["CLIENT", "LIST"]).text();
        list.lines().count() <= 2
    });
    terminal.type_keys("y\n");
    terminal.expect(": that hold has ended\n");
    assert_eq!(terminal.wait(), Exit::Code(0));
    assert_eq!(run.wait().exit, Exit::Code(76));
}
