//! Which nested runs are refused, and which information about an outer hold is not trusted.

use super::nesting::inner;
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::{Rig, shown};
use crate::support::dlock::BINARY;
use crate::support::running::{Exit, Output};
use dlock::lock::Mode;
use serde_json::json;
use std::process::Stdio;

/// The outcome of an inner run with these options in an outer one with those; it must not run, and leave no trace.
fn refused(rig: &dyn Rig, outer: &str, options: &str) -> Output {
    let text = format!("{} echo ran", inner(rig, options));
    let output = rig.run().args(outer.split_whitespace()).sh(&text).output();
    assert_eq!(output.stdout, "", "{outer} {options}");
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert_eq!(rig.traces("x"), [""; 0]);
    output
}

pub async fn exclusive_inside_shared_is_refused_at_once(rig: &mut dyn Rig) {
    let line = |outer: &str, inner: &str| {
        format!(
            "dlock: x on {}: cannot be taken {inner} here: this command runs under a hold of it that is {outer} and would \
             wait for itself; take the outer one with --exclusive, or this one with the same mode\n",
            shown(rig)
        )
    };
    for wait in ["", "--wait forever"] {
        let output = refused(rig, "--shared", wait);
        assert_eq!(output.outcome(), (Exit::Code(64), "", line("shared", "exclusive").as_str()));
        if !rig.has_slots() {
            continue;
        }
        let output = refused(rig, "--slots 3", wait);
        assert_eq!(output.outcome(), (Exit::Code(64), "", line("slots", "exclusive").as_str()));
        let output = refused(rig, "--shared", &format!("--slots 3 {wait}"));
        assert_eq!(output.outcome(), (Exit::Code(64), "", line("shared", "slots").as_str()));
        let output = refused(rig, "--slots 3", &format!("--shared {wait}"));
        assert_eq!(output.outcome(), (Exit::Code(64), "", line("slots", "shared").as_str()));
    }
}

pub async fn a_different_slot_count_inside_is_refused_at_once(rig: &mut dyn Rig) {
    for wait in ["", "--wait forever"] {
        let output = refused(rig, "--slots 3", &format!("--slots 2 {wait}"));
        assert_eq!(output.exit, Exit::Code(64));
        let line = output.stderr.as_str();
        assert!(line.contains("--slots 2, ") && line.contains(" 3 slots: "), "{line}");
    }
}

/// The outer dlock, as passed to the inner one.
fn held(rig: &dyn Rig, token: &str, pid: u32, start: u64) -> String {
    let boot = dlock::identity::of_this_process(String::new(), None).boot;
    json!([{"name": "x", "token": token, "fencing_token": 1, "mode": "exclusive", "backend": shown(rig), "pid": pid,
        "start": start, "boot": boot}])
    .to_string()
}

/// The id of a process that has ended.
fn dead_pid() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

pub async fn a_hold_whose_dlock_is_dead_is_ignored(rig: &mut dyn Rig) {
    let us = dlock::identity::of_this_process(String::new(), None);
    let stale = [held(rig, "t", dead_pid(), us.start), held(rig, "t", us.pid, us.start + 1)];
    for stale in &stale {
        let run = || rig.run().env("DLOCK_HELD", stale).sh("echo ran");
        assert_eq!(run().output().outcome(), (Exit::Code(0), "ran\n", ""), "{stale}");
        let mut holder = Client::new(rig, "x").elsewhere();
        holder.acquire().await;
        let output = run().output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{stale}");
        holder.release().await;
    }
    // The token decides: a client with that of the holder is inside.
    let mut holder = Client::new(rig, "x").elsewhere();
    holder.acquire().await;
    let known = held(rig, holder.claim.token.reveal(), dead_pid(), 1);
    let run = rig.run().env("DLOCK_HELD", known).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
    holder.assert_held().await;
}

