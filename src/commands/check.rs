//! `dlock check`: is the lock still held?

use super::execute;
use super::hold::look;
use crate::backend::admin::LockAdmin;
use crate::duration::show_distance;
use crate::exit::{Exit, Failure, FailureKind};
use crate::report::{Reporter, lock_error, not_owned};
use crate::settings::{CheckArguments, CheckPlan, Proof};

pub fn check(arguments: &CheckArguments) -> Exit {
    let reporter = Reporter::of(&arguments.token.common);
    let plan = CheckPlan::new(arguments);
    execute(&reporter, plan, |plan| &plan.notices, async |plan| check_all(plan, &reporter).await)
}

/// A lost lock takes precedence over locks whose store is unavailable.
async fn check_all(plan: &CheckPlan, reporter: &Reporter) -> Result<Exit, Failure> {
    let mut unknown = None;
    let mut last: Option<(&str, Box<dyn LockAdmin>)> = None;
    for proof in &plan.proofs {
        let display = proof.store.display();
        let (_, mut store) =
            last.take_if(|(known, _)| *known == display).unwrap_or_else(|| (display, proof.store.open()));
        match check_one(plan, proof, &mut *store, reporter).await {
            Err(failure) if failure.kind == FailureKind::Lost => return Err(failure),
            Err(failure) => unknown = unknown.or(Some(failure)),
            Ok(()) => last = Some((display, store)),
        }
    }
    unknown.map_or(Ok(Exit::SUCCESS), Err)
}

async fn check_one(
    plan: &CheckPlan,
    proof: &Proof,
    store: &mut dyn LockAdmin,
    reporter: &Reporter,
) -> Result<(), Failure> {
    let (name, display) = (&proof.name, proof.store.display());
    let state = look(store, name, &proof.token, plan.connect_timeout).await;
    let state = state.map_err(|error| lock_error(name, display, &error, proof.help))?;
    let Some(holder) = state.holders.iter().find(|holder| holder.ours) else {
        return Err(not_owned(&state, display));
    };
    let rest =
        holder.remaining.map(|rest| format!(", for another {}", show_distance(rest))).unwrap_or_default();
    reporter.detail(&format!("{name} on {display}: held{rest}"));
    Ok(())
}
