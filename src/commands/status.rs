//! `dlock status`: shows holders and waiters.

use std::io::IsTerminal;
use std::time::Duration;

use super::fleet::fleet;
use super::history;
use super::overdue::{overdue, unknown};
use super::selected::selected;
use super::{LOCKS_AT_A_TIME, execute, notices_about, print_to_reader, watch, within};
use crate::backend::StoreError;
use crate::backend::admin::{Inspection, Listed, LockAdmin};
use crate::backend::location::Demand;
use crate::exit::{Exit, Failure, FailureKind};
use crate::lock::{Known, LockName, LockState, Queues, mark_waiting, unread};
use crate::report::status::status_text;
use crate::report::{Form, Reporter, is_dumb, json, printable, store_error};
use crate::settings::{MOST_NAMES, StatusArguments, StatusPlan};

pub fn status(arguments: &StatusArguments) -> Exit {
    if let Some(limits) = arguments.overdue {
        return overdue(arguments, limits);
    }
    if arguments.nagios {
        let usage = "--nagios prints what is overdue: did you mean dlock status --nagios --overdue 26h NAME";
        return unknown(&Failure::usage(usage));
    }
    if arguments.prometheus {
        return fleet(arguments);
    }
    if let Some(plan) = arguments.history_plan().transpose() {
        return history::show(&arguments.common, plan);
    }
    let reporter = Reporter::of(&arguments.common);
    let plan = StatusPlan::new(arguments);
    execute(
        &reporter,
        plan,
        |plan| notices_about(&reporter, &plan.selection.names, &plan.selection.target),
        async |plan| show(plan, &reporter).await,
    )
}

async fn show(plan: &StatusPlan<'_>, reporter: &Reporter) -> Result<Exit, Failure> {
    let mut store = plan.selection.target.store.open();
    let failed = |error: StoreError| store_error(plan.selection.target.store.display(), &error);
    match plan.options.watch {
        Some(interval) => watch(plan, &mut *store, interval, reporter).await,
        None => {
            let seen = look(plan, &mut *store).await.map_err(failed)?;
            print_to_reader(&text(plan, &seen, form(plan)))?;
            let is_held = seen.locks.iter().any(|lock| !lock.holders.is_empty() || lock.freeze.is_some());
            let is_unknown = seen.locks.iter().any(|lock| lock.unknown.is_some());
            Ok(match (plan.options.exit_code, is_held, is_unknown) {
                (true, true, _) => Exit::CONTENDED,
                (true, false, true) => FailureKind::Denied.into(),
                _ => Exit::SUCCESS,
            })
        }
    }
}

fn form(plan: &StatusPlan<'_>) -> Form {
    let form = Form::of_stdout();
    if plan.options.wide { form.wide() } else { form }
}

fn text(plan: &StatusPlan<'_>, seen: &Inspection, form: Form) -> String {
    let display = plan.selection.target.store.display();
    match plan.options.json {
        true => json::status(display, seen),
        false => status_text(display, seen, form),
    }
}

/// Refreshes until a signal ends dlock or the reader closes the output.
async fn watch(
    plan: &StatusPlan<'_>,
    store: &mut dyn LockAdmin,
    interval: Duration,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let is_redrawn = !plan.options.json && std::io::stdout().is_terminal() && !is_dumb();
    let failure = |error: &StoreError| store_error(plan.selection.target.store.display(), error);
    if is_redrawn {
        let text = |seen: &Result<Inspection, StoreError>| match seen {
            Ok(seen) => text(plan, seen, form(plan)),
            Err(error) => format!("{}\n", printable(&failure(error).message)),
        };
        return watch::on_terminal(interval, async || look(plan, store).await, text, failure).await;
    }
    let mut has_begun = false;
    let mut reported = None;
    loop {
        let text = match look(plan, store).await {
            Ok(seen) => {
                reported = None;
                text(plan, &seen, form(plan))
            }
            Err(error) => {
                let failure = failure(&error);
                // A store that is unavailable at the start is an error; later it may recover.
                if !has_begun || !matches!(error, StoreError::Unavailable { .. }) {
                    return Err(failure);
                }
                // Report it once, however long it lasts.
                if reported.as_ref() != Some(&failure.message) {
                    reporter.failure(&failure);
                }
                reported = Some(failure.message);
                String::new()
            }
        };
        let text = match has_begun && !plan.options.json && !text.is_empty() {
            true => format!("\n{text}"),
            false => text,
        };
        if !print_to_reader(&text)? {
            return Ok(Exit::SUCCESS);
        }
        has_begun = true;
        tokio::time::sleep(interval).await;
    }
}

/// Returns the current state of the selected locks; those that were not named only if they are held or
/// awaited.
async fn look(plan: &StatusPlan<'_>, store: &mut dyn LockAdmin) -> Result<Inspection, StoreError> {
    let names = selected(&plan.selection, store, Listed::InUse).await?;
    let limit = plan.selection.target.connect_timeout;
    let mut seen = Inspection { now_ms: 0, locks: Vec::new() };
    for names in names.chunks(LOCKS_AT_A_TIME) {
        let part = within(limit, store.inspect(names, None)).await?;
        // Convert all ages to the same moment.
        let since = Duration::from_millis(part.now_ms.saturating_sub(seen.now_ms));
        seen.locks.iter_mut().for_each(|lock| lock.age(since));
        seen.now_ms = part.now_ms.max(seen.now_ms);
        seen.locks.extend(part.locks);
    }
    seen.locks.retain(|lock| {
        let is_used = !lock.holders.is_empty() || !lock.waiters.is_empty() || lock.freeze.is_some();
        let is_used = is_used || lock.unknown.is_some();
        plan.selection.names.contains(&lock.name) || is_used
    });
    note_waiting(plan, store, &mut seen.locks).await;
    Ok(seen)
}

/// Notes which holders wait for another lock, as far as the states of the locks that they take after those shown can be
/// read.
async fn note_waiting(plan: &StatusPlan<'_>, store: &mut dyn LockAdmin, locks: &mut [LockState]) {
    if locks.iter().flat_map(|lock| &lock.holders).all(|holder| !holder.has_next_lock()) {
        return;
    }
    let queues = match plan.selection.target.store.refuses(Demand::List) {
        None => Queues::Shown,
        Some(_) => Queues::Hidden,
    };
    let by_name = |lock: LockState| (lock.name.clone(), lock);
    let mut known: Known = locks.iter().cloned().map(by_name).collect();
    for _ in 1..MOST_NAMES {
        let unread: Vec<LockName> = unread(locks, &known, queues).into_iter().take(LOCKS_AT_A_TIME).collect();
        if unread.is_empty() {
            break;
        }
        match within(plan.selection.target.connect_timeout, store.inspect(&unread, None)).await {
            Ok(part) => known.extend(part.locks.into_iter().map(by_name)),
            Err(_) => break,
        }
    }
    mark_waiting(locks, &known, queues);
}
