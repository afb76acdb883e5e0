//! Several names: all or none, in whatever order they are given.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::{Rig, shown};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Running};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::process::Stdio;
use std::time::Duration;

const NAMES: [&str; 3] = ["x", "y", "z"];

/// `dlock run` on several names.
fn run_on(rig: &dyn Rig, names: &[&str]) -> Dlock {
    rig.run().args(names).no_name()
}

/// A run on several names that lasts until its standard input is closed.
fn holding(rig: &dyn Rig, names: &[&str]) -> Running {
    let mut run = run_on(rig, names).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    run
}

/// They are free, and the former holder has left no trace.
async fn assert_free(rig: &dyn Rig, names: &[&str]) {
    for name in names {
        assert_eq!(rig.traces(name), [""; 0], "{name}");
    }
    assert_not_held(rig, names).await;
}

async fn assert_not_held(rig: &dyn Rig, names: &[&str]) {
    for name in names {
        let mut client = Client::new(rig, name);
        client.acquire().await;
        client.release().await;
    }
}

pub async fn all_are_held_and_all_are_freed(rig: &mut dyn Rig) {
    let mut run = holding(rig, &["z", "x", "y"]);
    for name in NAMES {
        let holder = Client::new(rig, name).refused().await;
        assert_eq!(holder.identity.and_then(|identity| i32::try_from(identity.pid).ok()), Some(run.pid()));
        assert!(!rig.foreign_lock(name, None));
    }
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    assert_free(rig, &NAMES).await;
}

pub async fn all_locks_or_none_are_acquired(rig: &mut dyn Rig) {
    for busy in NAMES {
        let mut holder = Client::new(rig, busy).elsewhere();
        holder.acquire().await;
        for patience in ["0", "150ms"] {
            let output = run_on(rig, &["z", "x", "y"]).args(["--wait", patience]).sh("echo ran").output();
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""));
            let line = output.stderr.as_str();
            assert!(line.starts_with(&format!("dlock: {busy} is held by elsewhere (pid ")), "{line}");
            assert_eq!((line.lines().count(), rig.waiters(busy)), (1, 0), "{line}");
            let others: Vec<&str> = NAMES.into_iter().filter(|name| *name != busy).collect();
            assert_free(rig, &others).await;
        }
        holder.assert_held().await;
        holder.release().await;
    }
    assert_free(rig, &NAMES).await;
}

/// Each run logs its start and its end for each of its names; between the two no other run may be in the log of that
/// name.
pub async fn no_order_of_the_names_causes_a_deadlock(rig: &mut dyn Rig) {
    const WORKERS: usize = 4;
    const ROUNDS: usize = 5;
    let random = RandomState::new();
    // Two or three of the names, in any order.
    let choice = |worker: usize, round: usize| {
        let mut names = NAMES.to_vec();
        names.sort_by_key(|name| random.hash_one((worker, round, name)));
        names.truncate(2 + random.hash_one((worker, round)) as usize % 2);
        names
    };
    let log = |what: &str, names: &[&str]| {
        names.iter().map(|name| format!("echo {what} {name} $$ >>log\n")).collect::<String>()
    };
    let workers: Vec<String> = (0..WORKERS)
        .map(|worker| {
            let runs = (0..ROUNDS).map(|round| {
                let names = choice(worker, round);
                let text = format!("{}sleep 0.01\n{}", log("start", &names), log("end", &names));
                let script =
                    rig.place().script(&format!("run.{worker}.{round}"), &format!("#!/bin/sh\n{text}"));
                let dlock = crate::support::dlock::BINARY;
                let options = format!("--wait forever -b '{}' {}", rig.backend(), names.join(" "));
                format!("'{dlock}' run {options} -- '{}' || exit\n", script.display())
            });
            runs.collect()
        })
        .collect();
    let start = |text: &String| rig.run().without_dlock().sh(text).spawn();
    let mut workers: Vec<Running> = workers.iter().map(start).collect();
    for worker in &mut workers {
        assert_eq!(worker.wait_within(2 * SOON).outcome(), (Exit::Code(0), "", ""));
    }
    let log = rig.place().read("log");
    let mut inside = HashMap::new();
    for line in log.lines() {
        let [what, name, pid] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        match what {
            "start" => assert_eq!(inside.insert(name, pid), None, "{line}: two at a time in\n{log}"),
            _ => assert_eq!(inside.remove(name), Some(pid), "{line}: of another in\n{log}"),
        }
    }
    assert!(inside.is_empty() && log.lines().count() >= WORKERS * ROUNDS * 4, "{log}");
    assert_free(rig, &NAMES).await;
}

