//! The table of ShedLock, a library for Java (<https://github.com/lukas-krecan/ShedLock>), as a gate with a lease: a row per
//! lock, which is held until `lock_until` by `locked_by`. It is never deleted. ShedLock never waits and sends no notifications.
//!
//! dlock writes `<host>:<pid>:<digest of the token>` into `locked_by`: any process that has the token finds its hold again,
//! and none without the token can extend or end it.
//!
//! Used by PostgreSQL and MySQL. What always holds: a row is extended or ended only where `locked_by` has the digest of the
//! token.

mod check;
mod dialect;
mod identity;
mod times;

use std::collections::HashMap;
use std::time::Duration;

pub use self::dialect::{Database, Dialect, Row, missing, other_shape};
use self::identity::{Identity, digest_of, identity, identity_in, is_of, locked_by};
pub use self::times::Clock;
use super::StoreError;
use super::admin::Removal;
use super::ledger::{GateMode, Ledger, Occupant, Purpose};
use crate::clock::wall_micros;
use crate::lock::{Claim, Holder, LockName};

/// The name of the table.
pub const TABLE: &str = "shedlock";
/// The longest name of a lock in it, in characters.
pub const LONGEST_NAME: usize = 64;
/// Why a longer one is refused.
pub const TOO_LONG: &str = "with recipe=shedlock, it is at most 64 characters long";
/// Why other modes are refused.
pub const EXCLUSIVE: &str = "ShedLock has one holder: take the lock exclusively, or use recipe=table";

/// A passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    Kept,
    /// It is being left, and the reply has not come.
    Leaving,
    Left,
}

/// The gate in front of the ledgers of one client.
pub struct Gate {
    clock: Clock,
    prefix: String,
    passages: HashMap<(LockName, Identity), Passage>,
    /// The table is one of ShedLock.
    is_checked: bool,
}

impl Gate {
    /// Returns the gate by this clock. Names in the table begin with the prefix.
    pub fn new(clock: Clock, prefix: &str) -> Gate {
        Gate { clock, prefix: prefix.to_owned(), passages: HashMap::new(), is_checked: false }
    }

    /// See [`DocumentStore::passed`](super::ledger::document::DocumentStore::passed). What was left is remembered, for a
    /// release that is repeated because its reply was lost.
    pub fn passed(&self, purpose: &Purpose) -> Option<(u64, u64)> {
        let claim = purpose.claim()?;
        let identity = identity(&claim.token);
        self.passage(&claim.name, identity, purpose).map(|_| identity)
    }

    /// Returns what is known of the passage with this identity: a claim may be made again with a token after its release.
    fn passage(&self, name: &LockName, identity: Identity, purpose: &Purpose) -> Option<Passage> {
        let passage = self.passages.get(&(name.clone(), identity)).copied();
        passage.filter(|passage| *passage == Passage::Kept || !matches!(purpose, Purpose::Claim(_)))
    }

