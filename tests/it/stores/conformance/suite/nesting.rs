//! A run inside a run that holds the same lock enters at once, and the lock is free when the last of them has ended.

use super::exclusion::let_end;
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::Rig;
use crate::support::dlock::{BINARY, Dlock};
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use crate::support::{SOON, process};
use dlock::backend::{Attempt, Refusal, Release};
use dlock::lock::Mode;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// The arguments of a run on `x`, up to its command, as a shell text.
pub fn inner(rig: &dyn Rig, options: &str) -> String {
    format!("'{BINARY}' run -b '{}' {options} x --", rig.backend())
}

/// A client inside the hold of another.
fn inside(rig: &dyn Rig, outer: &Client) -> Client {
    let mut client = Client::new(rig, "x");
    client.claim.outer = vec![outer.claim.token.clone()];
    client.claim.requires_outer_hold = true;
    client
}

pub async fn a_nested_run_enters_at_once(rig: &mut dyn Rig) {
    let none = format!("{} echo inside", inner(rig, ""));
    assert_eq!(rig.run().sh(&none).output().outcome(), (Exit::Code(0), "inside\n", ""));
    // With options that differ from those of the outer one.
    let ttl = rig.ttl(5);
    let options =
        format!("--ttl {ttl} --grace 1s --note inner --no-wait --orphans kill --max-runtime 1m -E 9");
    let other = format!("{} sh -c 'echo inside; exit 3'", inner(rig, &options));
    let outer = rig.run().args(["--ttl", "20s", "--note", "outer", "--wait", "1s"]).sh(&other).output();
    assert_eq!(outer.outcome(), (Exit::Code(3), "inside\n", ""));
    assert_eq!(rig.traces("x"), [""; 0]);
}

/// S32
pub async fn fifty_deep_is_not_too_deep(rig: &mut dyn Rig) {
    let mut text = "echo deep".to_owned();
    for _ in 0..50 {
        text = format!("{} {text}", inner(rig, ""));
    }
    let output = rig.run().sh(&format!("exec {text}")).spawn().wait_within(4 * SOON);
    assert_eq!(output.outcome(), (Exit::Code(0), "deep\n", ""));
    // On a busy host, dlock may stop waiting before every node of Redlock has got the release.
    until(SOON, "a free lock", || rig.is_free_to_others("x"));
}

pub async fn the_outer_hold_continues_after_the_inner_one(rig: &mut dyn Rig) {
    let text = format!("{0} true && {0} true && echo ready; exec cat", inner(rig, ""));
    let mut run = rig.run().stdin(Stdio::piped()).sh(&text).spawn();
    run.await_ready();
    Client::new(rig, "x").refused().await;
    assert!(!rig.foreign_lock("x", None));
    let_end(run);
    assert!(rig.is_free_to_others("x"));
}

/// An outer run whose inner one continues in the background until a file `go` exists.
fn outlived(rig: &dyn Rig) -> Dlock {
    let work = "echo inside >started; while [ ! -e go ]; do sleep 0.05; done; echo ended >>started";
    let text = format!(
        "{} sh -c '{work}' >/dev/null 2>&1 & while [ ! -e started ]; do sleep 0.05; done",
        inner(rig, "--ttl 20s")
    );
    rig.run().args(["--orphans", "leave", "--ttl", &rig.ttl(5)]).sh(&text)
}

pub async fn an_inner_run_that_outlives_the_outer_keeps_the_lock(rig: &mut dyn Rig) {
    let mut outer = outlived(rig).spawn();
    until(SOON, "the inner run", || rig.place().read("started") == "inside\n");
    if rig.has_leases() {
        assert_eq!(outer.wait().outcome(), (Exit::Code(0), "", ""));
    } else {
        // Only the descriptor of the outer one excludes others.
        throughout(Duration::from_millis(300), "the outer run stays", || outer.poll().is_none());
    }
    Client::new(rig, "x").refused().await;
    assert!(!rig.foreign_lock("x", None));
    if rig.has_leases() {
        // Longer than the outer lease: the inner one is renewed.
        tokio::time::sleep(Duration::from_millis(5200)).await;
        assert!(!rig.foreign_lock("x", None));
    }
    rig.place().write("go", "");
    let mut next = Client::new(rig, "x");
    next.acquire_in_the_end().await;
    assert_eq!(rig.place().read("started"), "inside\nended\n", "the lock was free too early");
    assert_eq!(outer.wait().outcome(), (Exit::Code(0), "", ""));
}