pub async fn the_environment_of_the_command_names_all_locks(rig: &mut dyn Rig) {
    let text = "echo $DLOCK_NAME; echo $DLOCK_TOKEN; echo $DLOCK_FENCING_TOKEN; echo $DLOCK_HELD";
    // A name counts once, however often it is given.
    let run = run_on(rig, &["y", "x", "y"]).sh(text).output();
    assert_eq!((run.exit, run.stderr.as_str()), (Exit::Code(0), ""));
    let [name, token, fencing, held] = run.stdout.lines().collect::<Vec<_>>()[..] else {
        panic!("{}", run.stdout)
    };
    assert_eq!(name, "y", "the first as typed");
    let held: Vec<Value> = serde_json::from_str(held).unwrap();
    assert_eq!(held.iter().map(|hold| &hold["name"]).collect::<Vec<_>>(), ["x", "y"]);
    assert_ne!(held[0]["token"], held[1]["token"]);
    assert_eq!(
        (&held[1]["token"], &held[1]["fencing_token"].to_string()),
        (&token.into(), &fencing.to_owned())
    );
    let backend = shown(rig);
    for hold in &held {
        assert_eq!((&hold["mode"], &hold["backend"]), (&"exclusive".into(), &backend.as_str().into()));
        assert!(hold["fencing_token"].is_u64() && hold["pid"].is_u64() && hold["start"].is_u64(), "{hold}");
    }
}

/// A third of this is the longest that a loss may go unnoticed; and a slow machine must have the time to renew a lease.
fn ttl(rig: &dyn Rig) -> String {
    if rig.has_leases() || rig.has_sessions() { rig.ttl(6) } else { "1s".to_owned() }
}

/// The loss of the first and of the last are noticed equally soon.
async fn lose(rig: &mut dyn Rig, name: &str, lose: fn(&mut dyn Rig, &str), how: &str) {
    let mut run = run_on(rig, &NAMES).args(["--ttl", &ttl(rig)]).probe(["signals", "exit:TERM=3"]).spawn();
    run.await_ready();
    lose(rig, name);
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76));
    let backend = shown(rig);
    let line = format!("dlock: {name} on {backend}: the lock was lost: {how}; the command was stopped\n");
    assert_eq!(output.stderr, line);
    run.marker().await_end();
    let others: Vec<&str> = NAMES.into_iter().filter(|other| *other != name).collect();
    assert_not_held(rig, &others).await;
}

pub async fn losing_one_lock_loses_all(rig: &mut dyn Rig) {
    let gone = "it is gone from the store (deleted, expired or evicted)";
    for name in NAMES {
        lose(rig, name, |rig, name| rig.delete(name), gone).await;
    }
}

pub async fn removing_one_lock_loses_all(rig: &mut dyn Rig) {
    lose(rig, "y", |rig, name| rig.replace(name), "another client holds it now").await;
    assert!(rig.is_untouched("y"));
}

