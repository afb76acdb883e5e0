//! The store of one client: a row for each lock.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::client::{Client, READ_ONLY, still_primary};
use super::errors::{self, checked};
use super::gate::Recipe;
use super::get_lock::Gates;
use super::location::Location;
use super::packet::malformed;
use super::reply::{Failure, Outcome};
use super::table::{NOW, TIME, create, insert, literal, read_row, take_if_idle, touch, update};
use super::waiting::{Turn, Waiting, calls};
use crate::backend::admin::Removal;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{self, DocumentStore, Revision, Seen, Shortcut};
use crate::backend::ledger::{
    Contender, Done, Effect, GateLifetime, GateMode, Ledger, LedgerStore, Observed, Occupant, Purpose, Step,
};
use crate::backend::shedlock::{self, Database as _, Dialect};
use crate::backend::sql::{self, COLUMNS, LastSeen, OwnLedgers, TABLE, Taken, Values};
use crate::backend::{Change, Hazard, Location as _, Reply, StoreError};
use crate::lock::{Claim, Holder, LockName, LockState, NotedRecord};

/// A client of a table of locks. If it ends without a release, its entries end with their leases.
pub struct MysqlStore {
    pub(super) client: Client,
    /// The ledger that was read or stored last.
    last: LastSeen,
    /// The gate in front of the ledgers.
    pub(super) shedlock: Option<shedlock::Gate>,
    /// The waiter's entry that changes are awaited for.
    pub(super) waiting: Option<Waiting>,
    /// What it knows of the gates in front of the rows.
    pub(super) gates: Gates,
    /// The ledgers of a user that may not have the table.
    own: OwnLedgers,
}

impl MysqlStore {
    /// Returns a client of a location; does not connect.
    pub(super) fn contender(location: Location) -> Contender<MysqlStore> {
        let shedlock = location.recipe.shedlock(&location.prefix);
        Contender::new(MysqlStore {
            client: Client::new(location),
            last: LastSeen::default(),
            shedlock,
            waiting: None,
            gates: Gates::default(),
            own: OwnLedgers::default(),
        })
    }

    /// Returns whether a lock of `GET_LOCK` is in front of each row.
    pub(super) fn has_user_lock(&self) -> bool {
        self.client.location.recipe == Recipe::GetLock
    }

    pub(super) fn key(&self, name: &LockName) -> String {
        literal(self.client.location.key(name))
    }

    /// Creates the table, if the user may do that.
    ///
    /// # Errors
    /// The user may not, or the server did not reply.
    pub(super) async fn create_table(&mut self) -> Result<(), StoreError> {
        match self.client.query(&create()).await {
            Ok(_) => Ok(()),
            Err(failure) => {
                self.note_missing_right(&failure);
                Err(match StoreError::from(failure) {
                    StoreError::Denied(text) => {
                        StoreError::Denied(format!("there is no table {TABLE}, and {text}"))
                    }
                    error => error,
                })
            }
        }
    }

    /// Sends statements about the table, which is created if it is missing.
    pub(super) async fn query(&mut self, sql: &str) -> Result<Vec<Outcome>, Failure> {
        match self.client.query(sql).await {
            Err(failure) if errors::is_table_missing(&failure) => {
                self.create_table().await?;
                self.client.query(sql).await
            }
            result => {
                if let Err(failure) = &result {
                    self.note_missing_right(failure);
                }
                checked(result)
            }
        }
    }

    async fn list_where(&mut self, condition: &str) -> Result<Vec<LockName>, StoreError> {
        let prefix = self.client.location.prefix.clone();
        let length = prefix.len();
        let sql = format!(
            "SELECT SUBSTRING(name, {}) FROM {TABLE} WHERE {condition} AND LEFT(name, {length}) = {} ORDER BY name",
            length + 1,
            literal(prefix)
        );
        self.client.connect().await?;
        if let Some(why) = self.why_no_ledgers() {
            return Err(StoreError::Config(why));
        }
        let rows = match checked(self.client.query(&sql).await) {
            Ok(mut outcomes) => outcomes.pop(),
            Err(failure) if errors::is_table_missing(&failure) => None,
            Err(failure) => {
                self.note_missing_right(&failure);
                return Err(self.why_no_ledgers().map_or_else(|| failure.into(), StoreError::Config));
            }
        };
        let Some(Outcome::Rows(rows)) = rows else { return Ok(Vec::new()) };
        let names = rows.into_iter().filter_map(|row| String::from_utf8(row.into_iter().next()??).ok());
        Ok(names.filter_map(|name| LockName::new(&name).ok()).collect())
    }
}

impl DocumentStore for MysqlStore {
    /// 0 if there is no row.
    type Version = u64;

