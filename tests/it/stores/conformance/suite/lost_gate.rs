//! A run has lost the gate in front of its ledger: its entry keeps the waiters out until its tree is dead, and no longer.

use super::loss::{AT_MOST, LEASE, holder, lost};
use super::nesting::inner;
use crate::stores::conformance::rig::Rig;
use crate::support::SOON;
use crate::support::probe;
use crate::support::running::{Exit, Running};
use dlock::lock::LockName;
use std::time::{Duration, Instant};

/// A run at the first queue position, which reports whether the command of the run that holds `x` is dead.
fn waiting(rig: &dyn Rig) -> Running {
    let inherited_lock = rig.place().inherited_lock();
    let run = rig.run().args(["-v", "--wait", "forever", "--ttl", &rig.ttl(LEASE)]);
    let mut run = run.probe(["next-holder", inherited_lock.path()]).spawn();
    run.await_stderr("; waiting at position 1\n");
    run
}

/// The lease of a nested run in seconds, if the store has such short ones. If its parts are killed before it has removed its
/// own entry, that ends with this lease.
const INNER_LEASE: u64 = 8;

async fn assert_served(rig: &dyn Rig, mut waiter: Running, free: Instant, within: Duration) {
    let output = waiter.wait_within(SOON + within);
    println!("{}: the next one started {} ms later", rig.url(), free.elapsed().as_millis());
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
    assert!(free.elapsed() < within, "{:?}", free.elapsed());
    let history = rig.open().history(&LockName::new("x").unwrap()).await.unwrap();
    let outcomes: Vec<&str> = history.iter().take(2).map(|(_, record)| record.outcome.as_str()).collect();
    assert_eq!(outcomes, ["ran", "lost"]);
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn a_waiter_starts_when_the_tree_of_a_run_that_lost_its_gate_is_dead(rig: &mut dyn Rig) {
    let mut run = holder(rig);
    let waiter = waiting(rig);
    rig.cut("x");
    let free = lost(rig, &mut run);
    assert_served(rig, waiter, free, AT_MOST).await;
}

/// The nested run is asked to end with the rest of the tree, and removes its own entry if it has the time.
pub async fn a_waiter_starts_when_a_run_that_lost_its_gate_and_one_inside_are_dead(rig: &mut dyn Rig) {
    let (lease, place) = (rig.ttl(INNER_LEASE), rig.place());
    let inherited_lock = place.inherited_lock();
    let words = ["--inherited-lock", inherited_lock.path(), "hold", &place.arg("work"), "until", "never"];
    let command = probe::command(words).join(" ");
    let outer = rig.run().args(["--ttl", &rig.ttl(LEASE)]);
    let mut run = outer.sh(&format!("exec {} {command}", inner(rig, &format!("--ttl {lease}")))).spawn();
    run.await_ready();
    let waiter = waiting(rig);
    rig.cut("x");
    let free = lost(rig, &mut run);
    let seconds = lease.trim_end_matches('s').parse().expect("seconds");
    assert_served(rig, waiter, free, rig.end_of_lease(Duration::from_secs(seconds)) + AT_MOST).await;
}

/// Nobody notifies the waiter when the other program leaves the gate.
pub async fn a_waiter_starts_when_the_program_that_took_the_gate_has_left_it(rig: &mut dyn Rig) {
    let mut run = holder(rig);
    let waiter = waiting(rig);
    rig.replace("x");
    lost(rig, &mut run);
    assert!(rig.is_untouched("x"));
    rig.foreign_unlock("x");
    assert_served(rig, waiter, Instant::now(), AT_MOST).await;
}
