//! A lock that is broken repeatedly while many clients wait for it.

use super::breaking;
use crate::acquire::queue::fixture::Queue;
use crate::support::SOON;
use crate::support::probe;
use crate::support::running::Exit;
use crate::support::wait::until;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WAITERS: usize = 20;
const BREAKS: usize = 100;
/// Time limit on a slow and busy machine.
const SPAN: Duration = Duration::from_secs(180);

/// The outcome of the command of the n-th turn of a client.
fn command(queue: &Queue, turn: usize) -> String {
    let (log, go) = (queue.store.place.arg("log"), queue.store.place.arg("go"));
    let before = match turn % 4 {
        // It has to be killed.
        0 => "trap '' TERM; ",
        _ => "",
    };
    let how_long = if turn % 4 == 3 { "for 5".to_owned() } else { format!("until '{go}'") };
    let tokens = queue.store.place.arg("tokens");
    format!(
        "{before}echo $DLOCK_FENCING_TOKEN >>'{tokens}'; exec '{}' hold '{log}' {how_long}",
        probe::path().display()
    )
}

/// Twenty clients, each of which joins the queue again as soon as its run has ended.
fn repeated_runs(queue: &Queue) {
    let store = &queue.store;
    let over = AtomicBool::new(false);
    let codes: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
    let turns = Mutex::new([0; WAITERS]);
    let count = |what: String| *codes.lock().unwrap().entry(what).or_default() += 1;
    let end = Instant::now() + SPAN;
    std::thread::scope(|scope| {
        for number in 0..WAITERS {
            let (over, turns, count) = (&over, &turns, &count);
            scope.spawn(move || {
                for turn in 0.. {
                    if over.load(Ordering::Relaxed) || Instant::now() > end {
                        break;
                    }
                    let run = queue.run().args(["--grace", "100ms"]);
                    let output = run.sh(&command(queue, number + turn)).spawn().wait_within(SPAN);
                    turns.lock().unwrap()[number] += 1;
                    match output.exit {
                        Exit::Code(0) => assert_eq!(output.stderr, ""),
                        Exit::Code(76) => {
                            assert!(output.stderr.contains("the lock was broken by "), "{output:?}");
                        }
                        other => panic!("{other:?}: {output:?}"),
                    }
                    count(format!("run {:?}", output.exit));
                }
            });
        }
        until(SOON, "all of them queued", || queue.pids().len() + 1 >= WAITERS);
        for round in 0..BREAKS {
            assert!(Instant::now() < end, "only {round} breaks in {SPAN:?}");
            // Occasionally three at a time, and some without waiting.
            let breaks = |options: &[&str]| breaking(store).args(options).spawn();
            let mut all = match round % 5 {
                0 => vec![breaks(&[]), breaks(&["--wait", "0"]), breaks(&["--reason", "again"])],
                _ => vec![breaks(&[])],
            };
            for one in &mut all {
                let output = one.wait_within(SPAN);
                assert!([Exit::Code(0), Exit::Code(75)].contains(&output.exit), "{output:?}");
                count(format!("break {:?}", output.exit));
            }
        }
        over.store(true, Ordering::Relaxed);
        store.place.write("go", "");
    });
    let codes = codes.into_inner().unwrap();
    let broken = codes.get("run Code(76)").copied().unwrap_or(0);
    let events = queue.events();
    assert!(events.iter().all(|event| event.what != "overlap"), "{events:#?}");
    let tokens: Vec<u64> = store.place.read("tokens").lines().map(|token| token.parse().unwrap()).collect();
    assert!(tokens.is_sorted_by(|one, other| one < other), "fencing tokens do not grow: {tokens:?}");
    let turns = turns.into_inner().unwrap();
    assert!(turns.iter().all(|turns| *turns > 0), "somebody never had a turn: {turns:?}");
    // A break may also find a hold that ends by itself, or nothing between two holds.
    assert!(broken >= BREAKS / 4 && codes.contains_key("run Code(0)"), "{codes:?}");
    queue.assert_nothing_left();
}

#[test]
fn a_hundred_breaks_among_twenty_waiters_never_let_two_run() {
    for queue in Queue::each() {
        repeated_runs(&queue);
    }
}
