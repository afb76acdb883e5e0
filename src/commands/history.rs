//! `dlock history`: shows the last outcomes of locks.

use std::time::Duration;

use super::selected::selected;
use super::{execute, notices_about, print_to_reader, within};
use crate::backend::StoreError;
use crate::backend::admin::{Listed, LockAdmin};
use crate::exit::{Exit, Failure};
use crate::lock::{Filter, History, LockName, NotedRecord, also_needed};
use crate::report::history::history_text;
use crate::report::timeline::{Glyphs, timeline_text};
use crate::report::{Form, Reporter, json, store_error};
use crate::settings::{CommonArguments, HistoryArguments, HistoryPlan, HistoryStyle};

pub fn history(arguments: &HistoryArguments) -> Exit {
    show(&arguments.common, HistoryPlan::new(arguments))
}

/// Shows a history, also for `dlock status --history`.
pub(super) fn show(common: &CommonArguments, plan: Result<HistoryPlan, Failure>) -> Exit {
    let reporter = Reporter::of(common);
    execute(
        &reporter,
        plan,
        |plan| notices_about(&reporter, &plan.selection.names, &plan.selection.target),
        async |plan| {
            let mut store = plan.selection.target.store.open();
            let display = plan.selection.target.store.display();
            let histories = selected_histories(plan, &mut *store, &reporter).await;
            let histories = histories.map_err(|error| store_error(display, &error))?;
            print_to_reader(&text(plan, &histories))?;
            Ok(Exit::SUCCESS)
        },
    )
}

fn text(plan: &HistoryPlan, histories: &[History]) -> String {
    let display = plan.selection.target.store.display();
    let (form, filter) = (Form::of_stdout(), filter(plan));
    match plan.style {
        HistoryStyle::Json => json::history(display, histories),
        HistoryStyle::Table => history_text(display, histories, filter, form),
        HistoryStyle::WideTable => history_text(display, histories, filter, form.wide()),
        HistoryStyle::Timeline => timeline_text(display, histories, filter, form, Glyphs::of_terminal()),
    }
}

fn filter(plan: &HistoryPlan) -> Filter {
    // Nothing was noted before 1970.
    let ms = |time: jiff::Timestamp| u64::try_from(time.as_millisecond()).unwrap_or(0);
    let (since, until) = (plan.window.since.map(ms), plan.window.until.map(ms));
    Filter { since, until, only_failed: plan.only_failed }
}

/// Returns the selected histories; those of locks that were not named only if something is selected of them, and this user
/// may read them.
async fn selected_histories(
    plan: &HistoryPlan,
    store: &mut dyn LockAdmin,
    reporter: &Reporter,
) -> Result<Vec<History>, StoreError> {
    let names = selected(&plan.selection, store, Listed::WithHistory).await?;
    let mut histories = Vec::new();
    for (name, readable) in read(plan, store, names).await? {
        match readable {
            Ok(records) => histories.push(History::new(name, records)),
            Err(why) if plan.selection.names.contains(&name) => return Err(StoreError::Denied(why)),
            Err(why) => {
                let display = plan.selection.target.store.display();
                reporter.warning(&format!("{name} on {display}: its history is left out: {why}"));
            }
        }
    }
    let filter = filter(plan);
    let others = match filter.only_failed {
        // They are not shown: what cannot be read of them is not known.
        true => read(plan, store, also_needed(&histories)).await.unwrap_or_default(),
        false => Vec::new(),
    };
    let others: Vec<History> =
        others.into_iter().filter_map(|(name, readable)| Some(History::new(name, readable.ok()?))).collect();
    let mut histories = filter.apply(&histories, &others);
    histories.retain(|history| !history.records.is_empty() || plan.selection.names.contains(&history.name));
    Ok(histories)
}

async fn read(
    plan: &HistoryPlan,
    store: &mut dyn LockAdmin,
    names: Vec<LockName>,
) -> Result<Vec<(LockName, Readable)>, StoreError> {
    let found = histories(store, &names, plan.selection.target.connect_timeout).await?;
    Ok(names.into_iter().zip(found).collect())
}

/// The records of a lock, or why this user may not read them.
type Readable = Result<Vec<NotedRecord>, String>;

/// Returns the records of each of these locks; of the first of them if the store returns no more.
///
/// # Errors
/// The store could not be queried, or refused the histories of all of them.
pub(super) async fn histories(
    store: &mut dyn LockAdmin,
    names: &[LockName],
    limit: Duration,
) -> Result<Vec<Readable>, StoreError> {
    let mut histories: Vec<Readable> = Vec::new();
    let mut at_a_time = names.len();
    while let rest @ [_, ..] = &names[histories.len()..] {
        let asked = &rest[..at_a_time.min(rest.len())];
        match within(limit, store.histories(asked)).await {
            Ok(found) if found.is_empty() => break,
            Ok(found) => histories.extend(found.into_iter().map(Ok)),
            // Which of them it is shows when they are asked for one by one.
            Err(StoreError::Denied(_)) if asked.len() > 1 => at_a_time = 1,
            Err(StoreError::Denied(why)) => histories.push(Err(why)),
            Err(error) => return Err(error),
        }
    }
    match histories.first() {
        Some(Err(why)) if histories.iter().all(Result::is_err) => Err(StoreError::Denied(why.clone())),
        _ => Ok(histories),
    }
}
