//! The table of ShedLock, a library for Java (<https://github.com/lukas-krecan/ShedLock>), as a gate with a lease: a row per
//! lock, which is held until `lock_until` by `locked_by`. It is never deleted. ShedLock never waits and sends no notifications.
//!
//! Used by PostgreSQL and MySQL. What always holds: a row is extended or ended only where `locked_by` has the digest of the
//! token.

mod check;
mod dialect;
mod identity;
mod times;

use std::time::Duration;

pub use self::dialect::{Database, Dialect, Row, missing, other_shape};
use self::identity::{digest_of, is_of};
pub use self::times::Clock;
use super::StoreError;
use super::admin::Removal;
use super::ledger::document::leased_gate::{Identity, LeasedGate, holder_name, identity_in};
use super::ledger::{GateMode, Occupant, Purpose};
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

/// The gate in front of the ledgers of one client.
pub struct Gate {
    clock: Clock,
    prefix: String,
    /// The table is one of ShedLock.
    is_checked: bool,
}

impl Gate {
    /// Returns the gate by this clock. Names in the table begin with the prefix.
    pub fn new(clock: Clock, prefix: &str) -> Gate {
        Gate { clock, prefix: prefix.to_owned(), is_checked: false }
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
        let (name, is_mine) = (literal::<D>(&self.prefix, name), is_of::<D>("locked_by", &[identity]));
        let (table, equals, is_after) = (db.table(), D::DIALECT.operator("="), D::DIALECT.operator(">"));
        let sql = format!(
            "UPDATE {table} SET lock_until = {until} WHERE (name {equals} {name}) AND {is_mine} AND (lock_until {is_after} \
             {free}){}",
            D::DIALECT.returning()
        );
        Ok(!db.run(&sql).await?.is_empty())
    }

    /// Deletes the row of a scratch lock.
    ///
    /// # Errors
    /// The server could not be queried, or the user may not delete.
    pub async fn forget<D: Database>(&self, db: &mut D, name: &LockName) -> Result<(), StoreError> {
        let (table, equals, name) = (db.table(), D::DIALECT.operator("="), literal::<D>(&self.prefix, name));
        db.run(&format!("DELETE FROM {table} WHERE name {equals} {name}")).await.map(drop)
    }
}

impl<D: Database> LeasedGate<D> for Gate {
    async fn occupant(
        &mut self,
        db: &mut D,
        name: &LockName,
        _: &Purpose,
    ) -> Result<Option<Occupant>, StoreError> {
        self.check(db).await?;
        let times = self.clock.times(D::DIALECT, Duration::ZERO);
        let age = D::DIALECT.between("locked_at", &times.now);
        let rest = D::DIALECT.between(&times.now, "lock_until");
        let (name, free, concat) =
            (literal::<D>(&self.prefix, name), times.free, D::DIALECT.function("concat"));
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

    async fn extend(
        &mut self,
        db: &mut D,
        name: &LockName,
        identity: Identity,
        lease: Duration,
        _: Duration,
    ) -> Result<bool, StoreError> {
        self.check(db).await?;
        let until = self.clock.times(D::DIALECT, lease).until;
        self.set(db, name, identity, &format!("GREATEST(lock_until, {until})")).await
    }

    async fn end(
        &mut self,
        db: &mut D,
        name: &LockName,
        identity: Identity,
        rest: Duration,
    ) -> Result<bool, StoreError> {
        let times = self.clock.times(D::DIALECT, rest);
        let until = if rest.is_zero() { times.free } else { times.until };
        self.set(db, name, identity, &until).await
    }

    async fn take(
        &mut self,
        db: &mut D,
        _: &Purpose,
        claim: &Claim,
        own: &[Identity],
    ) -> Result<bool, StoreError> {
        self.check(db).await?;
        let times = self.clock.times(D::DIALECT, claim.ttl.max(claim.min_hold));
        let (now, free, until) = (times.now, times.free, times.until);
        let name = literal::<D>(&self.prefix, &claim.name);
        let by = D::DIALECT.literal(&holder_name(claim));
        let (table, at_most) = (db.table(), D::DIALECT.operator("<="));
        let values =
            format!("(name, lock_until, locked_at, locked_by) VALUES ({name}, {until}, {now}, {by}) ON");
        let sql = match D::DIALECT {
            Dialect::Postgres => format!(
                "INSERT INTO {table} AS held {values} CONFLICT (name) DO UPDATE SET lock_until = excluded.lock_until, \
                 locked_at = excluded.locked_at, locked_by = excluded.locked_by WHERE (held.lock_until {at_most} {free}) OR \
                 {}{}",
                is_of::<D>("held.locked_by", own),
                D::DIALECT.returning()
            ),
            // Also a row that was just inserted is updated.
            Dialect::Mysql => format!(
                "INSERT INTO {table} {values} DUPLICATE KEY UPDATE locked_by = {table}.locked_by; UPDATE {table} SET \
                 lock_until = {until}, locked_at = {now}, locked_by = {by} WHERE name = {name} AND (lock_until {at_most} \
                 {free} OR {})",
                is_of::<D>("locked_by", own)
            ),
        };
        Ok(!db.run(&sql).await?.is_empty())
    }

    async fn end_shown(
        &mut self,
        db: &mut D,
        name: &LockName,
        shown: &Holder,
    ) -> Result<Removal, StoreError> {
        let name = literal::<D>(&self.prefix, name);
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
}

/// Returns the name of a lock in the table, as a literal.
fn literal<D: Database>(prefix: &str, name: &LockName) -> String {
    D::DIALECT.literal(&format!("{prefix}{name}"))
}