pub async fn held_locks_are_renewed_while_the_next_is_waited_for(rig: &mut dyn Rig) {
    // Renewed in time on a busy machine; and half of the lease is left when the wait ends, as a start requires.
    const LEASE: u64 = 5;
    let mut holder = Client::new(rig, "y").elsewhere();
    holder.acquire().await;
    let mut run = run_on(rig, &["y", "x"])
        .args(["-v", "--ttl", &rig.ttl(LEASE), "--wait", "forever"])
        .sh("echo ran")
        .spawn();
    run.await_stderr("y is held by elsewhere ");
    let longer = match rig.has_leases() || rig.has_sessions() {
        true => rig.end_of_lease(Duration::from_secs(LEASE)),
        false => Duration::from_millis(200),
    };
    let mut x = Client::new(rig, "x");
    let end = tokio::time::Instant::now() + longer;
    while tokio::time::Instant::now() < end {
        x.refused().await;
        run.assert_running();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    holder.release().await;
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"));
    assert_free(rig, &["x", "y"]).await;
}

/// Its command does not run yet: it is neither running nor hanging, and the other lock is the one to look at.
pub async fn a_holder_that_waits_for_its_next_lock_is_shown_as_waiting(rig: &mut dyn Rig) {
    let mut holder = Client::new(rig, "z").elsewhere();
    holder.acquire().await;
    let mut run = run_on(rig, &["z", "y", "x"])
        .args(["-v", "--wait", "forever"])
        .stdin(Stdio::piped())
        .sh("echo ready; exec cat")
        .spawn();
    run.await_stderr("z is held by elsewhere ");
    let status = |args: &[&str]| {
        let backend = rig.backend();
        let output = rig.place().bare().args(["status", "-q", "-b", &backend]).args(args).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        output.stdout
    };
    let phase = |names: &[&str]| {
        let seen: Value = serde_json::from_str(&status(&[&["--json"], names].concat())).unwrap();
        let holder = &seen["locks"][0]["holders"][0];
        (holder["pid"].clone(), holder["phase"].clone(), holder["waits_for"].clone())
    };
    let pid = Value::from(run.pid());
    let waiting = (pid.clone(), "waiting".into(), "z".into());
    // The lock that it waits for need not be asked for.
    for names in [&["x"][..], &["y"], &["x", "y", "z"]] {
        assert_eq!(phase(names), waiting, "{names:?}");
    }
    let table = status(&["x"]);
    let [_, heading, row] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
    let at = |column| heading.find(column).unwrap();
    assert!(row[at("STATE")..].starts_with("waiting "), "{table}");
    assert_eq!(&row[at("NOTE")..], "waiting for z", "{table}");
    holder.release().await;
    run.await_ready();
    for name in NAMES {
        assert_eq!(phase(&[name]), (pid.clone(), "running".into(), Value::Null), "{name}");
    }
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
}

/// Whoever asks, however often the locks are renewed meanwhile, and whichever of them are asked for together.
pub async fn the_time_of_a_grant_is_the_same_in_every_answer(rig: &mut dyn Rig) {
    let mut run = run_on(rig, &NAMES)
        .args(["--ttl", &rig.ttl(6)])
        .stdin(Stdio::piped())
        .sh("echo ready; exec cat")
        .spawn();
    run.await_ready();
    let end = tokio::time::Instant::now() + Duration::from_millis(2_300);
    let mut first = None;
    while first.is_none() || tokio::time::Instant::now() < end {
        for names in [&["x", "y", "z"], &["z", "y", "x"]] {
            let backend = rig.backend();
            let status = rig.place().bare().args(["status", "-q", "--json", "-b", &backend]).args(names);
            let output = status.output();
            assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
            let seen: Value = serde_json::from_str(&output.stdout).unwrap();
            let time =
                |lock: &Value| (lock["name"].to_string(), lock["holders"][0]["acquired_at"].to_string());
            let times: BTreeMap<_, _> = seen["locks"].as_array().unwrap().iter().map(time).collect();
            assert!(times.len() == 3 && times.values().all(|time| time.ends_with("Z\"")), "{seen}");
            assert_eq!(*first.get_or_insert(times.clone()), times);
        }
    }
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
}

/// Locks held when one was lost are acquired again, or nothing runs.
pub async fn a_lock_lost_while_the_next_is_waited_for_is_acquired_again(rig: &mut dyn Rig) {
    let mut holder = Client::new(rig, "y").elsewhere();
    holder.acquire().await;
    let text = "echo $DLOCK_FENCING_TOKEN";
    let mut run =
        run_on(rig, &["x", "y"]).args(["-v", "--ttl", &ttl(rig), "--wait", "forever"]).sh(text).spawn();
    run.await_stderr("y is held by elsewhere ");
    let before = rig.waiters("y");
    // A run that notices the loss at once could be the first to acquire the lock again.
    run.signal(Signal::SIGSTOP);
    rig.delete("x");
    let mut other = Client::new(rig, "x").elsewhere();
    let between = other.acquire().await.fencing;
    run.signal(Signal::SIGCONT);
    run.await_stderr("x is held by elsewhere ");
    assert_eq!(
        (before, rig.waiters("y")),
        (1, 0),
        "whoever has not got the first does not wait for the second"
    );
    other.release().await;
    holder.release().await;
    let output = run.wait();
    let fencing = output.stdout.trim().parse().ok().and_then(dlock::lock::FencingToken::new);
    let is_later = fencing > between || !rig.has_fencing_tokens();
    assert!(output.exit == Exit::Code(0) && is_later, "{output:?}");
    assert_free(rig, &["x", "y"]).await;
}
