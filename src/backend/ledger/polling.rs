//! Stores whose clock is that of their replies over HTTP (`Date`), which shows whole seconds. If they send no notifications, a
//! waiter reads the ledger now and then.

use std::time::Duration;

use tokio::time::sleep;

use super::observed::Now;
use super::store::Effect;
use super::value::{Ledger, WaiterEntry};
use super::waiting::{Waiting, calls};
use crate::backend::Change;
use crate::clock::{Moment, wall_micros};
use crate::lock::LockName;
use crate::random::jitter;

/// How far the time in a reply may be behind the true time: it has whole seconds, and one server may be another second behind
/// the next.
pub const CLOCK_LAG: Duration = Duration::from_secs(2);
/// How long the first waiter has to claim the lock, by a clock with steps of a second: at least four seconds, in which it reads
/// the ledger several times.
pub const CLAIM_WITHIN: Duration = Duration::from_secs(5);
/// The longest pause after the first conflict with another client; it doubles with each one, ...
const CONFLICT_PAUSE: Duration = Duration::from_millis(30);
/// ... this often.
const DOUBLED: u32 = 5;
/// The shortest pause of the first waiter; the longest is twice this.
pub const PAUSE: Duration = Duration::from_millis(500);
/// Each position further back makes the pause longer by as much as the first one's, up to this one. A waiter further back may
/// be called at any time, with others or because others have left: the longest pause is shorter than the time to claim the lock.
const FURTHEST: u32 = 3;

/// What the clock of a store has shown last.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Its time, in whole seconds since 1970.
    pub date: Duration,
    /// When the request was sent whose reply has shown it, ...
    pub sent: Moment,
    /// ... and when the reply was complete.
    pub received: Moment,
}

impl Shown {
    /// Returns the time now, as far as it is known: it may be behind the true time by the fraction of a second, and ahead of it
    /// by no more than a request takes.
    pub fn time(&self) -> Duration {
        self.date + (Moment::now() - self.sent)
    }

    /// Returns a time that the store's clock has reached by now, and the moment from which a lease counts that is decided on by
    /// it: the time is behind by as much as the last request took.
    pub fn past(&self) -> (Duration, Moment) {
        let now = Moment::now();
        (self.date + (now - self.received), now.saturating_sub(self.received - self.sent))
    }
}

/// The waiter of one client, if it waits, for a ledger with such a version.
pub struct Poller<V> {
    waiting: Option<Waiting>,
    /// Its position in the queue, from 1; 0 if that is not known yet.
    position: u32,
    /// The version of the ledger that it has seen last.
    seen: Option<V>,
}

impl<V> Default for Poller<V> {
    fn default() -> Poller<V> {
        Poller { waiting: None, position: 0, seen: None }
    }
}

