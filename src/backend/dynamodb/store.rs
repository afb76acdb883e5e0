//! The store of one client: an item for each lock.

use std::time::Duration;

use super::item::{self, found};
use super::location::{Location, Recipe};
use super::lock_client::LockClient;
use super::table::{Table, reading};
use crate::backend::StoreError;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::dated::{Change, Dated, DatedStore, Reading, Written};
use crate::backend::ledger::polling::Shown;
use crate::backend::ledger::{Contender, HolderEntry, Ledger, Now};
use crate::lock::LockName;

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: &Location) -> Contender<DatedStore<Table>> {
    let gate = (location.recipe == Recipe::LockClient).then(LockClient::default);
    Contender::new(DatedStore::new(Table::with(location.place.route.client(), location), gate))
}

impl Dated for Table {
    /// The number of the attempt that has written the item.
    type Version = String;
    type Gate = LockClient;

    /// Some 700 waiters: an item has 400 KB.
    const LONGEST: usize = 300 << 10;
    const TAKES: bool = true;
    const TOUCHES: bool = true;

    async fn connect(&mut self) -> Result<(), StoreError> {
        self.open().await
    }

    fn clock(&self) -> Option<Shown> {
        self.clock
    }

    fn key(&self, name: &LockName) -> String {
        self.location.key(name)
    }

    fn described(&self, key: &str) -> String {
        format!("the item {key} of the table {}", self.location.place.name)
    }

    async fn read(&mut self, key: &str) -> Result<Reading<String>, StoreError> {
        let (item, reply) = self.get(key).await?;
        reading(item.as_ref(), &reply)
    }

    async fn write(&mut self, key: &str, change: &Change<'_, String>) -> Result<Written<String>, StoreError> {
        let Change { ledger, before, .. } = *change;
        // An item that is written as it was refuses a request that is on its way to take it.
        let is_idle = ledger.is_idle() && !ledger.incomplete && ledger != before;
        let idle_since = is_idle.then_some(change.now.clock);
        let swap = item::Change::Swap { version: change.version.map(String::as_str), ledger, idle_since };
        self.change(key, &swap, change.attempt).await
    }

    async fn take(
        &mut self,
        key: &str,
        holder: &HolderEntry,
        now: Now,
        attempt: &str,
    ) -> Result<Written<String>, StoreError> {
        self.change(key, &item::Change::Take(holder, now), attempt).await
    }

    async fn refresh(&mut self, lease: Duration) {
        self.client.refresh(lease).await;
    }

    async fn visit(
        &mut self,
        mut visit: impl FnMut(Option<LockName>, Option<Ledger>),
    ) -> Result<(), StoreError> {
        self.scan(|name, item| visit(Some(name), found(Some(item)).ledger.ok())).await
    }

    fn explained(&self, late: StoreError) -> StoreError {
        self.location.place.route.explained(late)
    }

    async fn examine(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        self.examine_table(diagnosis).await
    }
}
