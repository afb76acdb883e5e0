//! A live holder that is notified.

use super::{assert_broken, assert_ended, assert_not_yet, breaking, host, token_of, user, working};
use super::{let_go, lingering, stubborn};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;

#[test]
fn the_holder_stops_its_command_and_reports_who_broke_the_lock_and_why() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("30s").args(["--report", "r"]));
        let token = token_of(&run);
        let output = breaking(&store).args(["--reason", "hangs, see #4711"]).output();
        let (url, host, user) = (store.url(), host(), user());
        let shown = super::without_times(&output.stdout);
        let expected = format!(
            "x is held by {host} (pid PID, {user}, sh) for TIME, fencing token {token}\n\
             x on {url}: that hold has ended\n"
        );
        assert_eq!((output.exit, shown, output.stderr.as_str()), (Exit::Code(0), expected, ""));
        assert!(!store.is_held());
        let line = format!(
            "x on {url}: the lock was broken by {user}@{host}: hangs, see #4711; the command was stopped"
        );
        let ended = run.wait();
        assert_eq!((ended.exit, ended.stderr), (Exit::Code(76), format!("dlock: {line}\n")));
        let report: serde_json::Value = serde_json::from_str(&store.place.read("r")).unwrap();
        let said = [&report["outcome"], &report["reason"], &report["error"]].map(|value| value.as_str());
        assert_eq!(said, [Some("lost"), Some("hangs, see #4711"), Some(line.as_str())]);
        assert_eq!((&report["dlock_exit"], &report["released"]), (&76.into(), &true.into()));
    }
}

#[test]
fn the_history_records_who_broke_the_lock_and_why() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("30s"));
        assert_ended(&breaking(&store).args(["--reason", "hangs"]).output());
        assert_eq!(run.wait().exit, Exit::Code(76));
        let history = store.place.bare().args(["status", "-b", store.url(), "--history"]).name("x");
        let shown = history.output().stdout;
        let by = format!("broken by {}@{}: hangs", user(), host());
        assert!(shown.contains(&by), "{shown}");
        let history = store.place.bare().args(["status", "-b", store.url(), "--history", "--json"]).name("x");
        let shown = history.output().stdout;
        assert!(shown.contains("\"outcome\":\"lost\"") && shown.contains("\"reason\":\"hangs\""), "{shown}");
    }
}

/// Independent of `--on-lost`: this lock is not lost, it is revoked.
#[test]
fn the_whole_tree_is_dead_before_the_next_one_begins() {
    for on_lost in ["kill", "warn"] {
        for store in Store::each() {
            let inherited_lock = store.place.inherited_lock();
            let run = store.run_with_ttl("30s").args(["--grace", "200ms", "--on-lost", on_lost]);
            let mut run = stubborn(run, &inherited_lock);
            let mut next_holder = store.next_holder(&inherited_lock);
            assert_ended(&breaking(&store).output());
            // Its output shows whether the command is alive.
            let next_holder = next_holder.wait();
            assert_eq!(
                (next_holder.exit, next_holder.stdout.as_str()),
                (Exit::Code(0), "clean\n"),
                "{}",
                next_holder.stderr
            );
            assert_broken(&store, "x", &mut run);
        }
    }
}

/// What a command does on SIGTERM is done under the lock.
#[test]
fn the_command_may_clean_up_first() {
    for store in Store::each() {
        // The shell reports that its `sleep` was terminated.
        let text = "exec 2>said; trap 'sleep 0.3; echo cleaned >cleaned; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
        let mut run = store.run_with_ttl("30s").sh(text).spawn();
        run.await_ready();
        assert_ended(&breaking(&store).output());
        assert_eq!(store.place.read("cleaned"), "cleaned\n");
        assert_broken(&store, "x", &mut run);
    }
}

#[test]
fn breaking_a_free_lock_succeeds() {
    for store in Store::each() {
        let free = format!("x on {} is free\n", store.url());
        assert_eq!(breaking(&store).output().outcome(), (Exit::Code(0), free.as_str(), ""));
        assert_eq!(store.run_with_ttl("30s").command(["true"]).output().exit, Exit::Code(0));
        assert_eq!(breaking(&store).arg("--force").output().outcome(), (Exit::Code(0), free.as_str(), ""));
    }
}