impl<V: Clone> Poller<V> {
    /// Returns whether the client waits.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns whether the client waits for this ledger.
    pub fn is_waiting_for(&self, name: &LockName) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.name == *name)
    }

    /// Returns whether the client is the first waiter that is not called, or is called.
    pub fn is_next(&self) -> bool {
        self.waiting.as_ref().is_some_and(Waiting::is_next)
    }

    /// Returns whether the client is the waiter behind that one.
    pub fn is_second(&self) -> bool {
        self.is_waiting() && self.position == 2
    }

    /// Returns whether this waiter of a ledger is the client's.
    pub fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.is(name, waiter.ticket))
    }

    /// Returns whether another waiter of this ledger is called. Its own call may have been in vain: another program was faster.
    pub fn is_behind_call(&self, name: &LockName, ledger: &Ledger) -> bool {
        ledger.waiters.iter().any(|waiter| waiter.called.is_some() && !self.is_subscribed(name, waiter))
    }

    /// Returns the version of the ledger that the waiter has seen last.
    pub fn seen(&self) -> Option<&V> {
        self.seen.as_ref()
    }

    /// The client does not wait any more.
    pub fn stop(&mut self) {
        self.waiting = None;
    }

    /// Notes the position of the waiter in a ledger that was read.
    pub fn note_position(&mut self, name: &LockName, ledger: &Ledger) {
        if let Some(waiting) = self.waiting.as_ref().filter(|waiting| waiting.name == *name) {
            self.position = position(ledger, waiting.ticket);
        }
    }

    /// Notes what a change of the client, which has led to this ledger and version, means for it.
    pub fn note(&mut self, name: &LockName, effect: Effect, ledger: &Ledger, version: Option<&V>) {
        Waiting::note(&mut self.waiting, name, effect, &calls(ledger));
        self.note_position(name, ledger);
        if self.is_waiting_for(name) {
            self.seen = version.cloned();
        }
    }

    /// Returns the name of the ledger that the client waits for, and after which pause it is to be read again.
    pub fn due(&self) -> Option<(LockName, Duration)> {
        let pause = PAUSE * self.position.clamp(1, FURTHEST);
        self.waiting.as_ref().map(|waiting| (waiting.name.clone(), pause + jitter(pause)))
    }

    /// Returns what a ledger that was read, and its version, have changed for the waiter; `None` stands for no ledger.
    pub fn change(&mut self, found: Option<(&Ledger, &V)>) -> Option<Change> {
        let waiting = self.waiting.as_mut()?;
        let calls = match found {
            None => None,
            Some((ledger, version)) => {
                self.seen = Some(version.clone());
                if ledger.waiters.iter().all(|waiter| waiter.ticket != waiting.ticket) {
                    // Its turn has passed: it joins again.
                    return Some(Change::OurTurn);
                }
                self.position = position(ledger, waiting.ticket);
                Some(calls(ledger))
            }
        };
        waiting.change(calls.as_deref()).map(|change| match change {
            Change::Soon(_) => Change::Soon(CLAIM_WITHIN),
            change => change,
        })
    }
}

/// Returns the position of the waiter with this ticket; 1 if it is called, or there is none.
fn position(ledger: &Ledger, ticket: u64) -> u32 {
    let before = ledger.waiters.iter().take_while(|waiter| waiter.ticket != ticket);
    // Those that are called are about to leave.
    let before = before.filter(|waiter| waiter.called.is_none()).count();
    u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1)
}

/// Waits after this many conflicts with other clients, so that they do not meet again.
pub async fn back_off(conflicts: u32) {
    sleep(jitter(CONFLICT_PAUSE * (1 << conflicts.min(DOUBLED)))).await;
}

/// Returns by how much a lease ends too soon that was counted from the `time` of a store, by what the store has `shown` after
/// another `since` of this host's time, if that is more than the clock's steps explain: the clock of this host has stood still, as
/// that of a paused virtual machine does, or those of the store's servers differ.
pub fn behind(time: Duration, since: Duration, shown: Duration) -> Option<Duration> {
    let behind = shown.saturating_sub(time + since);
    (behind > CLOCK_LAG / 2).then_some(behind)
}

/// Returns the time of a reply. The fraction of a second is that of this host's clock, as far as that agrees: tokens that are
/// granted within a second of the deletion of a ledger differ, and ages are finer.
pub fn at(date: Duration) -> Now {
    let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    Now { clock: date, wall: wall_micros().clamp(micros(date), micros(date + CLOCK_LAG)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stood_still_is_noticed() {
        let [second, ms] = [Duration::from_secs, Duration::from_millis];
        // What is shown has whole seconds, and another server may be a second ahead.
        assert_eq!(behind(second(100), ms(900), second(101)), None);
        assert_eq!(behind(second(100), ms(200), second(101)), None);
        assert_eq!(behind(second(100), ms(200), second(102)), Some(ms(1_800)));
        assert_eq!(behind(second(100), second(30), second(130)), None);
    }

    #[test]
    fn a_waiter_looks_before_its_turn_has_passed() {
        assert!(PAUSE * 2 * FURTHEST + CLOCK_LAG <= CLAIM_WITHIN);
    }
}
