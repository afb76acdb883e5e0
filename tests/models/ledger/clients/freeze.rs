//! An operator freezes the lock, and thaws it.

use std::collections::HashSet;

use dlock::backend::ledger::entries::{self, Write, Written};
use dlock::backend::ledger::{Gate, Purpose, administer};
use dlock::lock::FreezeRequest;

use super::{Clients, Freeze, State};

const ID: &str = "freeze";

impl Clients {
    pub(super) fn freeze_now(&self, state: &mut State) {
        let request = FreezeRequest { id: ID.into(), by: String::new(), reason: None, lasts: None };
        if self.entries {
            self.request(state, &Purpose::Prepare, true, |ledger, observed| {
                administer::freeze(ledger, observed, &request)
            });
            state.freeze = Freeze::Stored;
            return;
        }
        let mut ledger = state.ledger.clone();
        administer::freeze(&mut ledger, &self.view(state, Gate::Untried), &request);
        self.store(state, ledger, true);
        state.freeze = Freeze::InForce;
    }

    /// One look at the entries, and the writes that it leads to.
    pub(super) fn settle_now(&self, state: &mut State) {
        let is_written = |write: &Write, state: &State| match write {
            Write::Swap { order, .. } => state.settled.contains(order),
            _ => false,
        };
        let writes = entries::unsettled(&state.listing, self.fencing, &state.settled);
        assert!(!writes.iter().any(|write| is_written(write, state)));
        if writes.is_empty() {
            state.freeze = Freeze::InForce;
            state.settled = HashSet::new();
            return;
        }
        assert!(matches!(self.write(state, &writes, true), Written::At(_)));
        state.settled.extend(writes.iter().filter_map(|write| match write {
            Write::Swap { order, .. } => Some(*order),
            _ => None,
        }));
    }

    pub(super) fn thaw_now(&self, state: &mut State) {
        state.freeze = Freeze::Absent;
        if self.entries {
            self.request(state, &Purpose::Operate, true, |ledger, observed| {
                administer::thaw(ledger, observed, ID)
            });
            return;
        }
        let mut ledger = state.ledger.clone();
        administer::thaw(&mut ledger, &self.view(state, Gate::Untried), ID);
        self.store(state, ledger, true);
    }
}
