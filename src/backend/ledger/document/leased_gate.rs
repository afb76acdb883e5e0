//! A gate with a lease: a lock in the format of another program, which names its holder and ends by itself unless it is
//! extended.
//!
//! As the holder, dlock writes `<host>:<pid>:<digest of the token>`: any process that has the token finds its hold again,
//! and none without the token can extend or end it.

use std::collections::HashMap;
use std::time::Duration;

use super::gate::Occupant;
pub use super::identity::{Identity, identity};
use crate::backend::StoreError;
use crate::backend::admin::Removal;
use crate::backend::ledger::observed::GateMode;
use crate::backend::ledger::store::Purpose;
use crate::backend::ledger::value::Ledger;
use crate::lock::{Claim, Holder, LockName};

/// The digits of a digest.
const DIGITS: usize = 32;
/// The part of the name of a host that is written, in characters.
const HOST: usize = 64;

/// Returns the identity in the name of a holder, if it can be that of a dlock.
pub fn identity_in(holder: &str) -> Option<Identity> {
    let digits = holder.rsplit_once(':')?.1;
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let is_digest = digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_digest.then_some(())?;
    Some((number(&digits[..16])?, number(&digits[16..])?))
}

/// Returns what the names of the holders with this identity end with.
pub fn suffix((high, low): Identity) -> String {
    format!(":{high:016x}{low:016x}")
}

/// Returns what dlock writes as the holder.
pub fn holder_name(claim: &Claim) -> String {
    let host: String = claim.identity.host.chars().take(HOST).collect();
    let pid = claim.identity.pid;
    format!("{host}:{pid}{}", suffix(identity(&claim.token)))
}

/// The locks of another program, by the requests of this client. A hold is that of an identity as long as nobody else has taken or
/// ended it.
pub trait LeasedGate<C> {
    /// Returns who holds the lock.
    ///
    /// # Errors
    /// The store could not be queried, or has something else in the place of the lock.
    fn occupant(
        &mut self,
        client: &mut C,
        name: &LockName,
        purpose: &Purpose,
    ) -> impl Future<Output = Result<Option<Occupant>, StoreError>>;

    /// Extends a hold, which ends after this lease, or later: not before this time by the clock of the ledger. Returns whether it
    /// was kept until now.
    ///
    /// # Errors
    /// The store could not be queried.
    fn extend(
        &mut self,
        client: &mut C,
        name: &LockName,
        identity: Identity,
        lease: Duration,
        until: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>>;

    /// Ends a hold after the `rest` of a minimum hold time, by the clock of the ledger. Returns whether it was kept until now.
    ///
    /// # Errors
    /// The store could not be queried.
    fn end(
        &mut self,
        client: &mut C,
        name: &LockName,
        identity: Identity,
        rest: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>>;

    /// Takes the lock for a claim if nobody holds it, or one of these identities. Returns whether it was taken.
    ///
    /// # Errors
    /// As of [`occupant`](LeasedGate::occupant).
    fn take(
        &mut self,
        client: &mut C,
        purpose: &Purpose,
        claim: &Claim,
        own: &[Identity],
    ) -> impl Future<Output = Result<bool, StoreError>>;

    /// Ends the hold of another program if it is still the one that was shown.
    ///
    /// # Errors
    /// The store could not be queried, or the user may not.
    fn end_shown(
        &mut self,
        client: &mut C,
        name: &LockName,
        shown: &Holder,
    ) -> impl Future<Output = Result<Removal, StoreError>>;

    /// Returns whether the lock is free although no other waiter of this ledger is called: another program had it, or a dlock that
    /// the ledger does not list. `false` if a waiter does not ask for that.
    ///
    /// # Errors
    /// The store could not be queried.
    fn is_left(
        &mut self,
        _client: &mut C,
        _name: &LockName,
        _ledger: &Ledger,
    ) -> impl Future<Output = Result<bool, StoreError>> {
        async { Ok(false) }
    }
}

/// Returns the lease that a claim needs of a gate. A run nested in a hold has no longer one than that, and the minimum hold time of
/// a claim may not be in the ledger yet.
fn lease_of(ledger: &Ledger, purpose: &Purpose, claim: &Claim) -> Duration {
    let mine = ledger.hold_of(claim);
    match mine {
        Some(mine) if mine.ticket != mine.family => mine.lease.unwrap_or(claim.ttl),
        None if matches!(purpose, Purpose::Claim(_)) => claim.ttl.max(claim.min_hold),
        _ => claim.ttl,
    }
}

/// Returns until when the holds behind a gate need it, besides the lease of this claim.
fn needed_until(ledger: &Ledger, claim: &Claim, identity: Identity) -> Duration {
    let behind = ledger.holders.iter().filter(|holder| holder.gate == Some(identity));
    let needed = behind.flat_map(|holder| {
        let is_mine = holder.token == claim.token.reveal();
        [holder.kept_until, holder.lease_ends.filter(|_| !is_mine)]
    });
    needed.flatten().max().unwrap_or_default()
}

/// A passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    Kept,
    /// It is being left, and the reply has not come.
    Leaving,
    Left,
}

/// A gate with the passages of one client.
pub struct Passages<G> {
    /// The gate.
    pub gate: G,
    passages: HashMap<(LockName, Identity), Passage>,
}

impl<G> Passages<G> {
    /// Returns a gate that the client has not passed.
    pub fn new(gate: G) -> Passages<G> {
        Passages { gate, passages: HashMap::new() }
    }