/// With the backend trait: members of one hold, which leave in any order.
pub async fn the_last_inner_hold_decides(rig: &mut dyn Rig) {
    for inner_goes_first in [true, false] {
        let mut outer = Client::new(rig, "x");
        let grant = outer.acquire().await;
        let mut inner = inside(rig, &outer);
        let entered = inner.acquire().await;
        assert_eq!((entered.fencing, entered.slot), (grant.fencing, None), "one hold, one fencing token");
        let (mut first, mut last) = if inner_goes_first { (inner, outer) } else { (outer, inner) };
        let release = first.release().await;
        let stays = !inner_goes_first && !rig.has_leases();
        assert_eq!(matches!(release, Release::NotYet(_)), stays, "{release:?}");
        last.assert_held().await;
        Client::new(rig, "x").refused().await;
        assert!(!rig.foreign_lock("x", None));
        assert_eq!(last.release().await, Release::Released);
        if stays {
            assert_eq!(first.release().await, Release::Released);
            // A waiter that inherits the lock of the descriptor may have it for a moment.
            until(SOON, "nothing left", || rig.traces("x").is_empty());
        }
        assert_eq!(rig.traces("x"), [""; 0]);
        assert!(rig.is_free_to_others("x"));
    }
}

/// A repeated request after a lost reply is not a second entry.
pub async fn entering_is_idempotent(rig: &mut dyn Rig) {
    let mut outer = Client::new(rig, "x");
    outer.acquire().await;
    let mut inner = inside(rig, &outer);
    let first = inner.acquire().await;
    assert_eq!(inner.acquire().await, first);
    assert_eq!(inner.release().await, Release::Released);
    assert_eq!(inner.release().await, Release::NotHeld);
    outer.assert_held().await;
    outer.release().await;
    assert_eq!(rig.traces("x"), [""; 0]);
}

/// Waiters are served when the hold ends, not when it is entered or left: an inner run would otherwise wait for itself.
pub async fn a_nested_entry_overtakes_waiters(rig: &mut dyn Rig) {
    let modes = [Mode::Exclusive, Mode::Shared, Mode::Slots(2)];
    for mode in modes.into_iter().filter(|mode| rig.has(*mode)) {
        let mut outer = Client::new(rig, "x").in_mode(mode);
        outer.acquire().await;
        let mut waiting = Client::new(rig, "x");
        assert_eq!(waiting.queue().await.position, Some(1));
        let mut inner = inside(rig, &outer).in_mode(mode);
        inner.acquire().await;
        inner.release().await;
        assert!(!waiting.queue().await.promised);
        outer.release().await;
        waiting.await_turn().await;
        waiting.claim_turn().await;
        waiting.release().await;
    }
}

pub async fn an_inner_run_may_take_more_names(rig: &mut dyn Rig) {
    let text = format!("'{BINARY}' run -b '{}' y x -- echo inside && echo ready; exec cat", rig.backend());
    let mut run = rig.run().stdin(Stdio::piped()).sh(&text).spawn();
    run.await_stdout("inside\nready\n");
    assert_eq!(rig.traces("y"), [""; 0]);
    Client::new(rig, "x").refused().await;
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "inside\nready\n", ""));
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn the_inner_command_gets_the_same_fencing_token(rig: &mut dyn Rig) {
    let show = "echo $DLOCK_FENCING_TOKEN; echo $DLOCK_TOKEN; echo $DLOCK_HELD";
    let output = rig.run().sh(&format!("{show}; {} sh -c '{show}'", inner(rig, ""))).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let lines: Vec<&str> = output.stdout.lines().collect();
    let [outer_fencing, outer_token, outer_held, fencing, token, held] = lines[..] else {
        panic!("{lines:?}")
    };
    assert_eq!(fencing, outer_fencing);
    assert_ne!(token, outer_token);
    let [outer_held, held]: [Vec<Value>; 2] =
        [outer_held, held].map(|text| serde_json::from_str(text).unwrap());
    assert_eq!((outer_held.len(), held.len()), (1, 2));
    assert_eq!(held[0], outer_held[0], "outermost first");
    assert_eq!((&held[1]["token"], &held[1]["fencing_token"]), (&token.into(), &held[0]["fencing_token"]));
}

