//! Keeping the lock: the renewal loop beside the command.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::acquire::timed_out;
use super::validity::{Terms, Validity};
use super::wakeup::Listener;
use super::{SHORTEST_INTERVAL, jitter};
use crate::backend::{Backend, Loss, Renewal, StoreError};
use crate::clock::{Alarm, Moment, WallClockWatch};
use crate::lock::{Claim, Revocation};

/// What the keeper tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A renewal was acknowledged.
    Renewed {
        /// Until when the lock is ours, if there is a lease.
        validity: Option<Validity>,
        /// From the request to its acknowledgement.
        took: Duration,
    },
    /// Somebody wants the lock to be given up. It is ours, and renewed, until it is released.
    Revoked(Revocation),
    /// The lock is not ours any more. The keeper has ended.
    Lost(Loss),
    /// An attempt failed. Whether the lock is ours is unknown, and only time makes it lost.
    Trouble(String),
}

/// Where the keeper of one lock of several tells what happens.
#[derive(Clone)]
pub struct Events {
    /// Which lock it is.
    pub lock: usize,
    /// Where to.
    pub sender: mpsc::UnboundedSender<(usize, Event)>,
}

impl Events {
    fn send(&self, event: Event) {
        // Whoever does not listen any more has no use for it.
        let _ = self.sender.send((self.lock, event));
    }
}

/// What is kept, and how well it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseState {
    /// Until when the lease runs, if there is one.
    pub validity: Option<Validity>,
    /// The lock is to be kept until then, whatever becomes of us.
    pub least_until: Moment,
}

impl LeaseState {
    /// What is left of the least time.
    pub fn rest(&self) -> Duration {
        self.least_until - Moment::now()
    }
}

/// Where there is no lease, a lock is looked after at least so often.
pub const LONGEST_UNWATCHED: Duration = Duration::from_secs(10);

/// Between two attempts after a failure, pauses grow from this ...
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// ... to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Renews the lock until it is lost: when a third of the lease is over, at once when the store says that something
/// changed, when the wall clock was set (the mark of a virtual machine that was paused), and when `check_now` asks for it.
///
/// Every success is counted from the moment its request was sent. Dropping the future ends the renewals and leaves the
/// lock as it is.
pub async fn keep(
    backend: &mut dyn Backend,
    claim: &Claim,
    terms: &Terms,
    lease_state: LeaseState,
    events: Events,
    mut check_now: Listener,
) {
    let mut validity = lease_state.validity;
    // Always: a lock without a lease has no deadline that would end its command.
    let alarm = Alarm::new().unwrap_or_else(|_| Alarm::without_descriptor());
    let wall_clock = WallClockWatch::new();
    let mut due = due_after(validity, terms);
    let mut pause = FIRST_PAUSE;
    let mut in_trouble = false;
    let mut told = false;
    let mut last = Moment::now();
    loop {
        tokio::select! {
            () = alarm.until(due) => {}
            _ = backend.changed(), if !in_trouble => {
                // A store that takes our own renewals for changes must not make us ask without end.
                let soonest = last + SHORTEST_INTERVAL;
                if Moment::now() < soonest {
                    due = due.min(soonest);
                    continue;
                }
            }
            () = wall_clock.was_set() => {}
            () = check_now.prompted() => {}
        }
        last = Moment::now();
        let budget = validity.map_or(terms.connect_timeout, |validity| validity.attempt);
        match renew(backend, claim, lease_state.rest(), budget).await {
            Ok((sent, Renewal::Held { lease, revoked })) => {
                validity = lease.map(|lease| terms.validity(sent, lease));
                due = due_after(validity, terms);
                pause = FIRST_PAUSE;
                in_trouble = false;
                events.send(Event::Renewed { validity, took: Moment::now() - sent });
                if let Some(revocation) = revoked.filter(|_| !told) {
                    told = true;
                    events.send(Event::Revoked(revocation));
                }
            }
            Ok((_, Renewal::Lost(loss))) => {
                events.send(Event::Lost(loss));
                return;
            }
            Err(error) => {
                due = Moment::now() + FIRST_PAUSE / 2 + jitter(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
                in_trouble = true;
                events.send(Event::Trouble(error.to_string()));
            }
        }
    }
}

/// Without a lease the lock is looked after as often as one of the asked length would be renewed; but whoever wants it to
/// be given up need not wait for hours.
fn due_after(validity: Option<Validity>, terms: &Terms) -> Moment {
    let without = || Moment::now() + (terms.ttl / 3).min(LONGEST_UNWATCHED);
    validity.map_or_else(without, |validity| validity.renew)
}

async fn renew(
    backend: &mut dyn Backend,
    claim: &Claim,
    rest: Duration,
    budget: Duration,
) -> Result<(Moment, Renewal), StoreError> {
    let sent = Cell::new(None);
    let attempt = async {
        backend.connect().await?;
        let now = Moment::now();
        sent.set(Some(now));
        backend.renew(claim, rest).await.map(|renewal| (now, renewal))
    };
    timeout(budget, attempt).await.unwrap_or_else(|_| Err(timed_out(sent.get(), budget)))
}
