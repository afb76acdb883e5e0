//! One holder at a time.

use crate::stores::conformance::client::{Client, by_another};
use crate::stores::conformance::rig::Rig;
use crate::support::running::{Exit, Running};
use dlock::backend::Release;
use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::Instant;

/// A run that holds `x` until its standard input is closed.
pub fn holding(rig: &dyn Rig) -> Running {
    let mut run = rig.run().stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    run
}

/// Ends it; it must not have printed anything.
pub fn let_end(mut run: Running) {
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
}

pub async fn a_held_lock_excludes_others(rig: &mut dyn Rig) {
    let (mut holder, mut other) = (Client::new(rig, "x"), Client::new(rig, "x"));
    holder.acquire().await;
    for _ in 0..3 {
        other.refused().await;
    }
    holder.assert_held().await;
}

pub async fn release_frees_the_lock(rig: &mut dyn Rig) {
    let (mut first, mut second) = (Client::new(rig, "x"), Client::new(rig, "x"));
    for _ in 0..3 {
        first.acquire().await;
        second.refused().await;
        assert_eq!(first.release().await, Release::Released);
        second.acquire().await;
        first.refused().await;
        assert_eq!(second.release().await, Release::Released);
    }
}

pub async fn release_may_be_repeated(rig: &mut dyn Rig) {
    let (mut first, mut second) = (Client::new(rig, "x"), Client::new(rig, "x"));
    assert_eq!(first.release().await, Release::NotHeld);
    first.acquire().await;
    assert_eq!(first.release().await, Release::Released);
    assert_eq!(first.release().await, Release::NotHeld);
    second.acquire().await;
    assert_eq!(first.release().await, Release::NotHeld);
    second.assert_held().await;
    first.refused().await;
}

pub async fn another_lock_is_free(rig: &mut dyn Rig) {
    let (mut one, mut other) = (Client::new(rig, "x"), Client::new(rig, "y"));
    one.acquire().await;
    other.acquire().await;
    assert_eq!(one.release().await, Release::Released);
    other.assert_held().await;
}

pub async fn a_run_excludes_a_run(rig: &mut dyn Rig) {
    let first = holding(rig);
    let second = rig.run().sh("echo ran").output();
    assert_eq!((second.exit, second.stdout.as_str()), (Exit::Code(75), ""));
    let_end(first);
    assert_eq!(rig.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

pub async fn a_run_and_another_client_exclude_each_other(rig: &mut dyn Rig) {
    let mut client = Client::new(rig, "x");
    let run = holding(rig);
    client.refused().await;
    let_end(run);
    client.acquire().await;
    let refused = rig.run().sh("echo ran").output();
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""));
    client.assert_held().await;
    client.release().await;
    assert_eq!(rig.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

pub async fn of_many_runs_one_holds_at_a_time(rig: &mut dyn Rig) {
    let log = rig.place().arg("log");
    let start = |_| rig.run().args(["--wait", "forever"]).probe(["hold", &log, "for", "5"]).spawn();
    let mut runs: Vec<Running> = (0..8).map(start).collect();
    for run in &mut runs {
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    }
    let log = rig.place().read("log");
    let whats: Vec<&str> = log.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(whats, ["start", "end"].repeat(8), "{log}");
}

/// A lease ends by itself and not before; without one the lock ends with the owner's last descriptor or session.
pub async fn the_lock_ends_with_its_owner(rig: &mut dyn Rig) {
    let short = rig.short();
    let (mut owner, mut next) = (Client::new(rig, "x").with_ttl(short), Client::new(rig, "x"));
    if let Some(lease) = rig.lease(short) {
        owner.backend.connect().await.unwrap();
        let sent = Instant::now();
        let grant = owner.acquire().await;
        assert_eq!(grant.lease, Some(lease));
        next.acquire_in_the_end().await;
        // The store's clock may run at a rate that differs by a percent.
        assert!(sent.elapsed() >= short - short / 100, "free after {:?}", sent.elapsed());
        return;
    }
    assert_eq!(owner.acquire().await.lease, None);
    let Client { backend, claim, .. } = owner;
    let kept: Vec<_> =
        backend.kept_descriptors().iter().map(|kept| kept.try_clone_to_owned().unwrap()).collect();
    drop(backend);
    next.refused().await;
    drop(kept);
    // A process that was just forked by another test has copies until it calls exec.
    next.acquire_in_the_end().await;
    next.release().await;

    // The same with processes: dlock and its guard keep the descriptor.
    let mut run = holding(rig);
    run.signal(Signal::SIGKILL);
    next.claim = by_another(&claim);
    next.acquire_in_the_end().await;
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    assert!(run.marker().bearers().is_empty(), "the lock was free before the command was dead");
}