    /// See [`DocumentStore::passed`](super::DocumentStore::passed). What was left is remembered, for a release that is
    /// repeated because its reply was lost.
    pub fn passed(&self, purpose: &Purpose) -> Option<Identity> {
        let claim = purpose.claim()?;
        let identity = identity(&claim.token);
        self.passage(&claim.name, identity, purpose).map(|_| identity)
    }

    /// Returns what is known of the passage with this identity: a claim may be made again with a token after its release.
    fn passage(&self, name: &LockName, identity: Identity, purpose: &Purpose) -> Option<Passage> {
        let passage = self.passages.get(&(name.clone(), identity)).copied();
        passage.filter(|passage| *passage == Passage::Kept || !matches!(purpose, Purpose::Claim(_)))
    }

    /// See [`DocumentStore::observe_gate`](super::DocumentStore::observe_gate).
    ///
    /// # Errors
    /// The store could not be queried.
    pub async fn observe<C>(
        &mut self,
        client: &mut C,
        name: &LockName,
        purpose: &Purpose,
        ledger: &Ledger,
    ) -> Result<Vec<Occupant>, StoreError>
    where
        G: LeasedGate<C>,
    {
        let lease = |claim: &Claim| lease_of(ledger, purpose, claim);
        let until = |claim: &Claim, identity| needed_until(ledger, claim, identity);
        let mine = purpose.claim().map(|claim| ((name.clone(), identity(&claim.token)), claim));
        if let Some((key, claim)) = &mine {
            let passage = self.passage(name, key.1, purpose);
            let is_extended = passage == Some(Passage::Kept) || matches!(purpose, Purpose::Renew(_));
            if is_extended && self.gate.extend(client, name, key.1, lease(claim), until(claim, key.1)).await?
            {
                self.passages.insert(key.clone(), Passage::Kept);
                return Ok(vec![Occupant {
                    identity: Some(key.1),
                    mode: GateMode::Exclusive,
                    holder: Holder::default(),
                }]);
            }
            if is_extended {
                self.passages.remove(key);
            }
        }
        let occupant = self.gate.occupant(client, name, purpose).await?;
        // A run that is nested in another hold extends that as well: its owner may be dead.
        if let (Purpose::Renew(claim), Some(Occupant { identity: Some(its), .. })) = (purpose, &occupant)
            && claim.outer.iter().any(|outer| identity(outer) == *its)
        {
            self.gate.extend(client, name, *its, lease(claim), until(claim, *its)).await?;
        }
        if let (Some((key, claim)), Some(occupant)) = (mine, &occupant)
            && occupant.identity == Some(key.1)
            // It was passed with this token by another client.
            && (matches!(purpose, Purpose::Release(_))
                || self.gate.extend(client, name, key.1, lease(claim), until(claim, key.1)).await?)
        {
            let known = self.passage(name, key.1, purpose);
            self.passages.insert(key, known.unwrap_or(Passage::Kept));
        }
        Ok(occupant.into_iter().collect())
    }

