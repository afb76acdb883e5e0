//! A lock that is broken at the moment at which its hold ends by itself.

use super::breaking;
use crate::support::race_timing::RaceTiming;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::time::{Duration, Instant};

/// The number of rounds, and their time limit.
const TIMES: u32 = 200;
const SPAN: Duration = Duration::from_secs(10);

/// Breaks a lock at moments around the end of its command, which exits with 3; a lock kept by min hold is freed as
/// well.
#[track_caller]
fn break_around_the_end(store: &Store, options: &[&str]) -> (u32, u32) {
    let (mut by_itself, mut broken) = (0, 0);
    let begin = Instant::now();
    // When the command ends: later after it has ended by itself, earlier after it was broken, because a busy machine
    // takes longer to start the dlock that breaks it.
    let mut timing = RaceTiming::new(8_000);
    for round in 0..TIMES {
        if begin.elapsed() > SPAN && by_itself > 0 && broken > 0 {
            break;
        }
        let life = timing.moment(40_000, 0);
        let command = format!("echo ready; sleep {:.3}; exit 3", life.as_secs_f64());
        let mut run = store.run_with_ttl("30s").args(options).sh(&command).spawn();
        run.await_ready();
        std::thread::sleep(Duration::from_micros(u64::from(round % 10) * 1500));
        let output = breaking(store).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "round {round}: {output:?}");
        match run.wait() {
            output if output.exit == Exit::Code(3) => {
                assert_eq!(output.stderr, "", "round {round}");
                by_itself += 1;
                timing.record(true);
            }
            output => {
                assert_eq!(output.exit, Exit::Code(76), "round {round}: {output:?}");
                assert!(output.stderr.contains("the lock was broken by "), "round {round}: {output:?}");
                broken += 1;
                timing.record(false);
            }
        }
        if options.is_empty() {
            assert!(!store.is_held(), "round {round}");
        } else {
            // A hold inspected before the command had ended was broken; one that was kept afterwards, too.
            let output = store.run_with_ttl("30s").command(["true"]).output();
            assert_eq!(output.exit, Exit::Code(0), "round {round}: {output:?}");
        }
    }
    (by_itself, broken)
}

#[test]
fn a_lock_broken_at_the_end_of_its_command_is_free_and_the_status_is_one_of_both() {
    for store in Store::each() {
        let (by_itself, broken) = break_around_the_end(&store, &[]);
        assert!(by_itself > 0 && broken > 0, "{by_itself} {broken}");
    }
}

#[test]
fn a_lock_broken_while_it_is_left_to_min_hold_is_free() {
    for store in Store::each() {
        let (by_itself, broken) = break_around_the_end(&store, &["--min-hold", "1h"]);
        assert!(by_itself > 0 && broken > 0, "{by_itself} {broken}");
    }
}
