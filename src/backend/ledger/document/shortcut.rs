//! What a store may change in a ledger in the step that reads it.

use std::time::Duration;

use super::Seen;
use crate::backend::ledger::observed::{Now, Observed};
use crate::backend::ledger::store::{Decision, Purpose};
use crate::backend::ledger::value::{HolderEntry, Ledger};
use crate::lock::FencingToken;

/// What a store may change in a ledger before it returns it, without a decision, so that an uncontended change takes
/// one step. The store adds its own clock to the times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortcut {
    /// Nothing.
    None,
    /// If no entry is alive, and the lock is not frozen, the entries are replaced with this holder. Its times count from now. It gets the next
    /// [fencing token](Observed::least_fencing_token) and the next ticket, and was acquired now.
    TakeIfIdle(Box<HolderEntry>),
    /// If the holder or waiter with this token is alive, its lease ends after this time from now, whatever else has
    /// changed.
    Touch(String, Duration),
}

impl Shortcut {
    /// Returns what can be changed before the decision on a request, if this client has seen the ledger like that.
    pub fn of<V, T>(
        purpose: &Purpose,
        recalled: Option<&Seen<V>>,
        decide: &impl Fn(&mut Ledger, &dyn Observed) -> Decision<T>,
    ) -> Shortcut {
        let claim = match purpose {
            Purpose::Claim(claim) | Purpose::Renew(claim) => claim,
            _ => return Shortcut::None,
        };
        let token = claim.token.reveal();
        if let Some(Seen { ledger, now, .. }) = recalled
            && lease_end(ledger, token).is_some()
        {
            let mut after = ledger.clone();
            decide(&mut after, now);
            return match lease_end(&after, token) {
                Some(ends) => Shortcut::Touch(token.to_owned(), ends.saturating_sub(now.clock)),
                None => Shortcut::None,
            };
        }
        if !matches!(purpose, Purpose::Claim(_)) || claim.once_per.is_some() {
            // The last success decides.
            return Shortcut::None;
        }
        let mut taken = Ledger::default();
        decide(&mut taken, &Now { clock: Duration::ZERO, wall: 0 });
        taken.holders.pop().map_or(Shortcut::None, |holder| Shortcut::TakeIfIdle(Box::new(holder)))
    }

    /// Applies the shortcut to a ledger that was read at this time, for stores that cannot apply it themselves.
    pub fn apply(&self, ledger: &mut Ledger, now: Now) {
        let is_alive = |ends: Option<Duration>| ends.is_none_or(|ends| now.clock < ends);
        match self {
            Shortcut::None => {}
            Shortcut::TakeIfIdle(holder) => {
                let is_idle = !ledger.holders.iter().any(|holder| holder.counts(&now))
                    && !ledger.waiters.iter().any(|waiter| waiter.has_owner(&now))
                    && ledger.live_freeze(now).is_none();
                let fencing = FencingToken::new(now.wall.max(ledger.fencing_token.saturating_add(1)));
                if let Some(fencing) = fencing.filter(|_| is_idle) {
                    ledger.fencing_token = fencing.number();
                    ledger.holders = vec![holder.taken(ledger.next_ticket(now), fencing.number(), now)];
                    ledger.waiters.clear();
                    ledger.set_freeze(None);
                }
            }
            Shortcut::Touch(token, lease) => {
                let ends = Some(now.clock + *lease);
                let holders = ledger.holders.iter_mut().filter(|holder| holder.token == *token);
                holders.filter(|one| is_alive(one.lease_ends)).for_each(|one| one.lease_ends = ends);
                let waiters = ledger.waiters.iter_mut().filter(|waiter| waiter.token == *token);
                waiters.filter(|one| is_alive(one.lease_ends)).for_each(|one| one.lease_ends = ends);
            }
        }
    }
}

impl HolderEntry {
    /// Returns the entry of a [shortcut](Shortcut::TakeIfIdle) with its ticket and its fencing token, taken at this
    /// time.
    pub fn taken(&self, ticket: u64, fencing_token: u64, now: Now) -> HolderEntry {
        HolderEntry {
            ticket,
            family: ticket,
            fencing_token,
            acquired_at: now.wall,
            // Whoever may write to the store may have made them of any length.
            kept_until: self.kept_until.map(|rest| now.clock.saturating_add(rest)),
            lease_ends: self.lease_ends.map(|lease| now.clock.saturating_add(lease)),
            ..self.clone()
        }
    }
}

/// Returns when the lease of the entry with this token ends.
fn lease_end(ledger: &Ledger, token: &str) -> Option<Duration> {
    let holder = ledger.holders.iter().find(|holder| holder.token == token).map(|holder| holder.lease_ends);
    let waiter =
        || ledger.waiters.iter().find(|waiter| waiter.token == token).map(|waiter| waiter.lease_ends);
    holder.or_else(waiter).flatten()
}
