//! A waiter of a store that sends no notifications: it looks at its ledger from time to time.

use std::iter::repeat_n;
use std::time::Duration;

use tokio::time::sleep;

use super::queue::superseded;
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
    /// Whether it was reported that a later waiter supersedes it.
    is_superseded: bool,
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
                *waiting = Some(Waiting { name: name.clone(), ticket, reported, is_superseded: false });
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
        let was_superseded = self.is_superseded;
        self.is_superseded = calls.is_some_and(|calls| is_superseded(self.ticket, calls));
        if self.is_superseded && !was_superseded {
            self.reported = turn;
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
/// Before the ticket of a waiter that a later one supersedes.
const SUPERSEDED: char = '-';

/// Returns what waiters look at: the tickets of those that are called or superseded, and of the next one.
pub fn calls(ledger: &Ledger) -> String {
    let called = ledger.waiters.iter().filter(|waiter| waiter.called.is_some());
    let called = called.map(|waiter| waiter.ticket.to_string());
    let superseded = superseded(ledger).into_iter().map(|ticket| format!("{SUPERSEDED}{ticket}"));
    let called: Vec<String> =
        called.chain(repeat_n(KEPT.to_owned(), ledger.kept())).chain(superseded).collect();
    let next = ledger.waiters.iter().find(|waiter| waiter.called.is_none());
    format!("{}/{}", called.join(","), next.map_or(String::new(), |waiter| waiter.ticket.to_string()))
}

fn words(called: &str) -> impl Iterator<Item = &str> {
    called.split(',').filter(|word| !word.is_empty())
}

/// Returns whether the waiter with this ticket is superseded.
fn is_superseded(ticket: u64, calls: &str) -> bool {
    let (called, _) = calls.split_once('/').unwrap_or_default();
    let tickets = words(called).filter_map(|word| word.strip_prefix(SUPERSEDED));
    tickets.into_iter().any(|superseded| superseded == ticket.to_string())
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
