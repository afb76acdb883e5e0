//! `dlock release`: releases the lock that a token owns.

use std::slice::from_ref;
use std::time::Duration;

use super::hold::{self, Hold};
use super::{execute, notices_about};
use crate::backend::{Ending, Release};
use crate::exit::{Exit, Failure};
use crate::identity;
use crate::lock::Record;
use crate::lock::record::RELEASED;
use crate::report::{Reporter, milliseconds};
use crate::settings::{ReleaseArguments, TokenPlan};

pub fn release(arguments: &ReleaseArguments) -> Exit {
    let reporter = Reporter::of(&arguments.token.common);
    let plan = TokenPlan::new(&arguments.token, "release");
    execute(&reporter, plan, |plan| notices_about(&reporter, from_ref(&plan.name), &plan.target), free)
}

async fn free(plan: &TokenPlan) -> Result<Exit, Failure> {
    let mut hold = Hold::find(plan).await?;
    let claim = hold.claim(hold.holder.lease.unwrap_or_default());
    let record = Record {
        outcome: RELEASED.to_owned(),
        identity: identity::of_this_process("dlock release".into(), None),
        fencing_token: hold.holder.fencing,
        held_ms: hold.holder.age.map(milliseconds),
        ..Record::default()
    };
    let ending = Ending::with_record(Some(&record));
    let limit = plan.target.connect_timeout;
    match hold::release(&mut *hold.store, &claim, Duration::ZERO, ending, limit).await {
        Ok(Release::NotHeld) => Err(hold.lost().await),
        Ok(Release::Released | Release::Kept | Release::SuccessNotStored(_) | Release::NotYet(_)) => {
            Ok(Exit::SUCCESS)
        }
        Err(error) => Err(hold.failed(&error)),
    }
}
