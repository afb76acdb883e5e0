//! `dlock thaw`: ends the freezes of some names.

use super::hold::{look, persistent};
use super::{execute, notices_about, print};
use crate::backend::StoreError;
use crate::backend::admin::LockAdmin;
use crate::exit::{Exit, Failure};
use crate::lock::{Freeze, LockName};
use crate::report::{Reporter, describe_freeze, frozen_by, lock_error, printable};
use crate::settings::{StoreTarget, ThawArguments, ThawPlan};

pub fn thaw(arguments: &ThawArguments) -> Exit {
    let reporter = Reporter::of(&arguments.common);
    execute(
        &reporter,
        ThawPlan::new(arguments),
        |plan| notices_about(&reporter, &plan.names, &plan.target),
        async |plan| run(plan, &reporter).await,
    )
}

async fn run(plan: &ThawPlan, reporter: &Reporter) -> Result<Exit, Failure> {
    let display = plan.target.store.display();
    let mut store = plan.target.store.open();
    let mut exit = Exit::SUCCESS;
    for name in &plan.names {
        let thawed = match thaw_shown(&mut *store, name, &plan.target, reporter).await {
            Ok(thawed) => thawed,
            Err(error) => reporter.failure(&lock_error(name, display, &error, "")),
        };
        // The others are thawed all the same.
        if exit == Exit::SUCCESS {
            exit = thawed;
        }
    }
    super::warn_of_exposure(&plan.target, reporter);
    Ok(exit)
}

/// Ends the freeze that the lock has now, if it has one.
async fn thaw_shown(
    store: &mut dyn LockAdmin,
    name: &LockName,
    target: &StoreTarget,
    reporter: &Reporter,
) -> Result<Exit, StoreError> {
    let display = target.store.display();
    let say = |line: &str| print(&format!("{}\n", printable(line)));
    let limit = target.connect_timeout;
    let Some(freeze) = look(store, name, None, limit).await?.freeze else {
        return Ok(say(&format!("{name} on {display} is not frozen")));
    };
    let _ = end(store, name, &freeze, target).await?;
    Ok(match look(store, name, None, limit).await?.freeze {
        None => say(&format!("{name} was {}, and is thawed", frozen_by(&freeze))),
        Some(other) => {
            let message = format!(
                "{}: it was frozen again in the meantime, and stays frozen",
                describe_freeze(name, &other)
            );
            reporter.held(Some(name), None, &message);
            Exit::CONTENDED
        }
    })
}

/// Ends this freeze, unless it has ended.
///
/// # Errors
/// The store could not be queried, or refused.
pub(super) async fn end(
    store: &mut dyn LockAdmin,
    name: &LockName,
    freeze: &Freeze,
    target: &StoreTarget,
) -> Result<bool, StoreError> {
    persistent(target.connect_timeout, async || {
        store.connect().await?;
        store.thaw(name, &freeze.id).await
    })
    .await
}