    /// See [`DocumentStore::observe_gate`](super::ledger::document::DocumentStore::observe_gate).
    ///
    /// # Errors
    /// The server could not be queried, or has no such table.
    pub async fn observe<D: Database>(
        &mut self,
        db: &mut D,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Vec<Occupant>, StoreError> {
        self.check(db).await?;
        let mine = purpose.claim().map(|claim| ((name.clone(), identity(&claim.token)), claim));
        if let Some((key, claim)) = &mine {
            let passage = self.passage(name, key.1, purpose);
            let is_extended = passage == Some(Passage::Kept) || matches!(purpose, Purpose::Renew(_));
            if is_extended && self.extend(db, name, key.1, claim.ttl).await? {
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
        let occupant = self.occupant(db, name).await?;
        if let (Some((key, claim)), Some(occupant)) = (mine, &occupant)
            && occupant.identity == Some(key.1)
            // It was passed with this token by another client.
            && (matches!(purpose, Purpose::Release(_)) || self.extend(db, name, key.1, claim.ttl).await?)
        {
            let known = self.passage(name, key.1, purpose);
            self.passages.insert(key, known.unwrap_or(Passage::Kept));
        }
        Ok(occupant.into_iter().collect())
    }

    async fn extend<D: Database>(
        &self,
        db: &mut D,
        name: &LockName,
        identity: Identity,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let until = self.clock.times(D::DIALECT, lease).until;
        // A minimum hold time lasts longer.
        self.set(db, name, identity, &format!("GREATEST(lock_until, {until})")).await
    }

    /// Sets the end of a hold. Returns whether it was kept until now.
    async fn set<D: Database>(
        &self,
        db: &mut D,
        name: &LockName,
        identity: Identity,
        until: &str,
    ) -> Result<bool, StoreError> {
        let free = self.clock.times(D::DIALECT, Duration::ZERO).free;
        let (name, is_mine) = (self.name::<D>(name), is_of::<D>("locked_by", [identity]));
        let (table, equals, is_after) = (db.table(), D::DIALECT.operator("="), D::DIALECT.operator(">"));
        let sql = format!(
            "UPDATE {table} SET lock_until = {until} WHERE (name {equals} {name}) AND {is_mine} AND (lock_until {is_after} \
             {free}){}",
            D::DIALECT.returning()
        );
        Ok(!db.run(&sql).await?.is_empty())
    }

    async fn occupant<D: Database>(
        &self,
        db: &mut D,
        name: &LockName,
    ) -> Result<Option<Occupant>, StoreError> {
        let times = self.clock.times(D::DIALECT, Duration::ZERO);
        let age = D::DIALECT.between("locked_at", &times.now);
        let rest = D::DIALECT.between(&times.now, "lock_until");
        let (name, free, concat) = (self.name::<D>(name), times.free, D::DIALECT.function("concat"));
        let (table, equals, is_after) = (db.table(), D::DIALECT.operator("="), D::DIALECT.operator(">"));
        let sql = format!(
            "SELECT locked_by, {age}, {rest}, {concat}(locked_at, '') FROM {table} WHERE (name {equals} {name}) AND \
             (lock_until {is_after} {free})"
        );
        let rows = db.run(&sql).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let text = |column: usize| row.get(column).cloned().flatten().unwrap_or_default();
        // A clock that is behind shows no time before the beginning.
        let time = |column: usize| {
            Some(Duration::from_millis(text(column).parse::<i64>().ok()?.max(0).unsigned_abs()))
        };
        let locked_by = text(0);
        // The row has a time without its zone: by this host's clock, with the difference that the server has found.
        let now = Duration::from_micros(wall_micros());
        let holder = Holder {
            age: time(1),
            acquired_at: time(1).map(|age| now.saturating_sub(age)),
            remaining: time(2),
            digest: Some(digest_of(&locked_by, &text(3))),
            hint: Some(format!("locked by {locked_by}")),
            ..Holder::default()
        };
        Ok(Some(Occupant { identity: identity_in(&locked_by), mode: GateMode::Exclusive, holder }))
    }

    /// See [`DocumentStore::pass_gate`](super::ledger::document::DocumentStore::pass_gate). A hold of the claim's own, as
    /// after a lost reply, is open to it, and at its renewal that of the run that it is nested in, which may have ended.
    ///
    /// # Errors
    /// The server could not be queried, or has no such table.
    pub async fn pass<D: Database>(
        &mut self,
        db: &mut D,
        purpose: &Purpose,
        claim: &Claim,
    ) -> Result<bool, StoreError> {
        self.check(db).await?;
        let times = self.clock.times(D::DIALECT, claim.ttl.max(claim.min_hold));
        let (now, free, until) = (times.now, times.free, times.until);
        let name = self.name::<D>(&claim.name);
        let by = D::DIALECT.literal(&locked_by(claim));
        let mine = identity(&claim.token);
        let is_renewal = matches!(purpose, Purpose::Renew(_));
        let outer = claim.outer.iter().filter(|_| is_renewal).map(identity);
        let mine_or_outer: Vec<Identity> = outer.chain([mine]).collect();
        let (table, at_most) = (db.table(), D::DIALECT.operator("<="));
        let values =
            format!("(name, lock_until, locked_at, locked_by) VALUES ({name}, {until}, {now}, {by}) ON");
        let sql = match D::DIALECT {
            Dialect::Postgres => format!(
                "INSERT INTO {table} AS held {values} CONFLICT (name) DO UPDATE SET lock_until = excluded.lock_until, \
                 locked_at = excluded.locked_at, locked_by = excluded.locked_by WHERE (held.lock_until {at_most} {free}) OR \
                 {}{}",
                is_of::<D>("held.locked_by", mine_or_outer),
                D::DIALECT.returning()
            ),
            // Also a row that was just inserted is updated.
            Dialect::Mysql => format!(
                "INSERT INTO {table} {values} DUPLICATE KEY UPDATE locked_by = {table}.locked_by; UPDATE {table} SET \
                 lock_until = {until}, locked_at = {now}, locked_by = {by} WHERE name = {name} AND (lock_until {at_most} \
                 {free} OR {})",
                is_of::<D>("locked_by", mine_or_outer)
            ),
        };
        let has_passed = !db.run(&sql).await?.is_empty();
        if has_passed {
            self.passages.insert((claim.name.clone(), mine), Passage::Kept);
        }
        Ok(has_passed)
    }

    /// See [`DocumentStore::leave_gate`](super::ledger::document::DocumentStore::leave_gate).
    ///
    /// # Errors
    /// The server could not be queried.
    pub async fn leave<D: Database>(
        &mut self,
        db: &mut D,
        purpose: &Purpose,
        claim: &Claim,
        rest: Duration,
    ) -> Result<bool, StoreError> {
        let key = (claim.name.clone(), identity(&claim.token));
        let passage = self.passages.insert(key.clone(), Passage::Leaving);
        if passage == Some(Passage::Left) {
            self.passages.insert(key, Passage::Left);
            return Ok(true);
        }
        let times = self.clock.times(D::DIALECT, rest);
        let until = if rest.is_zero() { times.free } else { times.until };
        let was_kept = self.set(db, &claim.name, key.1, &until).await?;
        if matches!(purpose, Purpose::Release(_)) {
            self.passages.insert(key, Passage::Left);
        } else {
            self.passages.remove(&key);
        }
        // What was left by a request without a reply is not kept any more.
        Ok(was_kept || passage == Some(Passage::Leaving))
    }

    /// Ends the holds of others that this change of their ledger ends, such as a minimum hold time.
    ///
    /// # Errors
    /// The server could not be queried.
    pub async fn end_others<D: Database>(
        &mut self,
        db: &mut D,
        name: &LockName,
        purpose: &Purpose,
        before: &Ledger,
        after: &Ledger,
    ) -> Result<(), StoreError> {
        let remains = |gate| after.holders.iter().any(|holder| holder.gate == gate);
        let ended = before.holders.iter().map(|holder| holder.gate).filter(|gate| !remains(*gate));
        for identity in ended.flatten() {
            if self.passage(name, identity, purpose).is_none() {
                let free = self.clock.times(D::DIALECT, Duration::ZERO).free;
                self.set(db, name, identity, &free).await?;
            }
        }
        Ok(())
    }

    /// See [`Store::end_foreign`](super::ledger::Store::end_foreign).
    ///
    /// # Errors
    /// The server could not be queried.
    pub async fn end_shown<D: Database>(
        &self,
        db: &mut D,
        name: &LockName,
        shown: &Holder,
    ) -> Result<Removal, StoreError> {
        let name = self.name::<D>(name);
        let (table, concat) = (db.table(), D::DIALECT.function("concat"));
        let (equals, is_after) = (D::DIALECT.operator("="), D::DIALECT.operator(">"));
        let sql =
            format!("SELECT locked_by, {concat}(locked_at, '') FROM {table} WHERE name {equals} {name}");
        let rows = db.run(&sql).await?;
        let Some([Some(locked_by), Some(locked_at)]) = rows.first().map(Vec::as_slice) else {
            return Ok(Removal::Changed);
        };
        if shown.digest != Some(digest_of(locked_by, locked_at)) {
            return Ok(Removal::Changed);
        }
        let free = self.clock.times(D::DIALECT, Duration::ZERO).free;
        let (by, at) = (D::DIALECT.literal(locked_by), D::DIALECT.time(locked_at));
        let sql = format!(
            "UPDATE {table} SET lock_until = {free} WHERE (name {equals} {name}) AND (locked_by {equals} {by}) AND (locked_at \
             {equals} {at}) AND (lock_until {is_after} {free}){}",
            D::DIALECT.returning()
        );
        Ok(if db.run(&sql).await?.is_empty() { Removal::Changed } else { Removal::Removed })
    }

    /// Deletes the row of a scratch lock.
    ///
    /// # Errors
    /// The server could not be queried, or the user may not delete.
    pub async fn forget<D: Database>(&self, db: &mut D, name: &LockName) -> Result<(), StoreError> {
        let (table, equals, name) = (db.table(), D::DIALECT.operator("="), self.name::<D>(name));
        db.run(&format!("DELETE FROM {table} WHERE name {equals} {name}")).await.map(drop)
    }

    /// Returns the name of a lock in the table, as a literal.
    pub fn name<D: Database>(&self, name: &LockName) -> String {
        D::DIALECT.literal(&format!("{}{name}", self.prefix))
    }
}
