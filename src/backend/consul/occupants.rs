//! Who holds a lock, for its ledger.

use super::agent::identity;
use super::gate::Gate;
use crate::backend::ledger::document::Occupant;
use crate::backend::ledger::{GateMode, Ledger};
use crate::lock::Holder;

/// Returns the sessions that hold a lock.
pub(super) fn occupants(ledger: &Ledger, gate: &Gate) -> Vec<Occupant> {
    let occupant = |session: &String| {
        let identity = identity(session);
        let expired = ledger.holders.iter().find(|holder| identity.is_some() && holder.gate == identity);
        let whose = expired.and_then(|holder| holder.identity()).map(|owner| {
            format!(" of dlock on {} (pid {}), which has not been renewed in time", owner.host, owner.pid)
        });
        let hint = Some(format!("session {session}{}", whose.unwrap_or_default()));
        Occupant { identity, mode: GateMode::Exclusive, holder: Holder { hint, ..Holder::default() } }
    };
    gate.session.iter().map(occupant).collect()
}
