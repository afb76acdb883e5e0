//! The effect of `--force` on a dlock, and on a token without a process.

use super::{
    assert_ended, assert_not_yet, breaking, host, pretend_other_host, stubborn, user, without_times, working,
};
use crate::acquire::queue::fixture::{go_on, stop};
use crate::support::SOON;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
use crate::support::wait::until;
use nix::sys::signal::Signal;

/// A lease without a process; its token is in the file `token`.
fn acquire(store: &Store) {
    let acquire = store.place.bare().args(["acquire", "-b", store.url(), "--ttl", "60s"]);
    let output = acquire.args(["--note", "release 4", "--token-file", "token"]).name("x").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
}

fn renew(store: &Store) -> Output {
    store.place.bare().args(["renew", "-b", store.url(), "--token-file", "token"]).name("x").output()
}

#[test]
fn the_hold_of_a_token_is_removed_only_with_force() {
    let store = Store::redis();
    acquire(&store);
    let who = format!(
        "a token of {} ({}, dlock acquire, note: release 4) for TIME, TIME of the lease left",
        host(),
        user()
    );
    assert_not_yet(
        &breaking(&store).output(),
        &format!(
            "x is still held by {who}: it has no process that could be notified; --force removes it even if \
            its command still runs"
        ),
    );
    // It is still valid.
    assert_eq!(renew(&store).exit, Exit::Code(0));
    let output = breaking(&store).arg("--force").output();
    assert_eq!(
        (output.exit, without_times(&output.stderr)),
        (
            Exit::Code(0),
            format!(
                "dlock: x was removed from a token of {} ({}, dlock acquire, note: release 4), which had held it for \
                 TIME, with TIME of the lease left: what runs under that token may still run beside the command of the \
                 next holder, until it renews or checks the token\n",
                host(),
                user()
            )
        )
    );
    assert!(!store.is_held());
    // In the history, too, a token has no process.
    let history = store.place.bare().args(["status", "-b", store.url(), "--history", "x"]).output().stdout;
    let row = history.lines().find(|line| line.contains("  removed  ")).expect("the break");
    assert!(
        row.ends_with(&format!("  from a token of {} ({}, dlock acquire, note: release 4)", host(), user())),
        "{row}"
    );
    assert_eq!(renew(&store).exit, Exit::Code(76));
}

/// It can be notified, so it is notified first.
#[test]
fn a_dlock_that_releases_by_itself_is_not_removed_by_force() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("30s"));
        assert_ended(&breaking(&store).arg("--force").output());
        super::assert_broken(&store, "x", &mut run);
    }
}

/// The risk of `--force` is reported, and does not last: a live dlock notices and ends its command.
#[test]
fn a_dlock_notices_that_its_lock_was_removed() {
    for on_lost in ["kill", "warn"] {
        let store = Store::redis();
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("30s").args(["--grace", "6s", "--on-lost", on_lost]);
        let mut run = stubborn(run, &inherited_lock);
        // Its grace is longer than the wait of the break.
        let output = breaking(&store).args(["--force", "--wait", "200ms"]).output();
        let who = format!("{} (pid PID, {}, probe), which had held it for TIME", host(), user());
        assert_eq!(output.exit, Exit::Code(0), "{output:?}");
        assert_eq!(
            without_times(&output.stderr),
            format!(
                "dlock: x was removed from {who}: its command may still run beside that of the next holder, \
                until it notices\n"
            )
        );
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(76), "{output:?}");
        assert!(!output.stderr.contains("the command goes on"), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        inherited_lock.await_free();
    }
}

/// A holder that does not react.
#[test]
fn a_stopped_dlock_on_another_host_loses_the_lock_by_force() {
    let store = Store::redis();
    let inherited_lock = store.place.inherited_lock();
    let mut run = stubborn(store.run_with_ttl("10m"), &inherited_lock);
    pretend_other_host(&store);
    stop(&run);
    let output = breaking(&store).args(["--force", "--wait", "100ms"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{output:?}");
    assert!(!store.is_held() && !inherited_lock.is_free());
    go_on(&run);
    assert_eq!(run.wait().exit, Exit::Code(76));
    assert!(inherited_lock.is_free());
}

/// Of several sharing holders only the given one.
#[test]
fn only_the_named_hold_is_removed() {
    let store = Store::redis();
    let run = || {
        let inherited_lock = store.place.inherited_lock();
        stubborn(store.run_with_ttl("30s").args(["--shared", "--grace", "6s"]), &inherited_lock)
    };
    let (mut one, mut other) = (run(), working(store.run_with_ttl("30s").arg("--shared")));
    let shown = store.place.bare().args(["status", "-b", store.url(), "--json"]).name("x").output().stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let holders = shown["locks"][0]["holders"].as_array().unwrap();
    let first = holders.iter().find(|holder| holder["pid"] == one.pid()).unwrap();
    let token = first["fencing_token"].to_string();
    let output = breaking(&store).args(["--force", "--wait", "0", "--fencing-token", &token]).output();
    assert_eq!(output.exit, Exit::Code(0), "{output:?}");
    assert_eq!(one.wait().exit, Exit::Code(76));
    other.assert_running();
    assert!(store.is_held());
    other.signal(Signal::SIGTERM);
    other.wait();
    until(SOON, "a free lock", || !store.is_held());
}
