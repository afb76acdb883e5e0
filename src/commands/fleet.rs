//! `dlock status --prometheus`: the state of all locks, as metrics.

use std::time::Duration;

use super::history::histories;
use super::selected::selected;
use super::{LOCKS_AT_A_TIME, execute, notices_about, print_to_reader, within};
use crate::backend::StoreError;
use crate::backend::admin::{Listed, LockAdmin};
use crate::exit::{Exit, Failure};
use crate::lock::{LockName, Unknown};
use crate::report::fleet::{Fleet, Measured};
use crate::report::{Reporter, store_error};
use crate::settings::{FleetPlan, StatusArguments};

/// The maximum number of locks that were not named: each of them is several series.
const MOST_LOCKS: usize = 1000;

pub(super) fn fleet(arguments: &StatusArguments) -> Exit {
    let reporter = Reporter::of(&arguments.common);
    execute(
        &reporter,
        FleetPlan::new(arguments),
        |plan| notices_about(&reporter, &plan.selection.names, &plan.selection.target),
        show,
    )
}

async fn show(plan: &FleetPlan) -> Result<Exit, Failure> {
    let target = &plan.selection.target;
    let mut store = target.store.open();
    let seen = measure(plan, &mut *store).await;
    let fleet = seen.map_err(|error| store_error(target.store.display(), &error))?;
    print_to_reader(&fleet.text())?;
    Ok(Exit::SUCCESS)
}

async fn measure(plan: &FleetPlan, store: &mut dyn LockAdmin) -> Result<Fleet, StoreError> {
    let limit = plan.selection.target.connect_timeout;
    let mut names = known(plan, store).await?;
    let most = MOST_LOCKS.max(plan.selection.names.len());
    let omitted = names.len().saturating_sub(most);
    names.truncate(most);
    let mut fleet = Fleet { locks: Vec::new(), omitted };
    for names in names.chunks(LOCKS_AT_A_TIME) {
        let seen = within(limit, store.inspect(names, None)).await?;
        let first = fleet.locks.len();
        fleet.locks.extend(seen.locks.into_iter().map(|state| Measured { state, history: Vec::new() }));
        if plan.has_history {
            add_histories(&mut fleet.locks[first..], store, limit).await?;
        }
    }
    Ok(fleet)
}

/// Adds the histories of those locks whose state is known. A lock whose history this user may not read is unknown.
async fn add_histories(
    locks: &mut [Measured],
    store: &mut dyn LockAdmin,
    limit: Duration,
) -> Result<(), StoreError> {
    let known: Vec<&mut Measured> = locks.iter_mut().filter(|lock| lock.state.unknown.is_none()).collect();
    let names: Vec<LockName> = known.iter().map(|lock| lock.state.name.clone()).collect();
    let histories = histories(store, &names, limit).await?;
    for (lock, history) in known.into_iter().zip(histories) {
        match history {
            Ok(history) => lock.history = history,
            Err(why) => lock.state.unknown = Some(Unknown::Denied(why)),
        }
    }
    Ok(())
}

/// Returns the selected locks: those in use, and those with a history.
async fn known(plan: &FleetPlan, store: &mut dyn LockAdmin) -> Result<Vec<LockName>, StoreError> {
    let mut names = selected(&plan.selection, store, Listed::InUse).await?;
    if plan.has_history && plan.selection.needs_list() {
        let others = selected(&plan.selection, store, Listed::WithHistory).await?;
        let in_use: std::collections::HashSet<LockName> = names.iter().cloned().collect();
        names.extend(others.into_iter().filter(|name| !in_use.contains(name)));
    }
    Ok(names)
}
