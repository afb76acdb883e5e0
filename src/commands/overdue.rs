//! `dlock status --overdue`: checks how long ago the last success of each lock began.

use super::history::histories;
use super::selected::selected;
use super::{LOCKS_AT_A_TIME, notices_about, print, print_to_reader, try_execute, within};
use crate::backend::StoreError;
use crate::backend::admin::{Listed, LockAdmin};
use crate::exit::{Exit, Failure};
use crate::lock::LockName;
use crate::lock::overdue::{AgeLimits, Checked, LastSuccess};
use crate::report::overdue::{Overdue, nagios_unknown};
use crate::report::{Reporter, store_error};
use crate::settings::{OverduePlan, OverdueStyle, StatusArguments};

pub(super) fn overdue(arguments: &StatusArguments, limits: AgeLimits) -> Exit {
    // A plug-in says everything in one line on standard output.
    let reporter = Reporter::of(&arguments.common).silenced(arguments.nagios);
    let checked = try_execute(
        &reporter,
        OverduePlan::new(arguments, limits),
        |plan| notices_about(&reporter, &plan.selection.names, &plan.selection.target),
        check,
    );
    checked.unwrap_or_else(|failure| match arguments.nagios {
        true => unknown(&failure),
        false => reporter.failure(&failure),
    })
}

/// Reports to Nagios that the locks could not be checked.
pub fn unknown(failure: &Failure) -> Exit {
    print(&nagios_unknown(failure));
    Exit::UNKNOWN
}

async fn check(plan: &OverduePlan) -> Result<Exit, Failure> {
    let target = &plan.selection.target;
    let (mut store, display) = (target.store.open(), target.store.display());
    let locks = read(plan, &mut *store).await.map_err(|error| store_error(display, &error))?;
    let names: Vec<&LockName> = locks.iter().map(|lock| &lock.name).collect();
    let unmatched = plan.selection.unmatched(&names);
    let overdue = Overdue {
        store: display,
        limits: plan.limits,
        locks: &locks,
        unmatched: &unmatched,
        notices: &target.notices,
    };
    print_to_reader(&match plan.style {
        OverdueStyle::Lines => overdue.text(),
        OverdueStyle::Nagios => overdue.nagios(),
        OverdueStyle::Json => overdue.json(),
    })?;
    Ok(overdue.exit())
}

/// Returns the named locks, and those that the patterns match, as far as they have succeeded.
async fn read(plan: &OverduePlan, store: &mut dyn LockAdmin) -> Result<Vec<Checked>, StoreError> {
    let selection = &plan.selection;
    let names = selected(selection, store, Listed::WithHistory).await?;
    let limit = selection.target.connect_timeout;
    let mut checked: Vec<Checked> = Vec::new();
    for names in names.chunks(LOCKS_AT_A_TIME) {
        let seen = within(limit, store.inspect(names, None)).await?.whole()?;
        let histories = histories(store, names, limit).await?;
        for (lock, history) in seen.locks.into_iter().zip(histories) {
            let history = history.map_err(StoreError::Denied)?;
            let last = LastSuccess::of(lock.last_success.as_ref(), &history);
            // What a pattern matches need not be a job; but one that has failed for that long should have succeeded.
            let is_job = last.is_some() || plan.limits.is_exceeded_by_failures(&history, seen.now_ms);
            if is_job || selection.names.contains(&lock.name) {
                checked.push(plan.limits.check(lock.name, last, seen.now_ms));
            }
        }
    }
    Ok(checked)
}
