//! What `--force` does to a dlock, and to a token that nobody stands behind.

use super::{
    assert_ended, assert_not_yet, breaking, host, move_to_another_host, stubborn, user, without_times,
    working,
};
use crate::conformance::client::Client;
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
use crate::waiting::scene::{go_on, stop};
use nix::sys::signal::Signal;
use std::time::Duration;

/// A hold that `dlock acquire` would leave behind.
fn token(store: &Store) -> Client {
    let mut client = Client::at(store.url(), "x").with_ttl(Duration::from_secs(60));
    client.claim.identity.unattended = true;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(client.acquire());
    client
}

#[test]
fn a_token_is_left_as_it_is_without_force_and_taken_away_with_it() {
    let store = Store::redis();
    let _client = token(&store);
    let who = format!("{} (pid PID, {}, suite, note: note of x) for TIME", host(), user());
    assert_not_yet(
        &breaking(&store).output(),
        &format!(
            "x is still held by {who}: it was taken by dlock acquire, and nobody is there to be told; its lease ends in \
             TIME unless it is renewed; --force takes it away, whatever runs under it"
        ),
    );
    assert!(store.is_held());
    let output = breaking(&store).arg("--force").output();
    assert_eq!((output.exit, output.stderr.lines().count()), (Exit::Code(0), 1), "{output:?}");
    assert!(output.stderr.contains("what it runs may still run"), "{}", output.stderr);
    assert!(!store.is_held());
}

/// Nobody has said anything that could be understood by whoever renews it later.
#[test]
fn a_token_that_was_not_broken_is_as_good_as_before() {
    let store = Store::redis();
    let client = token(&store);
    assert_eq!(breaking(&store).output().exit, Exit::Code(75));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut again = Client { backend: crate::conformance::rig::open(store.url()), claim: client.claim };
    let renewal = runtime.block_on(again.renew());
    assert!(matches!(renewal, dlock::backend::Renewal::Held { revoked: None, .. }), "{renewal:?}");
}

/// It can be told, so it is told first.
#[test]
fn a_dlock_that_gives_it_up_loses_nothing_by_force() {
    for store in Store::each() {
        let mut run = working(store.run());
        assert_ended(&breaking(&store).arg("--force").output());
        super::assert_broken(&store, "x", &mut run);
    }
}

/// What `--force` risks is said, and does not last: a dlock that lives sees it and ends its command.
#[test]
fn a_dlock_notices_that_its_lock_was_taken_away() {
    for on_lost in ["kill", "warn"] {
        let store = Store::redis();
        let leash = store.place.leash();
        let run = store.run_with_ttl("30s").args(["--grace", "6s", "--on-lost", on_lost]);
        let mut run = stubborn(run, &leash);
        // It has a grace that is longer than this patience.
        let output = breaking(&store).args(["--force", "--wait", "200ms"]).output();
        let who = format!("{} (pid PID, {}, probe) for TIME", host(), user());
        assert_eq!(output.exit, Exit::Code(0), "{output:?}");
        assert_eq!(
            without_times(&output.stderr),
            format!(
                "dlock: x was taken away from {who}: what it runs may still run, beside that of the next holder, until it \
                 notices\n"
            )
        );
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(76), "{output:?}");
        assert!(!output.stderr.contains("the command goes on"), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        leash.await_free();
    }
}

/// One that does not answer.
#[test]
fn a_dlock_that_is_stopped_elsewhere_loses_it_by_force() {
    let store = Store::redis();
    let leash = store.place.leash();
    let mut run = stubborn(store.run_with_ttl("10m"), &leash);
    move_to_another_host(&store);
    stop(&run);
    let output = breaking(&store).args(["--force", "--wait", "100ms"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{output:?}");
    assert!(!store.is_held() && !leash.is_free());
    go_on(&run);
    assert_eq!(run.wait().exit, Exit::Code(76));
    assert!(leash.is_free());
}

/// Of several who share it only the one that was meant.
#[test]
fn only_the_one_that_is_named_is_taken_away() {
    let store = Store::redis();
    let run = || {
        let leash = store.place.leash();
        stubborn(store.run_with_ttl("30s").args(["--shared", "--grace", "6s"]), &leash)
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
