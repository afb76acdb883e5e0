//! A waiter of a store that sends no notifications: it looks at its ledger from time to time.

use std::iter::repeat_n;
use std::time::Duration;

use tokio::time::sleep;

use super::queue::{newest_run, superseded};
use super::store::Effect;
use super::value::Ledger;
use crate::backend::{CLAIM_WITHIN, Change};
use crate::lock::LockName;
use crate::random::jitter;

/// The shortest pause between two looks of a waiter whose turn is next, ...
const NEXT_POLL: Duration = Duration::from_millis(20);
/// ... and of one behind it. The average is twice this.
const POLL: Duration = Duration::from_millis(80);

/// The queue position of this client.
#[derive(Debug)]
pub struct Waiting {
    /// The lock that it waits for.
    pub name: LockName,
    /// Its ticket.
    pub ticket: u64,
    /// The turn as it was reported last.
    reported: Turn,
    /// The run that supersedes it, as it was reported last, by the ticket with which that came first.
    newest: Option<String>,
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Later,
    /// It is the first one that is not called; so many holds are kept for the rest of their minimum time.
    Next {
        kept: usize,
    },
    /// Likewise, and others are called.
    Soon,
    Called,
}

impl Waiting {
    /// Notes what a change of a ledger with these [calls](calls) has changed for this client.
    pub fn note(waiting: &mut Option<Waiting>, name: &LockName, effect: Effect, calls: &str) {
        match effect {
            Effect::Wait(ticket) if waiting.as_ref().is_some_and(|waiting| waiting.is(name, ticket)) => {}
            Effect::Wait(ticket) => {
                let reported = turn_of(ticket, calls);
                let newest = superseded_by(ticket, calls).map(str::to_owned);
                *waiting = Some(Waiting { name: name.clone(), ticket, reported, newest });
            }
            Effect::Hold(_) | Effect::Leave | Effect::Free => *waiting = None,
            Effect::None => {}
        }
    }

    /// Returns whether it is the position of the waiter with this ticket.
    pub fn is(&self, name: &LockName, ticket: u64) -> bool {
        self.name == *name && self.ticket == ticket
    }

    /// Returns whether it was the first one that is not called, or is called.
    pub fn is_next(&self) -> bool {
        self.reported != Turn::Later
    }

    /// Waits until the ledger is to be looked at again.
    pub async fn pause(&self) {
        let pause = if self.reported == Turn::Later { POLL } else { NEXT_POLL };
        sleep(pause + jitter(pause * 2)).await;
    }

    /// Returns what has changed for the waiter by the [calls](calls) of the ledger, if it is to be told; `None` if there is no
    /// ledger any more.
    pub fn change(&mut self, calls: Option<&str>) -> Option<Change> {
        let turn = calls.map_or(Turn::Called, |calls| turn_of(self.ticket, calls));
        // Once for each: if the newer run is dead, the waiter stays.
        let newest = calls.and_then(|calls| superseded_by(self.ticket, calls));
        if newest.is_some() && newest != self.newest.as_deref() {
            (self.reported, self.newest) = (turn, newest.map(str::to_owned));
            return Some(Change::OurTurn);
        }
        match (std::mem::replace(&mut self.reported, turn), turn) {
            (before, turn) if before == turn => None,
            (_, Turn::Called) => Some(Change::OurTurn),
            (_, Turn::Soon) => Some(Change::Soon(CLAIM_WITHIN)),
            (Turn::Next { kept: before }, Turn::Next { kept }) if kept < before => None,
            // What it waits for ends sooner than it was told.
            (_, Turn::Next { kept }) if kept > 0 => Some(Change::OurTurn),
            _ => None,
        }
    }
}

/// In the place of a ticket, a hold that is kept for the rest of its minimum time.
const KEPT: &str = "kept";
/// Before the ticket of a waiter that a later run supersedes, and before the ticket with which that came first.
const SUPERSEDED: char = '-';

