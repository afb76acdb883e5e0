//! Waiting for locks. Meanwhile signals apply to dlock itself, and progress is reported now and then. `run` and `acquire`
//! call it.
//!
//! What always holds: when it ends without the locks, none of them is held and no queue entry is left behind, as far as the
//! store could be told.

mod events;
mod failure;
mod progress;

use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use self::events::{Events, Leaving};
use self::progress::Progress;
use super::older_holder::OlderHolder;
use crate::backend::Busy;
use crate::child::Supervisor;
use crate::child::signals::Source;
use crate::clock::{Alarm, Moment};
use crate::identity::is_our_ancestor;
use crate::lease::acquire::{Limits, NotGranted, Patience, WaitContext};
use crate::lease::acquire_all::{AllGranted, HeldLock, Lock, acquire_all, give_back};
use crate::lease::acquire_any::{NoneGranted, Wanted, acquire_any};
use crate::lease::validity::Terms;
use crate::lock::LockName;
use crate::report::{Reporter, WaitLine};
use crate::settings::StoreTarget;

/// Stores round leases to units of their own.
const ROUNDED: Duration = Duration::from_millis(10);

pub(super) struct LockWait<'a> {
    pub(super) reporter: &'a Reporter,
    pub(super) signals: &'a Source,
    pub(super) alarm: &'a Alarm,
    pub(super) target: &'a StoreTarget,
    pub(super) patience: Patience,
    pub(super) terms: &'a Terms,
    /// The lease was requested by the user, and is not the default.
    pub(super) is_ttl_chosen: bool,
    /// The holder is asked to end if it is one that the run supersedes.
    pub(super) supersedes_holder: bool,
    /// What follows if a lock is not granted, for the end of a message.
    pub(super) consequence: &'static str,
}

/// The end of a wait that was not interrupted.
pub(super) struct Awaited<'a> {
    pub(super) granted: AllGranted<'a>,
    /// All locks and their holders, if any one of them was wanted and none was free.
    pub(super) busy: Vec<(&'a Lock, Busy)>,
    /// The holder is an ancestor of this process, and waits for it to end.
    pub(super) holder_is_ancestor: bool,
    pub(super) waited: Duration,
}

/// Why the wait was interrupted. No lock is held then.
pub(super) enum Interruption {
    /// A signal that ends dlock.
    Signal(i32),
    Guard(String),
}

impl<'a> LockWait<'a> {
    fn store(&self) -> &'a str {
        self.target.store.display()
    }

    /// Takes the locks, all or one of them as `wanted`, or none, as far as patience allows. Events of the `supervisor` of a
    /// parked command are handled meanwhile.
    ///
    /// # Errors
    /// A signal or a failure of the guard process ended the wait first; locks that were granted are released.
    pub(super) async fn locks(
        &self,
        locks: &'a [Lock],
        wanted: Wanted,
        supervisor: Option<&mut Supervisor>,
    ) -> Result<Awaited<'a>, Interruption> {
        let begin = Moment::now();
        let limits = self.patience.from(begin);
        let alternatives = match wanted {
            Wanted::All => Vec::new(),
            Wanted::Any => locks.iter().map(|lock| lock.claim.name.clone()).collect(),
        };
        let line = WaitLine::new(self.reporter, self.store(), begin, limits.wait_until(), alternatives);
        let progress = Progress { wait: self, line, older_holder: OlderHolder::default() };
        let context = WaitContext {
            give_up: &CancellationToken::new(),
            check_held: &watch::Sender::new(()),
            alarm: self.alarm,
            observer: &progress,
        };
        let mut events = Events::new(self, &progress, supervisor);
        let ended = {
            let attempt = pin!(self.attempt(locks, wanted, &limits, &context));
            events.handle_during(attempt, &context).await?
        };
        let leaving = events.leaving.take();
        let (granted, busy) = ended.unwrap_or_else(|| (Err((&locks[0], NotGranted::GivenUp)), Vec::new()));
        if let Some(Leaving { why, by }) = leaving {
            if let Ok((held, keepers)) = granted {
                // Granted at the same moment as the end was requested: release it.
                drop(keepers);
                let _ = timeout_at(by, give_back(held.iter().map(|held| held.lock))).await;
            }
            return Err(why);
        }
        let waited = Moment::now() - begin;
        drop(events);
        if let Ok((held, _)) = &granted {
            held.iter().for_each(|held| progress.line.replied(held.name()));
            drop(progress);
            self.report_granted(held, waited);
        }
        let is_by_ancestor = |(lock, busy): &(&Lock, Busy)| is_held_by_ancestor(&lock.claim.name, busy);
        let holder_is_ancestor = match &granted {
            Err(_) if !busy.is_empty() => busy.iter().all(is_by_ancestor),
            Err((lock, NotGranted::Contended(busy))) => is_held_by_ancestor(&lock.claim.name, busy),
            _ => false,
        };
        Ok(Awaited { granted, busy, holder_is_ancestor, waited })
    }

    /// Acquires the locks, or one of them; if that fails because all are busy, also returns the holders of each.
    async fn attempt(
        &self,
        locks: &'a [Lock],
        wanted: Wanted,
        limits: &Limits,
        context: &WaitContext<'_>,
    ) -> (AllGranted<'a>, Vec<(&'a Lock, Busy)>) {
        match wanted {
            Wanted::All => (acquire_all(locks, limits, self.terms, context).await, Vec::new()),
            Wanted::Any => match acquire_any(locks, limits, self.terms, context).await {
                Ok((held, keepers)) => (Ok((vec![held], keepers)), Vec::new()),
                Err(NoneGranted { lock, why, busy }) => (Err((lock, why)), busy),
            },
        }
    }

    /// Reports that the locks were granted, and which of them have another lease than was requested.
    fn report_granted(&self, held: &[HeldLock<'_>], waited: Duration) {
        for (index, held) in held.iter().enumerate() {
            let claim = &held.lock.claim;
            self.reporter.granted(&claim.name, waited, held.grant.fencing);
            match held.grant.lease {
                // Once, although the server limits the leases of all of them. That the default is a little too long on
                // a server, or longer than that of the outer hold, is no reason for a warning at every run.
                Some(lease)
                    if index == 0
                        && claim.outer.is_empty()
                        && lease + ROUNDED < claim.ttl
                        && (self.is_ttl_chosen || lease < claim.ttl / 2) =>
                {
                    self.reporter.shorter_lease(&claim.name, self.store(), claim.ttl, lease);
                }
                Some(lease)
                    if lease + ROUNDED < claim.ttl || lease > claim.ttl.max(claim.min_hold) + ROUNDED =>
                {
                    self.reporter.other_lease(&claim.name, claim.ttl, lease);
                }
                _ => {}
            }
        }
    }
}

fn is_held_by_ancestor(name: &LockName, busy: &Busy) -> bool {
    let is_ours = |identity| is_our_ancestor(identity, name);
    busy.holders.iter().any(|holder| holder.identity.as_ref().is_some_and(is_ours))
}
