//! The normal form of a state: times count from now, and tickets by their order, so that states which differ in nothing
//! else are one.

use std::fmt::Write as _;
use std::time::Duration;

use dlock::backend::ledger::entries::{Entry, Write};
use dlock::backend::ledger::{Decision, Ledger, Watch};
use dlock::backend::{Attempt, CLAIM_WITHIN};

use super::{Change, Decided, Phase, State};

pub(super) fn of(state: &State) -> String {
    let mut form = String::new();
    let left = |at: Duration| at.saturating_sub(state.now).as_millis();
    add_ledger(&mut form, &state.ledger, state.now);
    for (index, client) in state.clients.iter().enumerate() {
        let watches: Vec<_> = client.watches.iter().map(|watch| watched(state, watch)).collect();
        let due = (!matches!(client.phase, Phase::Ended | Phase::Dead)).then(|| left(client.due));
        let kept = client.kept_until.filter(|_| !client.is_revoked).map(left);
        let _ = write!(form, "{kept:?}{}", client.owns_gate);
        let _ = write!(form, "{}{}", client.is_revoked, client.knows_revocation);
        let _ = write!(
            form,
            "c{index}{:?}{}{}{due:?}{watches:?}{:?}",
            client.phase,
            client.notified,
            client.has_renewed,
            client.safe_until.filter(|_| client.phase == Phase::Running).map(left)
        );
        if let Some(decided) = &client.decided {
            add_decided(&mut form, state, decided);
        }
    }
    let (deaths, losses, delays) = (state.deaths, state.losses, state.delays);
    let _ = write!(form, "{:?}{deaths}{losses}{delays}{}", state.foreign, state.revocations);
    // Each entry is written once, before anything else of the freeze is looked at.
    let _ = write!(form, "{:?}{}{}", state.freeze, state.freezes, state.settled.len());
    // The same state may also be reached without one.
    let _ = write!(form, "{:?}", state.fault);
    form
}

fn add_ledger(form: &mut String, ledger: &Ledger, at: Duration) {
    for one in &ledger.holders {
        let ends = one.lease_ends.map(|ends| ends.saturating_sub(at).as_millis());
        let kept = one.kept_until.map(|until| until.saturating_sub(at).as_millis());
        let _ = write!(form, "h{}{:?}{ends:?}{kept:?}", one.token, one.slot);
        let _ = write!(form, "{}{}", one.ended_at.is_some(), one.revoked.is_some());
    }
    for one in &ledger.waiters {
        let called = one.called.map(|called| (called + CLAIM_WITHIN).saturating_sub(at).as_millis());
        let ends = one.lease_ends.map(|ends| ends.saturating_sub(at).as_millis());
        let _ = write!(form, "w{}{called:?}{ends:?}", one.token);
    }
    let _ = write!(form, "{}", ledger.incomplete);
}

/// Returns whom a client watches, by the token.
fn watched(state: &State, watch: &Watch) -> Option<String> {
    let holder = |ticket: &u64| state.ledger.holders.iter().find(|one| one.ticket == *ticket);
    let waiter = |ticket: &u64| state.ledger.waiters.iter().find(|one| one.ticket == *ticket);
    match watch {
        Watch::Holder(ticket) => holder(ticket).map(|one| one.token.clone()),
        Watch::Waiter(ticket) => waiter(ticket).map(|one| one.token.clone()),
        Watch::Entry(ticket) => {
            let token = holder(ticket).map(|one| &one.token).or(waiter(ticket).map(|one| &one.token));
            token.map(|token| format!("entry {token}"))
        }
        Watch::Freeze => Some("freeze".to_owned()),
        Watch::Gate(mode) => Some(format!("{mode:?}")),
    }
}

/// Adds what a client has decided and not stored yet.
fn add_decided(form: &mut String, state: &State, decided: &Decided) {
    let age = state.now - decided.at;
    match &decided.change {
        Change::Document(version, ledger) => {
            let is_current = *version == state.version;
            let _ = write!(form, "d{is_current}");
            if is_current {
                let _ = write!(form, "{age:?}");
                add_ledger(form, ledger, state.now);
            }
        }
        Change::Entries(writes, _) => {
            let _ = write!(form, "e{age:?}");
            writes.iter().for_each(|write| add_write(form, state, write));
            if let Decision::Done { value: Attempt::Busy(busy), watch, .. } = &decided.step {
                let watches: Vec<_> = watch.iter().map(|watch| watched(state, watch)).collect();
                let _ = write!(form, "{:?}{watches:?}", busy.again);
            }
        }
    }
}

fn add_write(form: &mut String, state: &State, write: &Write) {
    let (name, target, value) = match write {
        Write::Create { alone, waiting, lease } => {
            (format!("create{}{lease:?}", alone.is_some()), None, Some(waiting))
        }
        Write::Swap { order, version, value, lease } => {
            (format!("swap{lease:?}"), Some((order, Some(version))), Some(value))
        }
        Write::Extend { order, lease } => (format!("extend{lease:?}"), Some((order, None)), None),
        Write::Remove { order, version } => ("remove".to_owned(), Some((order, Some(version))), None),
    };
    // An entry of another version is as good as gone.
    let entry = target.and_then(|(order, version)| {
        let is_meant =
            |entry: &Entry| entry.order == *order && version.is_none_or(|version| entry.version == *version);
        state.listing.entries.iter().position(is_meant)
    });
    let _ = write!(form, "{name}{entry:?}");
    value.into_iter().for_each(|value| add_ledger(form, value, state.now));
}