pub async fn shared_inside_exclusive_is_granted(rig: &mut dyn Rig) {
    let text = format!("{} sh -c 'echo ready; exec cat'", inner(rig, "--shared"));
    let mut run = rig.run().stdin(Stdio::piped()).sh(&text).spawn();
    run.await_ready();
    // The hold is exclusive nevertheless.
    Client::new(rig, "x").in_mode(Mode::Shared).refused().await;
    assert!(!rig.foreign_lock("x", None));
    let_end(run);
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn an_inner_run_has_the_slot_of_the_outer_one(rig: &mut dyn Rig) {
    let slots = |count: &str| rig.run().args(["--slots", count]);
    let mut other = slots("3").stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    other.await_ready();
    let text = format!("{} sh -c 'echo slot $DLOCK_SLOT'", inner(rig, "--slots 3"));
    assert_eq!(slots("3").sh(&text).output().outcome(), (Exit::Code(0), "slot 1\n", ""));
    // Two nested holds are one holder: there is a third slot.
    let text = format!("{} sh -c 'echo ready; exec cat'", inner(rig, "--slots 3"));
    let mut nested = slots("3").stdin(Stdio::piped()).sh(&text).spawn();
    nested.await_ready();
    assert_eq!(slots("3").sh("echo slot $DLOCK_SLOT").output().outcome(), (Exit::Code(0), "slot 2\n", ""));
    [other, nested].into_iter().for_each(let_end);
    let text = format!("{} sh -c 'echo slot $DLOCK_SLOT'", inner(rig, "--slots 3"));
    assert_eq!(rig.run().sh(&text).output().outcome(), (Exit::Code(0), "slot 0\n", ""), "inside exclusive");
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn the_same_name_on_another_store_is_another_lock(rig: &mut dyn Rig) {
    std::fs::create_dir(rig.place().path("elsewhere")).unwrap();
    let elsewhere = format!("file://{}", rig.place().arg("elsewhere"));
    let text = format!("'{BINARY}' run -b '{elsewhere}' x -- sh -c 'echo ready; exec cat'");
    let mut run = rig.run().stdin(Stdio::piped()).sh(&text).spawn();
    run.await_ready();
    Client::new(rig, "x").refused().await;
    let mut other = Client::at(&elsewhere, "x");
    let holder = other.refused().await.identity.unwrap();
    assert_ne!(i32::try_from(holder.pid), Ok(run.pid()), "the inner run holds it");
    assert!(process::descendants(run.pid()).iter().any(|stat| u32::try_from(stat.pid) == Ok(holder.pid)));
    let_end(run);
    // A hold here does not count there, where another client has the lock.
    other = other.elsewhere();
    other.acquire().await;
    let text = format!("'{BINARY}' run -b '{elsewhere}' x -- echo ran");
    let refused = rig.run().sh(&text).output();
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""));
    other.assert_held().await;
}

pub async fn entering_a_hold_that_is_gone_is_refused(rig: &mut dyn Rig) {
    let mut outer = Client::new(rig, "x");
    outer.acquire().await;
    outer.release().await;
    let mut inner = inside(rig, &outer);
    for _ in 0..2 {
        assert_eq!(inner.try_acquire().await, Attempt::Refused(Refusal::OuterLost));
        assert_eq!(inner.wait_in_line().await, Attempt::Refused(Refusal::OuterLost));
    }
    assert_eq!(rig.traces("x"), [""; 0]);
    // Without that information it is an ordinary client.
    inner.claim.requires_outer_hold = false;
    inner.acquire().await;
}
