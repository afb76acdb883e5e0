//! `dlock status --overdue`: checks how long ago the last success of each lock began.

use std::time::Duration;

use super::{LOCKS_AT_A_TIME, notices_about, print, print_to_reader, try_execute, within};
use crate::backend::StoreError;
use crate::backend::admin::LockAdmin;
use crate::exit::{Exit, Failure};
use crate::lock::overdue::{AgeLimits, Checked, LastSuccess};
use crate::lock::{LockName, LockState, natural_order};
use crate::report::overdue::{Overdue, nagios_unknown};
use crate::report::{Reporter, store_error};
use crate::settings::{StatusArguments, StatusPlan};

pub(super) fn overdue(arguments: &StatusArguments, limits: AgeLimits) -> Exit {
    // A plug-in says everything in one line on standard output.
    let reporter = Reporter::of(&arguments.common).silenced(arguments.nagios);
    let checked = try_execute(
        &reporter,
        StatusPlan::new(arguments),
        |plan| notices_about(&reporter, &plan.names, &plan.target),
        async |plan| check(plan, limits).await,
    );
    checked.unwrap_or_else(|failure| match arguments.nagios {
        true => {
            print(&nagios_unknown(&failure));
            Exit::UNKNOWN
        }
        false => reporter.failure(&failure),
    })
}

async fn check(plan: &StatusPlan<'_>, limits: AgeLimits) -> Result<Exit, Failure> {
    let mut store = plan.target.store.open();
    let display = plan.target.store.display();
    let failed = |error: StoreError| store_error(display, &error);
    let locks = read(plan, &mut *store, limits).await.map_err(failed)?;
    let unmatched = plan.unmatched(|pattern| locks.iter().any(|lock| pattern.matches(lock.name.as_str())));
    let overdue = Overdue { store: display, limits, locks: &locks, unmatched: &unmatched };
    print_to_reader(&match (plan.options.nagios, plan.options.json) {
        (true, _) => overdue.nagios(),
        (_, true) => overdue.json(),
        _ => overdue.text(),
    })?;
    Ok(overdue.exit())
}

/// Returns the named locks, and those that the patterns match, as far as they have succeeded.
async fn read(
    plan: &StatusPlan<'_>,
    store: &mut dyn LockAdmin,
    limits: AgeLimits,
) -> Result<Vec<Checked>, StoreError> {
    let limit = plan.target.connect_timeout;
    within(limit, store.connect()).await?;
    let mut names = plan.names.clone();
    if plan.needs_list() {
        let mut listed = within(limit, store.list_with_history()).await?;
        listed.sort_by(natural_order);
        names.extend(listed.into_iter().filter(|name| plan.matches(name) && !plan.names.contains(name)));
    }
    let mut checked = Vec::new();
    for names in names.chunks(LOCKS_AT_A_TIME) {
        for (name, last, now) in last_successes(store, names, limit).await? {
            if last.is_some() || plan.names.contains(&name) {
                checked.push(limits.check(name, last, now));
            }
        }
    }
    Ok(checked)
}

/// Returns the last success of each lock, and the time by the store's clock, in ms since 1970.
async fn last_successes(
    store: &mut dyn LockAdmin,
    names: &[LockName],
    limit: Duration,
) -> Result<Vec<(LockName, Option<LastSuccess>, u64)>, StoreError> {
    let seen = within(limit, store.inspect(names, None)).await?.whole()?;
    let mut successes = Vec::new();
    for LockState { name, last_success, .. } in seen.locks {
        let history = within(limit, store.history(&name)).await?;
        let last = LastSuccess::of(last_success.as_ref(), &history);
        successes.push((name, last, seen.now_ms));
    }
    Ok(successes)
}