    async fn load(&mut self, name: &LockName, shortcut: &Shortcut) -> Result<Seen<u64>, StoreError> {
        let key = self.key(name);
        let gate = match self.has_user_lock() {
            true => format!("; {}", MysqlStore::who_holds(&self.user_lock(name).await?)),
            false => String::new(),
        };
        if self.client.denied.is_some() {
            return Ok(self.own.load(name));
        }
        let first = match shortcut {
            Shortcut::None => String::new(),
            Shortcut::TakeIfIdle(holder) => take_if_idle(&key, &Taken::of(holder)),
            Shortcut::Touch(token, lease) => touch(&key, token, *lease),
        };
        self.last.take();
        let sql = format!(
            "SET {TIME} = {NOW}; {first}SELECT {TIME}, {COLUMNS} FROM (SELECT 1) AS one LEFT JOIN {TABLE} ON name = {key}{gate}; \
             {READ_ONLY}"
        );
        let outcomes = match shortcut {
            // To read a lock does not create the table.
            Shortcut::None => match self.client.query(&sql).await {
                Err(failure) if errors::is_table_missing(&failure) => {
                    self.client.query(&format!("SELECT {NOW}, NULL{gate}; {READ_ONLY}")).await
                }
                Err(failure) => {
                    self.note_missing_right(&failure);
                    checked(Err(failure))
                }
                outcomes => outcomes,
            },
            _ => self.query(&sql).await,
        };
        let mut outcomes = match outcomes {
            Err(_) if self.client.denied.is_some() => return Ok(self.own.load(name)),
            outcomes => outcomes?,
        };
        still_primary(&mut outcomes)?;
        if self.has_user_lock() {
            let answer = MysqlStore::holder_in(&mut outcomes)?;
            self.note_holder(name, &answer)?;
        }
        let (now, row) = match outcomes.last() {
            Some(Outcome::Rows(rows)) => rows.first().and_then(read_row).ok_or_else(malformed)?,
            _ => return Err(malformed()),
        };
        let (ledger, version) = match row {
            None => (Ledger::default(), 0),
            Some(row) => {
                let unreadable = |unreadable| StoreError::Config(format!("{name}: {unreadable}"));
                (row.ledger().map_err(unreadable)?, row.version)
            }
        };
        let seen = Seen { ledger, version, now: sql::now(now) };
        self.last.read(name, &seen, self.client.sent);
        Ok(seen)
    }

    fn recall(&self, name: &LockName) -> Option<Seen<u64>> {
        self.last.recall(name)
    }

    fn is_subscribed(&self, name: &LockName, ticket: u64) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.name == *name && waiting.ticket == ticket)
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
        if self.client.denied.is_some() {
            self.own.swap(name, revision.ledger);
            return Ok(true);
        }
        let (key, values) = (self.key(name), Values::of(revision.ledger));
        let first_version = self.last.recall(name).map_or(1, |seen| seen.now.wall);
        let last = self.last.take();
        let calls = calls(revision.ledger);
        let (sql, version) = match version {
            0 => (insert(&key, first_version, &values, &calls), first_version),
            version => (update(&key, version, &values, &calls), version + 1),
        };
        match self.query(&format!("{sql}; {READ_ONLY}")).await {
            Ok(mut outcomes) => {
                still_primary(&mut outcomes)?;
                if !matches!(outcomes.last(), Some(Outcome::Changed(1))) {
                    return Ok(false);
                }
            }
            Err(failure) if errors::is_duplicate(&failure) => return Ok(false),
            // The decision is repeated, without the table.
            Err(_) if self.client.denied.is_some() => return Ok(false),
            Err(failure) => return Err(failure.into()),
        }
        self.last.stored(last, revision.ledger, version);
        match revision.effect {
            Effect::Wait(ticket) if self.is_subscribed(name, ticket) => {}
            Effect::Wait(ticket) => {
                self.waiting = Some(Waiting { name: name.clone(), ticket, reported: Turn::Later });
            }
            Effect::Hold(_) | Effect::Leave | Effect::Free => self.waiting = None,
            Effect::None => {}
        }
        Ok(true)
    }

    fn lacks_ledgers(&self) -> Option<String> {
        self.why_no_ledgers()
    }

    fn gate_lifetime(&self) -> Option<GateLifetime> {
        match &self.shedlock {
            Some(_) => Some(GateLifetime::Lease),
            None => self.has_user_lock().then_some(GateLifetime::Session),
        }
    }

    fn passed(&self, claim: &Claim) -> Option<(u64, u64)> {
        match &self.shedlock {
            Some(gate) => gate.passed(claim),
            None => self.passage_of(claim),
        }
    }

    async fn observe_gate(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Vec<Occupant>, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.observe(&mut self.client, name, purpose).await,
            None => self.observe(name, purpose).await,
        }
    }

    async fn pass_gate(&mut self, claim: &Claim, _: GateMode) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.pass(&mut self.client, claim).await,
            None => self.pass(claim).await,
        }
    }

    async fn leave_gate(&mut self, claim: &Claim, rest: Duration) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.leave(&mut self.client, claim, rest).await,
            None => self.leave(claim).await,
        }
    }
}

impl LedgerStore for MysqlStore {
    fn display(&self) -> &str {
        self.client.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(self.client.connect())
    }

    async fn change<T: Send + 'static>(
        &mut self,
        name: &LockName,
        purpose: Purpose,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T> + Send + 'static,
    ) -> Result<Done<T>, StoreError> {
        if let Some(gate) = &mut self.shedlock {
            gate.begin(&purpose);
        }
        document::change(self, name, &purpose, decide).await
    }

    async fn read(
        &mut self,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        document::read(self, names, view).await
    }

    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async { self.list_where(&format!("ends_at > {NOW}")).await })
    }

    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(self.list_where("outcomes <> '[]'"))
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        Box::pin(document::history(self, name))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(self.turn())
    }

    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.examine_server(examination))
    }

    fn init(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async {
            if self.shedlock.is_some() {
                self.client.run(&Dialect::Mysql.create_table(shedlock::TABLE)).await?;
            }
            self.create_table().await
        })
    }

    fn end_foreign<'a>(
        &'a mut self,
        name: &'a LockName,
        shown: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(shedlock::end_shown(self.shedlock.as_ref(), &mut self.client, name, shown))
    }

    fn shares_ledgers(&self) -> bool {
        self.client.denied.is_none()
    }

    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.client.kept().into_iter().collect()
    }

    fn hazard(&self) -> Option<Hazard> {
        self.client.cluster.map(|_| Hazard::Forgetful)
    }
}
