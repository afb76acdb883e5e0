//! `dlock check`: is the lock still held?

use std::slice::from_ref;

use super::execute;
use super::hold::{bounded, look};
use crate::backend::admin::LockAdmin;
use crate::backend::location::Demand;
use crate::duration::show_distance;
use crate::exit::{Exit, Failure, FailureKind};
use crate::lock::{FencingToken, Token};
use crate::report::{Reporter, lock_error, not_owned};
use crate::settings::{Check, CheckArguments, CheckPlan, Condition};

pub fn check(arguments: &CheckArguments) -> Exit {
    let reporter = Reporter::of(&arguments.token.common);
    let plan = CheckPlan::new(arguments);
    execute(&reporter, plan, |plan| &plan.notices, async |plan| check_all(plan, &reporter).await)
}

/// A lost lock takes precedence over locks whose store is unavailable.
async fn check_all(plan: &CheckPlan, reporter: &Reporter) -> Result<Exit, Failure> {
    let mut unknown = None;
    let mut last: Option<(&str, Box<dyn LockAdmin>)> = None;
    for check in &plan.checks {
        let display = check.store.display();
        reporter.set_subject(from_ref(&check.name), display);
        let (_, mut store) =
            last.take_if(|(known, _)| *known == display).unwrap_or_else(|| (display, check.store.open()));
        let checked = match &check.condition {
            Condition::OwnedBy(token) => check_owner(plan, check, token, &mut *store, reporter).await,
            Condition::NoTokenAfter(token) => check_latest(plan, check, *token, &mut *store, reporter).await,
        };
        match checked {
            Err(failure) if failure.kind == FailureKind::Lost => return Err(failure),
            Err(failure) => unknown = unknown.or(Some(failure)),
            Ok(()) => last = Some((display, store)),
        }
    }
    unknown.map_or(Ok(Exit::SUCCESS), Err)
}

async fn check_owner(
    plan: &CheckPlan,
    Check { name, store: location, help, .. }: &Check,
    token: &Token,
    store: &mut dyn LockAdmin,
    reporter: &Reporter,
) -> Result<(), Failure> {
    let display = location.display();
    let state = look(store, name, Some(token), plan.connect_timeout).await;
    let state = state.map_err(|error| lock_error(name, display, &error, help))?;
    let Some(holder) = state.holders.iter().find(|holder| holder.ours) else {
        return Err(not_owned(name, Some(&state.holders), display));
    };
    let rest =
        holder.remaining.map(|rest| format!(", for another {}", show_distance(rest))).unwrap_or_default();
    reporter.detail(&format!("{name} on {display}: held{rest}"));
    Ok(())
}

async fn check_latest(
    plan: &CheckPlan,
    Check { name, store: location, help, .. }: &Check,
    token: FencingToken,
    store: &mut dyn LockAdmin,
    reporter: &Reporter,
) -> Result<(), Failure> {
    let display = location.display();
    if let Some(why) = location.refuses(Demand::FencingTokens) {
        return Err(Failure::usage(format!("--fencing-token: {display}: {why}")));
    }
    let last = bounded(plan.connect_timeout, async || {
        store.connect().await?;
        store.last_fencing_token(name).await
    });
    match last.await.map_err(|error| lock_error(name, display, &error, help))? {
        Some(last) if last > token => {
            let why =
                format!("{name} on {display}: fencing token {token} is outdated: {last} has been granted");
            Err(Failure::new(FailureKind::Lost, why))
        }
        _ => {
            reporter.detail(&format!("{name} on {display}: no later fencing token than {token}"));
            Ok(())
        }
    }
}
