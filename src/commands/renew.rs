//! `dlock renew`: renews the lease that a token owns.

use std::slice::from_ref;
use std::time::Duration;

use serde_json::json;

use super::hold::{Hold, bounded};
use super::{execute, notices_about};
use crate::backend::{Renewal, StoreError};
use crate::clock::Moment;
use crate::exit::{Exit, Failure, FailureKind};
use crate::lock::Revocation;
use crate::report::{self, Reporter, milliseconds, revoked};
use crate::settings::{RenewArguments, RenewPlan};

pub fn renew(arguments: &RenewArguments) -> Exit {
    let reporter = Reporter::of(&arguments.token.common);
    let plan = RenewPlan::new(arguments);
    execute(
        &reporter,
        plan,
        |plan| notices_about(&reporter, from_ref(&plan.hold.name), &plan.hold.target),
        extend,
    )
}

async fn extend(plan: &RenewPlan) -> Result<Exit, Failure> {
    let mut hold = Hold::find(&plan.hold).await?;
    let broken = |revocation: &Revocation| {
        let what = revoked(&plan.hold.name, plan.hold.target.store.display(), revocation);
        Failure::new(FailureKind::Lost, format!("{what}; release it with dlock release"))
    };
    if let Some(revocation) = &hold.holder.revoked {
        return Err(broken(revocation));
    }
    let Some(lease) = plan.ttl.or(hold.holder.lease) else {
        let error = StoreError::unreachable("the length of its lease is not recorded: use --ttl");
        return Err(hold.failed(&error));
    };
    let claim = hold.claim(lease);
    let mut sent = Moment::now();
    let store = &mut hold.store;
    let renewal = bounded(plan.hold.target.connect_timeout, async || {
        store.connect().await?;
        sent = Moment::now();
        store.renew(&claim, Duration::ZERO).await
    });
    match renewal.await {
        Ok(Renewal::Held { revoked: Some(revocation), .. }) => Err(broken(&revocation)),
        Ok(Renewal::Held { lease, revoked: None }) => {
            let rest = lease.map(|lease| sent + lease - Moment::now());
            if plan.json {
                return Ok(super::print(&report::json::line(&json!({
                    "version": 1,
                    "name": plan.hold.name.as_str(),
                    "fencing_token": hold.holder.fencing,
                    "expires_in_ms": rest.map(milliseconds),
                    "backend": plan.hold.target.store.display(),
                }))));
            }
            Ok(Exit::SUCCESS)
        }
        Ok(Renewal::Lost(_)) => Err(hold.lost().await),
        Err(error) => Err(hold.failed(&error)),
    }
}
