//! The keeper of a lock: the renewal loop that runs while the command does.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::SHORTEST_INTERVAL;
use super::acquire::timed_out;
use super::validity::{Terms, Validity};
use crate::backend::{Backend, Change, Loss, Renewal, StoreError};
use crate::clock::{Alarm, Moment, WallClockWatch, wall_micros};
use crate::lock::{Claim, Revocation};
use crate::random::jitter;

/// An event of a keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A renewal was acknowledged.
    Renewed {
        /// The validity of the lease, if there is one.
        validity: Option<Validity>,
        /// The time from the request to its acknowledgement.
        took: Duration,
    },
    /// The holder was asked to give the lock up. The lock stays held and is renewed until it is released.
    Revoked(Revocation),
    /// The lock is not held any more. The keeper has ended.
    Lost(Loss),
    /// An attempt failed. Whether the lock is still held is unknown; it is lost only when the lease expires.
    Trouble(String),
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseState {
    /// The validity of the lease, if there is one.
    pub validity: Option<Validity>,
    /// The end of the minimum hold time: the lock is kept until then, whatever happens to this process.
    pub min_hold_until: Moment,
}

impl LeaseState {
    /// Returns whether too little of the lease is left to begin anything under the lock.
    pub fn is_too_short(&self) -> bool {
        self.validity.is_some_and(|validity| Moment::now() >= validity.start_before)
    }

    /// Returns what remains of the minimum hold time.
    pub fn rest(&self) -> Duration {
        self.min_hold_until - Moment::now()
    }
}

/// The clocks of a keeper are started this long after the grant. The launch of the command has precedence, and one that ends at
/// once needs none.
const BEGIN_AFTER: Duration = Duration::from_millis(50);

/// The wall clock was set if it has moved by more than this meanwhile.
const SET_BY: Duration = Duration::from_millis(100);

/// A lock without a lease is checked at least this often.
pub const LONGEST_UNWATCHED: Duration = Duration::from_secs(10);

/// The pause between two attempts after a failure grows from this ...
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// ... to this.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Renews the lock until it is lost: when a third of the lease has passed, at once when the store notifies of a change,
/// when the wall clock was set (the mark of a virtual machine that was paused), and when `check_now` changes.
///
/// The lease counts from the moment that the successful request was sent. Dropping the future ends the renewals and
/// leaves the lock in the store.
pub async fn keep(
    backend: &mut dyn Backend,
    claim: &Claim,
    terms: &Terms,
    lease_state: LeaseState,
    report: impl Fn(Event),
    mut check_now: watch::Receiver<()>,
) {
    let mut validity = lease_state.validity;
    let mut clocks = Clocks::new();
    let mut due = due_after(validity, terms);
    let mut pause = MIN_PAUSE;
    let mut is_failing = false;
    let mut revocation_sent = false;
    let mut last_attempt = Moment::now();
    loop {
        tokio::select! {
            () = clocks.until(due) => {}
            change = backend.changed(), if !is_failing => {
                is_failing = change == Change::Disconnected;
                // Limits the rate of renewals if the store reports them as changes.
                let earliest = last_attempt + SHORTEST_INTERVAL;
                if Moment::now() < earliest {
                    due = due.min(earliest);
                    continue;
                }
            }
            _ = check_now.changed() => {}
        }
        last_attempt = Moment::now();
        match renew(backend, claim, lease_state.rest(), terms, validity.as_ref(), is_failing).await {
            Ok((sent, Renewal::Held { lease, revoked })) => {
                validity = lease.map(|lease| terms.validity(sent, lease));
                due = due_after(validity, terms);
                pause = MIN_PAUSE;
                is_failing = false;
                report(Event::Renewed { validity, took: Moment::now() - sent });
                if let Some(revocation) = revoked.filter(|_| !revocation_sent) {
                    revocation_sent = true;
                    report(Event::Revoked(revocation));
                }
            }
            Ok((_, Renewal::Lost(loss))) => {
                report(Event::Lost(loss));
                return;
            }
            Err(error) => {
                due = Moment::now() + MIN_PAUSE / 2 + jitter(pause);
                pause = (pause * 2).min(MAX_PAUSE);
                is_failing = true;
                report(Event::Trouble(error.to_string()));
            }
        }
    }
}

/// The descriptors that wake a keeper. Started late, so that they are in nobody's way.
struct Clocks {
    started: Option<(Alarm, WallClockWatch)>,
    /// By how much the wall clock was ahead of [`Moment`] when the keeper began.
    ahead: Duration,
}

impl Clocks {
    fn new() -> Clocks {
        Clocks { started: None, ahead: wall_clock_ahead() }
    }

    /// Waits until this moment, or until the wall clock is set. Dropping the future loses nothing.
    async fn until(&mut self, due: Moment) {
        let (alarm, wall_clock) = match &self.started {
            Some(started) => started,
            None => {
                if due > Moment::now() + BEGIN_AFTER {
                    sleep(BEGIN_AFTER).await;
                }
                // An alarm is required in every case: a lock without a lease has no deadline that would end its command.
                let alarm = Alarm::new().unwrap_or_else(|_| Alarm::without_descriptor());
                let started = self.started.insert((alarm, WallClockWatch::start()));
                if self.ahead.abs_diff(wall_clock_ahead()) > SET_BY {
                    return;
                }
                started
            }
        };
        tokio::select! {
            () = alarm.until(due) => {}
            () = wall_clock.was_set() => {}
        }
    }
}

fn wall_clock_ahead() -> Duration {
    Duration::from_micros(wall_micros()).saturating_sub(Moment::now().since_boot())
}

/// Returns when the next renewal is due. A lock without a lease is checked as often as a lease of the requested length
/// would be renewed, but at least every [`LONGEST_UNWATCHED`], so that a revocation does not wait for hours.
fn due_after(validity: Option<Validity>, terms: &Terms) -> Moment {
    let without = || Moment::now() + (terms.ttl / 3).min(LONGEST_UNWATCHED);
    validity.map_or_else(without, |validity| validity.renew)
}

/// Makes one attempt, in which the connection and the request have a limit each. They may take most of the time that is
/// left, or a connection that is slow to open would never be open in time; only the first request leaves time for others.
async fn renew(
    backend: &mut dyn Backend,
    claim: &Claim,
    rest: Duration,
    terms: &Terms,
    validity: Option<&Validity>,
    is_failing: bool,
) -> Result<(Moment, Renewal), StoreError> {
    let now = Moment::now();
    let limit = validity.map_or(terms.connect_timeout, |validity| terms.recovery_limit(validity, now));
    timeout(limit, backend.connect()).await.unwrap_or_else(|_| Err(timed_out(None, limit)))?;
    let sent = Moment::now();
    let limit = validity.map_or(terms.connect_timeout, |validity| match is_failing {
        false => validity.attempt,
        true => terms.recovery_limit(validity, sent),
    });
    let renewal = timeout(limit, backend.renew(claim, rest)).await;
    Ok((sent, renewal.unwrap_or_else(|_| Err(timed_out(Some(sent), limit)))?))
}