/// Returns what waiters look at: the tickets of those that are called or superseded, and of the next one.
pub fn calls(ledger: &Ledger) -> String {
    let called = ledger.waiters.iter().filter(|waiter| waiter.called.is_some());
    let called = called.map(|waiter| waiter.ticket.to_string());
    let newest = newest_run(ledger).unwrap_or_default();
    let superseded =
        superseded(ledger).into_iter().map(|ticket| format!("{SUPERSEDED}{ticket}{SUPERSEDED}{newest}"));
    let called: Vec<String> =
        called.chain(repeat_n(KEPT.to_owned(), ledger.kept())).chain(superseded).collect();
    let next = ledger.waiters.iter().find(|waiter| waiter.called.is_none());
    format!("{}/{}", called.join(","), next.map_or(String::new(), |waiter| waiter.ticket.to_string()))
}

fn words(called: &str) -> impl Iterator<Item = &str> {
    called.split(',').filter(|word| !word.is_empty())
}

/// Returns the ticket with which the run came first that supersedes the waiter with this ticket.
fn superseded_by(ticket: u64, calls: &str) -> Option<&str> {
    let (called, _) = calls.split_once('/').unwrap_or_default();
    let ticket = ticket.to_string();
    words(called).find_map(|word| {
        let (superseded, newest) = word.strip_prefix(SUPERSEDED)?.split_once(SUPERSEDED)?;
        (superseded == ticket).then_some(newest)
    })
}

/// Returns where the waiter with this ticket stands.
fn turn_of(ticket: u64, calls: &str) -> Turn {
    let (called, next) = calls.split_once('/').unwrap_or_default();
    let ticket = ticket.to_string();
    let (kept, called): (Vec<&str>, Vec<&str>) =
        words(called).filter(|word| !word.starts_with(SUPERSEDED)).partition(|word| *word == KEPT);
    if called.contains(&ticket.as_str()) {
        Turn::Called
    } else if next != ticket {
        Turn::Later
    } else if called.is_empty() {
        Turn::Next { kept: kept.len() }
    } else {
        Turn::Soon
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Identity;

    /// A ledger whose waiters have these tickets, and supersede others or not.
    fn ledger(waiters: &[(u64, bool)]) -> Ledger {
        let waiter = |(ticket, supersedes): &(u64, bool)| {
            let identity = Identity { supersedes: *supersedes, ..Identity::default() };
            let mut waiter = Ledger::of_foreign_waiter(0).waiters.remove(0);
            (waiter.ticket, waiter.identity) = (*ticket, identity);
            waiter
        };
        let mut ledger = Ledger::default();
        ledger.waiters = waiters.iter().map(waiter).collect();
        ledger
    }

    #[test]
    fn calls_name_those_that_the_newest_run_supersedes() {
        for (waiters, expected) in [
            (&[][..], "/"),
            (&[(1, false), (2, false)], "/1"),
            (&[(1, true)], "/1"),
            (&[(1, true), (2, false), (3, true)], "-1-3/1"),
            (&[(1, true), (2, true), (3, true)], "-2-3,-1-3/1"),
        ] {
            assert_eq!(calls(&ledger(waiters)), expected);
        }
        let many: Vec<(u64, bool)> = (1..=100).map(|ticket| (ticket, true)).collect();
        assert_eq!(superseded(&ledger(&many)).len(), 32);
        let mut kept_place = ledger(&[(5, true), (7, true)]);
        kept_place.waiters[0].identity.first_ticket = Some(9);
        assert_eq!(superseded(&kept_place), [7]);
    }

    /// It does not ask again and again because of a run that is dead.
    #[test]
    fn a_waiter_is_told_once_of_each_newer_run() {
        let mut waiting = None;
        let name = LockName::new("x").expect("a name");
        Waiting::note(&mut waiting, &name, Effect::Wait(1), &calls(&ledger(&[(1, true)])));
        let mut told = |waiters: &[(u64, bool)]| {
            waiting.as_mut().and_then(|waiting| waiting.change(Some(&calls(&ledger(waiters))))).is_some()
        };
        assert!(!told(&[(1, true), (2, false)]));
        assert!(told(&[(1, true), (2, false), (3, true)]));
        assert!(!told(&[(1, true), (2, false), (3, true)]));
        assert!(told(&[(1, true), (3, true), (4, true)]));
        assert!(!told(&[(1, true), (3, true), (4, true)]));
        // The next turn is reported all the same.
        let mut called = ledger(&[(1, true), (4, true)]);
        called.waiters[0].called = Some(Duration::ZERO);
        let change = waiting.as_mut().and_then(|waiting| waiting.change(Some(&calls(&called))));
        assert_eq!(change, Some(Change::OurTurn));
    }
}
