//! What a store of documents does without a decision.

use dlock::backend::Intent;
use dlock::backend::ledger::document::{Seen, Shortcut};
use dlock::backend::ledger::{Ledger, Now, Purpose, decide};
use dlock::clock::Moment;

use super::{Clients, Phase, State, token};

impl Clients {
    /// What a store of documents may do before the ledger is read.
    pub(super) fn take_shortcut(&self, state: &mut State, client: usize) {
        let (Some(_), claim, now) = (self.ttl, self.claim(client), Now { clock: state.now, wall: 0 }) else {
            return;
        };
        let ledger = state.ledger.clone();
        let seen = Seen { ledger, version: (), now, sent: Moment::now(), occupants: None };
        let recalled = (state.clients[client].phase != Phase::Idle).then_some(seen);
        let shortcut =
            Shortcut::of(&Purpose::Claim(claim.clone()), recalled.as_ref(), &|ledger, observed| {
                decide::claim(ledger, observed, &claim, Intent::Enqueue)
            });
        let mut ledger = state.ledger.clone();
        shortcut.apply(&mut ledger, now);
        let is_mine = |ledger: &Ledger| ledger.holders.iter().any(|one| one.token == token(client));
        if is_mine(&ledger) && !is_mine(&state.ledger) {
            self.check_order(state, client);
            self.check_freeze(state, client);
            if ledger.fencing_token <= state.last_fencing_token {
                state.fault = Some("a fencing token did not grow");
            }
            // The grant may be concluded after that of another one that shares the lock.
            state.last_fencing_token = ledger.fencing_token;
            state.clients[client].fencing_token = ledger.fencing_token;
        }
        self.store(state, ledger, true);
    }
}
