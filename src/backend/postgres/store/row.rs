//! The ledger of a lock, as the row of its name.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::PostgresStore;
use crate::backend::StoreError;
use crate::backend::ledger::document::{DocumentStore, Revision, Seen, Shortcut};
use crate::backend::ledger::{Effect, GateLifetime, GateMode, Ledger, Occupant, Purpose};
use crate::backend::postgres::client::{CALLED, LOCKS, NEXT, Parameter, channel};
use crate::backend::postgres::errors;
use crate::backend::postgres::statements::{reading, signed};
use crate::backend::sql::{self, Taken, Values};
use crate::lock::{Claim, FencingToken, LockName};

fn token_of(ledger: &Ledger, ticket: u64) -> Option<&str> {
    ledger.waiters.iter().find(|waiter| waiter.ticket == ticket).map(|waiter| waiter.token.as_str())
}

impl DocumentStore for PostgresStore {
    /// 0 if there is no row.
    type Version = u64;

    async fn load(&mut self, name: &LockName, shortcut: &Shortcut) -> Result<Seen<u64>, StoreError> {
        self.last.take();
        if self.lacks.is_some() {
            return Ok(self.own.load(name));
        }
        let key = name.as_str().as_bytes();
        let rows = match shortcut {
            Shortcut::None => {
                let statement = self.statements.read.clone();
                let read = self.client.on_table(LOCKS, None, &statement, &[(&key, Type::BYTEA)]).await?;
                match read {
                    None if self.lacks_table(None).await? => return Ok(self.own.load(name)),
                    Some(Err(error)) if self.lacks_table(Some(&error)).await? => {
                        return Ok(self.own.load(name));
                    }
                    // To read a lock does not create its table.
                    None => {
                        let statement = self.statements.read_nothing.clone();
                        self.client.query(&statement, &[]).await?
                    }
                    Some(read) => read,
                }
            }
            Shortcut::TakeIfIdle(holder) => {
                let Taken { entries, lease_key, lease, lasts } = Taken::of(holder);
                let parameters: [Parameter<'_>; 6] = [
                    (&key, Type::BYTEA),
                    (&entries, Type::TEXT),
                    (&lease_key, Type::TEXT),
                    (&signed(lease), Type::INT8),
                    (&signed(lasts), Type::INT8),
                    (&signed(FencingToken::END - 1), Type::INT8),
                ];
                let statement = self.statements.take.clone();
                self.query(None, &statement, &parameters).await?
            }
            Shortcut::Touch(token, lease) => {
                let lease = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX);
                let parameters: [Parameter<'_>; 3] =
                    [(&key, Type::BYTEA), (&sql::lease_key(token), Type::TEXT), (&lease, Type::INT8)];
                let statement = self.statements.touch.clone();
                self.query(None, &statement, &parameters).await?
            }
        };
        let rows = rows.map_err(|error| self.client.meaning(&error))?;
        let record = rows.first().ok_or_else(|| StoreError::unanswered("the server returned no row"))?;
        let (now, process, row) = reading(record).map_err(|error| self.client.meaning(&error))?;
        self.client.served_by(process);
        let ledger = match &row {
            None => Ledger::default(),
            Some(row) => row.ledger().map_err(|why| StoreError::Config(format!("{name}: {why}")))?,
        };
        let seen = Seen { ledger, version: row.map_or(0, |row| row.version), now: sql::now(now) };
        self.last.read(name, &seen, self.client.sent);
        Ok(seen)
    }

    fn recall(&self, name: &LockName) -> Option<Seen<u64>> {
        self.last.recall(name)
    }

    fn is_subscribed(&self, name: &LockName, ticket: u64) -> bool {
        let Some(seen) = self.last.recall(name) else { return false };
        let token = token_of(&seen.ledger, ticket);
        !self.client.notifies() || token.is_some_and(|token| self.client.is_listening(&channel(token)))
    }

    async fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        revision: Revision<'_>,
    ) -> Result<bool, StoreError> {
        if let (Some(gate), Some(seen)) = (&mut self.shedlock, self.last.recall(name)) {
            gate.end_others(&mut self.client, name, &seen.ledger, revision.ledger).await?;
        }
        let before = self.last.take();
        if self.lacks.is_some() {
            self.own.swap(name, revision.ledger);
            return Ok(true);
        }
        let ledger = revision.ledger;
        let own = match revision.effect {
            Effect::Wait(ticket) => token_of(ledger, ticket).map(channel),
            _ => None,
        };
        let own = own.filter(|own| self.client.notifies() && !self.client.is_listening(own));
        let called = revision.called.iter().map(|ticket| (*ticket, CALLED));
        let called = called.chain(revision.next.map(|ticket| (ticket, NEXT)));
        let (channels, payloads): (Vec<String>, Vec<&str>) = called
            .filter_map(|(ticket, payload)| Some((channel(token_of(ledger, ticket)?), payload)))
            .unzip();
        let Values { fencing_token, ticket, ends_at, leases, entries, success, outcomes } =
            Values::of(ledger);
        let (key, version) = (name.as_str().as_bytes(), signed(version));
        let (fencing_token, ticket, ends_at) = (signed(fencing_token), signed(ticket), signed(ends_at));
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&key, Type::BYTEA),
            (&fencing_token, Type::INT8),
            (&ticket, Type::INT8),
            (&ends_at, Type::INT8),
            (&leases, Type::TEXT),
            (&entries, Type::TEXT),
            (&success, Type::TEXT),
            (&outcomes, Type::TEXT),
            (&channels, Type::TEXT_ARRAY),
            (&payloads, Type::TEXT_ARRAY),
        ];
        let statement = match version {
            0 => self.statements.insert.clone(),
            _ => {
                parameters.push((&version, Type::INT8));
                self.statements.swap.clone()
            }
        };
        let rows = match self.query(own, &statement, &parameters).await? {
            Err(error) if errors::is_conflict(&error) || self.lacks_table(Some(&error)).await? => {
                return Ok(false);
            }
            rows => rows.map_err(|error| self.client.meaning(&error))?,
        };
        let stored = rows.first().map(|row| row.try_get::<_, i64>(0)).transpose();
        let stored = stored.map_err(|error| self.client.meaning(&error))?;
        if let Some(version) = stored {
            self.last.stored(before, ledger, u64::try_from(version).unwrap_or_default());
        }
        Ok(stored.is_some())
    }

    fn lacks_ledgers(&self) -> Option<String> {
        self.lacks.clone()
    }

    fn gate_lifetime(&self) -> Option<GateLifetime> {
        match &self.shedlock {
            Some(_) => Some(GateLifetime::Lease),
            None => self.client.location.recipe.rule().map(|_| GateLifetime::Session),
        }
    }

    fn passed(&self, claim: &Claim) -> Option<(u64, u64)> {
        match &self.shedlock {
            Some(gate) => gate.passed(claim),
            None => self.has_passed(claim),
        }
    }

    async fn observe_gate(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Vec<Occupant>, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.observe(&mut self.client, name, purpose).await,
            None => self.occupants(name, purpose).await,
        }
    }

    async fn pass_gate(&mut self, claim: &Claim, mode: GateMode) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.pass(&mut self.client, claim).await,
            None => self.pass(claim, mode).await,
        }
    }

    async fn leave_gate(&mut self, claim: &Claim, rest: Duration) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.leave(&mut self.client, claim, rest).await,
            None => self.leave(claim).await,
        }
    }
}