#[test]
fn without_waiting_the_holder_is_notified_as_well() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("60s").args(["--grace", "20s"]);
        let mut run = lingering(run, &inherited_lock);
        let output = breaking(&store).args(["--wait", "0", "--reason", "now"]).output();
        let (host, user) = (host(), user());
        let (rest, help) = match store.url().starts_with("redis") {
            true => (
                "; its lease ends in TIME unless it is renewed",
                "remove it even if its command still runs (--force)",
            ),
            false => ("", "stop that process"),
        };
        assert_not_yet(
            &output,
            &format!(
                "x is still held by {host} (pid PID, {user}, probe) for TIME: it has been notified, and has not \
                released it yet{rest}; wait longer (--wait), or {help}"
            ),
        );
        assert!(!inherited_lock.is_free());
        // The notification is visible, and a second break that waits without a limit sees the end.
        let shown =
            store.place.bare().args(["status", "-b", store.url(), "--json"]).name("x").output().stdout;
        assert!(shown.contains("\"phase\":\"revoking\""), "{shown}");
        run.await_stdout("TERM");
        let mut again = breaking(&store).args(["--wait", "forever", "--reason", "again"]).spawn();
        again.await_stdout(&format!(", already broken by {user}@{host}: now\n"));
        let_go(&run);
        assert_ended(&again.wait());
        assert!(inherited_lock.is_free());
        // The first reason is kept.
        let output = run.wait();
        assert!(output.stderr.contains(&format!("broken by {user}@{host}: now; ")), "{output:?}");
        assert_eq!(output.exit, Exit::Code(76));
    }
}

#[test]
fn quiet_silences_contention_but_not_the_requested_output() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("60s").args(["--grace", "20s"]);
        let mut run = lingering(run, &inherited_lock);
        let output = breaking(&store).args(["-q", "--wait", "0"]).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(75), ""));
        assert!(output.stdout.starts_with("x is held by "), "{}", output.stdout);
        let_go(&run);
        assert_broken(&store, "x", &mut run);
    }
}

/// The given hold has ended.
#[test]
fn an_earlier_hold_is_not_broken() {
    for store in Store::each() {
        let old = store.run_with_ttl("30s").sh("echo $DLOCK_FENCING_TOKEN").output().stdout;
        let mut run = working(store.run_with_ttl("30s"));
        let output = breaking(&store).args(["--fencing-token", old.trim()]).output();
        let line = format!("x on {} is not held with fencing token {old}", store.url());
        assert_eq!(output.outcome(), (Exit::Code(0), line.as_str(), ""));
        let output = breaking(&store).args(["--force", "--fencing-token", old.trim()]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), line.as_str(), ""));
        run.assert_running();
        let shown =
            store.place.bare().args(["status", "-b", store.url(), "--json"]).name("x").output().stdout;
        assert!(shown.contains("\"phase\":\"running\""), "{shown}");
        assert_ended(&breaking(&store).args(["--fencing-token", &token_of(&run)]).output());
        assert_broken(&store, "x", &mut run);
    }
}

/// The reason is untrusted input for its reader.
#[test]
fn a_reason_is_escaped_for_the_terminal() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("30s"));
        let reason = "a\nb \u{1b}[31mred \u{202e}";
        assert_ended(&breaking(&store).args(["--reason", reason]).output());
        let stderr = run.wait().stderr;
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(!stderr.contains(['\u{1b}', '\u{202e}']), "{stderr:?}");
        assert!(stderr.contains("[31mred "), "{stderr:?}");
    }
}

#[test]
fn the_longest_reason_arrives_whole() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("30s"));
        let reason = "é".repeat(500);
        assert_ended(&breaking(&store).args(["--reason", &reason]).output());
        assert!(run.wait().stderr.contains(&format!(": {reason}; the command was stopped")));
    }
}

/// Waits until the holder of the lock has been notified of a break.
fn await_notification(store: &Store) {
    let status =
        || store.place.bare().args(["status", "-b", store.url(), "--json"]).name("x").output().stdout;
    until(SOON, "a notified holder", || status().contains("\"phase\":\"revoking\""));
}

/// Two concurrent breaks of the same lock both see its end.
#[test]
fn two_breaks_may_run_at_the_same_time() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("60s").args(["--grace", "20s"]);
        let mut run = lingering(run, &inherited_lock);
        let mut others: Vec<_> = (0..2).map(|_| breaking(&store).spawn()).collect();
        for other in &mut others {
            other.await_stdout("x is held by ");
        }
        // That is said before the holder is notified.
        await_notification(&store);
        let_go(&run);
        for other in &mut others {
            assert_ended(&other.wait());
        }
        assert_broken(&store, "x", &mut run);
        until(SOON, "a free lock", || !store.is_held());
    }
}

/// The notification is not withdrawn.
#[test]
fn an_interrupted_break_has_notified_the_holder() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("60s").args(["--grace", "20s"]);
        let mut run = lingering(run, &inherited_lock);
        let mut breaks = breaking(&store).args(["--wait", "forever"]).spawn();
        await_notification(&store);
        breaks.signal(nix::sys::signal::Signal::SIGINT);
        let output = breaks.wait();
        assert_eq!(output.exit, Exit::by(nix::sys::signal::Signal::SIGINT), "{output:?}");
        assert_eq!(output.stderr, "");
        let_go(&run);
        assert_broken(&store, "x", &mut run);
    }
}
