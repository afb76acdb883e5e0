//! Many waiters for one lock.

use super::fixture::Queue;
use crate::support::running::Running;
use crate::support::wait::until;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time limit for a crowd to join, or to finish. Nothing is expected to take this long.
pub const LONG: Duration = Duration::from_secs(90);

/// Many waiting dlocks, each of which records when its turn comes.
pub struct Crowd {
    runs: Vec<Running>,
    // A host can run one crowd at a time.
    _alone: MutexGuard<'static, ()>,
}

/// One turn, as recorded by a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Turn {
    /// The member of the crowd, counted from 0.
    pub number: usize,
    /// Its fencing token.
    pub fencing: u64,
}

impl Crowd {
    /// Starts this many, and waits until all of them are in the queue.
    #[track_caller]
    pub fn in_line(queue: &Queue, count: usize) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let mut crowd = Self {
            runs: Vec::with_capacity(count),
            _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let log = queue.store.place.arg("turns");
        for number in 0..count {
            let turn = format!(
                "echo \"start {number} $DLOCK_FENCING_TOKEN\" >>'{log}'; echo \"end {number} $DLOCK_FENCING_TOKEN\" >>'{log}'"
            );
            crowd.runs.push(queue.run().sh(&turn).spawn());
            // So that no more of them start at the same time than a host with few processors can run.
            if number % 50 == 49 {
                until(LONG, "the waiters so far queued", || queue.numbers().len() + 25 > number);
            }
        }
        until(LONG, "all waiters queued", || queue.numbers().len() == count);
        crowd
    }

    /// The waiters in the queue, in the order of the store's tickets.
    #[track_caller]
    pub fn order(&self, queue: &Queue) -> Vec<usize> {
        let numbers = queue.numbers();
        assert_eq!(numbers.len(), self.runs.len());
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        let number = |pid: &i32| self.runs.iter().position(|run| run.pid() == *pid).expect("one of us");
        queue.pids().iter().map(number).collect()
    }

    /// Waits until every one of them has ended, and asserts that it succeeded without a message.
    #[track_caller]
    pub fn assert_all_ran(&mut self) {
        for run in &mut self.runs {
            let output = run.wait_within(LONG);
            assert_eq!(output.outcome(), (crate::support::running::Exit::Code(0), "", ""));
        }
    }

    /// The turns in order. Asserts that no two overlap, and that each later one has a larger
    /// fencing token.
    #[track_caller]
    pub fn turns(queue: &Queue) -> Vec<Turn> {
        let text = queue.store.place.read("turns");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        let mut turns: Vec<Turn> = Vec::new();
        for pair in lines.chunks(2) {
            assert!(pair.len() == 2 && pair[0][0] == "start" && pair[1][0] == "end", "{pair:?}");
            assert_eq!(pair[0][1..], pair[1][1..], "two at a time");
            let (number, fencing) =
                (pair[0][1].parse().expect("a number"), pair[0][2].parse().expect("a token"));
            assert!(turns.last().is_none_or(|last: &Turn| last.fencing < fencing), "{turns:?} {fencing}");
            turns.push(Turn { number, fencing });
        }
        turns
    }

    /// Asserts that each member had exactly one turn, in this order. On a host so busy that a waiter cannot claim
    /// the lock within its half second, its turn comes later.
    #[track_caller]
    pub fn assert_served(mut self, queue: &Queue, order: &[usize]) {
        self.assert_all_ran();
        let served: Vec<usize> = Self::turns(queue).iter().map(|turn| turn.number).collect();
        let mut everybody = served.clone();
        everybody.sort_unstable();
        assert_eq!(everybody, (0..self.runs.len()).collect::<Vec<_>>(), "not everybody, or not once");
        let place = |number: &usize| order.iter().position(|other| other == number).expect("one of us");
        let places: Vec<usize> = served.iter().map(place).collect();
        let late = places.len() - longest_rise(&places);
        println!("{late} of {} were too late for their turn", places.len());
        assert!(late <= 1 + places.len() / 20, "in line: {order:?}\nserved: {served:?}");
    }
}

/// The number of members that are left when those behind a larger number are removed.
fn longest_rise(numbers: &[usize]) -> usize {
    // The smallest last number of an increasing sequence of each length.
    let mut lasts: Vec<usize> = Vec::new();
    for number in numbers {
        match lasts.iter().position(|last| last >= number) {
            Some(length) => lasts[length] = *number,
            None => lasts.push(*number),
        }
    }
    lasts.len()
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // All at once: one after another would take minutes.
        if self.runs.iter_mut().any(|run| run.poll().is_none())
            && let Some(run) = self.runs.first()
        {
            run.place().marker().kill_all();
        }
    }
}
