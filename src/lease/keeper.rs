//! Keeping the lock: the renewal loop beside the command.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::acquire::timed_out;
use super::jitter;
use super::validity::{Terms, Validity};
use crate::backend::{Backend, Loss, Renewal, StoreError};
use crate::clock::{Alarm, Moment, WallClockWatch};
use crate::lock::Claim;

/// What the keeper tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A renewal was acknowledged; until when, if there is a lease.
    Renewed(Option<Validity>),
    /// The lock is not ours any more. The keeper has ended.
    Lost(Loss),
    /// An attempt failed. Whether the lock is ours is unknown, and only time makes it lost.
    Trouble(String),
}

/// Between two attempts after a failure, pauses grow from this ...
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// ... to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Word of a change is followed up at most so often.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Renews the lock until it is lost: when a third of the lease is over, at once when the store says that something
/// changed, when the wall clock was set (the mark of a virtual machine that was paused), and when `check_now` asks.
///
/// Every success is counted from the moment its request was sent. Dropping the future ends the renewals and leaves the
/// lock as it is.
pub async fn keep(
    backend: &mut dyn Backend,
    claim: &Claim,
    terms: &Terms,
    mut validity: Option<Validity>,
    events: mpsc::UnboundedSender<Event>,
    check_now: &Notify,
) {
    let alarm = match Alarm::new() {
        Ok(alarm) => alarm,
        Err(error) => {
            // Nobody renews: the guarding process ends the command in time.
            let _ = events.send(Event::Trouble(format!("no timer: {error}")));
            return;
        }
    };
    let wall_clock = WallClockWatch::new();
    let mut due = due_after(validity, terms);
    let mut pause = FIRST_PAUSE;
    let mut in_trouble = false;
    let mut last = Moment::now();
    loop {
        tokio::select! {
            () = alarm.until(due) => {}
            () = backend.changed(), if !in_trouble => {
                // A store that takes our own renewals for changes must not make us ask without end.
                let soonest = last + SHORTEST_INTERVAL;
                if Moment::now() < soonest {
                    due = due.min(soonest);
                    continue;
                }
            }
            () = wall_clock.was_set() => {}
            () = check_now.notified() => {}
        }
        last = Moment::now();
        let budget = validity.map_or(terms.connect_timeout, |validity| validity.attempt);
        match renew(backend, claim, budget).await {
            Ok((sent, Renewal::Held(lease))) => {
                validity = lease.map(|lease| terms.validity(sent, lease));
                due = due_after(validity, terms);
                pause = FIRST_PAUSE;
                in_trouble = false;
                let _ = events.send(Event::Renewed(validity));
            }
            Ok((_, Renewal::Lost(loss))) => {
                let _ = events.send(Event::Lost(loss));
                return;
            }
            Err(error) => {
                due = Moment::now() + FIRST_PAUSE / 2 + jitter(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
                in_trouble = true;
                let _ = events.send(Event::Trouble(error.to_string()));
            }
        }
    }
}

/// Without a lease the lock is looked after as often as one of the asked length would be renewed.
fn due_after(validity: Option<Validity>, terms: &Terms) -> Moment {
    validity.map_or_else(|| Moment::now() + terms.ttl / 3, |validity| validity.renew)
}

async fn renew(
    backend: &mut dyn Backend,
    claim: &Claim,
    budget: Duration,
) -> Result<(Moment, Renewal), StoreError> {
    let sent = Cell::new(None);
    let attempt = async {
        backend.connect().await?;
        let now = Moment::now();
        sent.set(Some(now));
        backend.renew(claim).await.map(|renewal| (now, renewal))
    };
    timeout(budget, attempt).await.unwrap_or_else(|_| Err(timed_out(sent.get(), budget)))
}
