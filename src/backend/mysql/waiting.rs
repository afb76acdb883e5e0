//! A waiter: it looks at its row from time to time, because the server sends no notifications.

use std::time::Duration;

use tokio::time::sleep;

use crate::backend::ledger::Ledger;
use crate::backend::{CLAIM_WITHIN, Change};
use crate::lock::LockName;
use crate::random::jitter;

/// The shortest pause between two looks of a waiter whose turn is next, ...
const NEXT_POLL: Duration = Duration::from_millis(20);
/// ... and of one behind it. The average is twice this.
const POLL: Duration = Duration::from_millis(80);

/// The queue position of this client.
pub(super) struct Waiting {
    pub(super) name: LockName,
    pub(super) ticket: u64,
    /// The turn as it was reported last.
    pub(super) reported: Turn,
}

/// Where a waiter stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Later,
    /// It is the first one that is not called.
    Next,
    /// Likewise, and others are called.
    Soon,
    Called,
}

impl Waiting {
    /// Waits until the row is to be looked at again.
    pub(super) async fn pause(&self) {
        let pause = if self.reported == Turn::Later { POLL } else { NEXT_POLL };
        sleep(pause + jitter(pause * 2)).await;
    }

    /// Returns what has changed for the waiter by what its row says now, if it is to be told.
    pub(super) fn change(&mut self, calls: Option<&[u8]>) -> Option<Change> {
        let turn = calls.map_or(Turn::Called, |calls| turn_of(self.ticket, &String::from_utf8_lossy(calls)));
        let is_same = turn == std::mem::replace(&mut self.reported, turn);
        match turn {
            Turn::Called if !is_same => Some(Change::OurTurn),
            Turn::Soon if !is_same => Some(Change::Soon(CLAIM_WITHIN)),
            _ => None,
        }
    }
}

/// Returns what waiters look at: the tickets of those that are called, and of the next one.
pub(super) fn calls(ledger: &Ledger) -> String {
    let called = ledger.waiters.iter().filter(|waiter| waiter.called.is_some());
    let called: Vec<String> = called.map(|waiter| waiter.ticket.to_string()).collect();
    let next = ledger.waiters.iter().find(|waiter| waiter.called.is_none());
    format!("{}/{}", called.join(","), next.map_or(String::new(), |waiter| waiter.ticket.to_string()))
}

fn turn_of(ticket: u64, calls: &str) -> Turn {
    let (called, next) = calls.split_once('/').unwrap_or_default();
    let ticket = ticket.to_string();
    if called.split(',').any(|called| called == ticket) {
        Turn::Called
    } else if next != ticket {
        Turn::Later
    } else if called.is_empty() {
        Turn::Next
    } else {
        Turn::Soon
    }
}