    /// See [`DocumentStore::pass_gate`](super::DocumentStore::pass_gate). A hold of the claim's own, as after a lost reply, is
    /// open to it, and at its renewal that of the run that it is nested in, which may have ended.
    ///
    /// # Errors
    /// The store could not be queried.
    pub async fn pass<C>(
        &mut self,
        client: &mut C,
        purpose: &Purpose,
        claim: &Claim,
    ) -> Result<bool, StoreError>
    where
        G: LeasedGate<C>,
    {
        let mine = identity(&claim.token);
        let is_renewal = matches!(purpose, Purpose::Renew(_));
        let outer = claim.outer.iter().filter(|_| is_renewal).map(identity);
        let own: Vec<Identity> = outer.chain([mine]).collect();
        let has_passed = self.gate.take(client, purpose, claim, &own).await?;
        if has_passed {
            self.passages.insert((claim.name.clone(), mine), Passage::Kept);
        }
        Ok(has_passed)
    }

    /// See [`DocumentStore::leave_gate`](super::DocumentStore::leave_gate).
    ///
    /// # Errors
    /// The store could not be queried.
    pub async fn leave<C>(
        &mut self,
        client: &mut C,
        purpose: &Purpose,
        claim: &Claim,
        rest: Duration,
    ) -> Result<bool, StoreError>
    where
        G: LeasedGate<C>,
    {
        let key = (claim.name.clone(), identity(&claim.token));
        let passage = self.passages.insert(key.clone(), Passage::Leaving);
        if passage == Some(Passage::Left) {
            self.passages.insert(key, Passage::Left);
            return Ok(true);
        }
        let was_kept = self.gate.end(client, &claim.name, key.1, rest).await?;
        if matches!(purpose, Purpose::Release(_)) {
            self.passages.insert(key, Passage::Left);
        } else {
            self.passages.remove(&key);
        }
        // What was left by a request without a reply is not kept any more.
        Ok(was_kept || passage == Some(Passage::Leaving))
    }

    /// Ends the holds of others that a change of their ledger ends, such as a minimum hold time.
    ///
    /// # Errors
    /// The store could not be queried.
    pub async fn end_others<C>(
        &mut self,
        client: &mut C,
        name: &LockName,
        purpose: &Purpose,
        before: &Ledger,
        after: &Ledger,
    ) -> Result<(), StoreError>
    where
        G: LeasedGate<C>,
    {
        let remains = |gate| after.holders.iter().any(|holder| holder.gate == gate);
        let ended = before.holders.iter().map(|holder| holder.gate).filter(|gate| !remains(*gate));
        for identity in ended.flatten() {
            if self.passage(name, identity, purpose).is_none() {
                self.gate.end(client, name, identity, Duration::ZERO).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Token;

    #[test]
    fn the_identity_follows_from_the_token_alone() {
        let claim = |token: &str| {
            Claim::new(LockName::new("x").expect("a name"), Token::from_text(token), Duration::from_secs(30))
        };
        let by = holder_name(&claim("secret"));
        assert!(!by.contains("secret"));
        assert_eq!(identity_in(&by), Some(identity(&Token::from_text("secret"))));
        assert_ne!(identity_in(&by), identity_in(&holder_name(&claim("other"))));
        for foreign in ["web-1", "web:1", "", ":", "a:0123456789abcdef", "a:é0123456789abcdef0123456789abcd"]
        {
            assert_eq!(identity_in(foreign), None, "{foreign}");
        }
    }
}