pub async fn an_outer_hold_of_a_live_dlock_must_exist(rig: &mut dyn Rig) {
    let us = dlock::identity::of_this_process(String::new(), None);
    let line = format!(
        "dlock: x on {}: the lock that this command runs under (DLOCK_HELD) was lost; the command did not run\n",
        shown(rig)
    );
    for wait in ["0", "forever"] {
        let run = rig.run().env("DLOCK_HELD", held(rig, "t", us.pid, us.start)).args(["--wait", wait]);
        assert_eq!(run.sh("echo ran").output().outcome(), (Exit::Code(76), "", line.as_str()));
    }
    assert_eq!(rig.traces("x"), [""; 0]);
}

/// The outer run has lost the lock in this way, and its command continues.
async fn lost_outside(rig: &mut dyn Rig, lose: impl FnOnce(&mut dyn Rig)) -> Output {
    let text = format!("echo ready; read go; exec {} echo ran", inner(rig, "--wait forever"));
    let mut run = rig.run().args(["--on-lost", "warn"]).stdin(Stdio::piped()).sh(&text).spawn();
    run.await_ready();
    lose(rig);
    std::io::Write::write_all(&mut run.take_stdin(), b"go\n").unwrap();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
    let line = format!("x on {}: the lock that this command runs under (DLOCK_HELD) was lost; ", shown(rig));
    assert!(output.stderr.contains(&line), "{}", output.stderr);
    output
}

pub async fn an_inner_run_does_not_enter_a_lock_that_is_gone(rig: &mut dyn Rig) {
    lost_outside(rig, |rig| rig.delete("x")).await;
    Client::new(rig, "x").acquire().await;
}

pub async fn an_inner_run_does_not_enter_a_lock_that_was_removed(rig: &mut dyn Rig) {
    lost_outside(rig, |rig| rig.replace("x")).await;
    assert!(rig.is_untouched("x"));
}

/// `sudo` and `env -i` remove the variables of the outer run.
pub async fn waiting_for_an_ancestor_is_refused_with_an_explanation(rig: &mut dyn Rig) {
    for (outer, options) in [("", ""), ("", "--wait forever"), ("--shared", "--wait forever")] {
        let text = format!("exec env -u DLOCK_HELD {} echo ran", inner(rig, options));
        let output = rig.run().args(outer.split_whitespace()).sh(&text).output();
        let line = "dlock: x is held by the dlock that runs this very command: waiting for it would never end, and \
                    DLOCK_HELD, which would allow nesting, was removed from the environment: keep it, as by \
                    sudo --preserve-env=DLOCK_HELD\n";
        assert_eq!(output.outcome(), (Exit::Code(75), "", line), "{outer} {options}");
        assert_eq!(rig.traces("x"), [""; 0]);
    }
    // One of several sharing holders is sufficient.
    let mut other = Client::new(rig, "x").elsewhere().in_mode(Mode::Shared);
    other.acquire().await;
    let text = format!("exec env -u DLOCK_HELD {} echo ran", inner(rig, "--wait forever"));
    let output = rig.run().arg("--shared").sh(&text).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""));
}

/// Two runs, each with the lock that the other needs: the wait of one ends, and the other continues.
pub async fn a_deadlock_by_opposite_nesting_ends_with_the_wait(rig: &mut dyn Rig) {
    let nested = |outer: &str, name: &str, wait: &str| {
        let url = rig.backend();
        let text = format!(
            "touch has.{outer}; while [ ! -e has.{name} ]; do sleep 0.05; done\n\
             exec '{BINARY}' run -b '{url}' --wait {wait} {name} -- echo {outer} then {name}"
        );
        rig.run().name(outer).sh(&text).spawn()
    };
    let (mut impatient, mut patient) = (nested("x", "y", "300ms"), nested("y", "x", "forever"));
    let output = impatient.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""));
    assert!(output.stderr.starts_with("dlock: y is held by "), "{}", output.stderr);
    assert_eq!(patient.wait().outcome(), (Exit::Code(0), "y then x\n", ""));
    assert_eq!([rig.traces("x"), rig.traces("y")], [vec![], Vec::<String>::new()]);
}
