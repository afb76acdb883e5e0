//! The environment variables that are set for the command (`DLOCK_*`).

use serde_json::{Value, json};

use crate::child::protocol::{Group, Launch};
use crate::lease::acquire_all::HeldLock;
use crate::lease::acquire_any::Wanted;
use crate::outer::OuterHolds;
use crate::settings::RunPlan;

pub(super) fn launch(plan: &RunPlan, held: &[HeldLock<'_>], outer: &OuterHolds) -> Launch {
    let store = plan.target.store.display();
    let mut holds = outer.entries();
    let mut set = Vec::new();
    let mut unset = Vec::new();
    let first = match plan.wanted {
        Wanted::All => &plan.first,
        Wanted::Any => held[0].name(),
    };
    for HeldLock { lock, grant, .. } in held {
        let claim = &lock.claim;
        if claim.name == *first {
            set.push(("DLOCK_NAME".to_owned(), claim.name.as_str().to_owned()));
            set.push(("DLOCK_TOKEN".to_owned(), claim.token.reveal().to_owned()));
            match grant.fencing {
                Some(fencing) => set.push(("DLOCK_FENCING_TOKEN".to_owned(), fencing.to_string())),
                None => unset.push("DLOCK_FENCING_TOKEN".to_owned()),
            }
            match plan.settings.slots {
                Some(_) => set.push(("DLOCK_SLOT".to_owned(), grant.slot.unwrap_or(0).to_string())),
                // That of an outer run is for another lock.
                None => unset.push("DLOCK_SLOT".to_owned()),
            }
        }
        holds.push(json!({
            "name": claim.name.as_str(),
            "token": claim.token.reveal(),
            "fencing_token": grant.fencing,
            "mode": claim.mode.as_str(),
            "backend": store,
            "pid": claim.identity.pid,
            "start": claim.identity.start,
            "boot": claim.identity.boot,
        }));
    }
    set.push(("DLOCK_HELD".to_owned(), Value::Array(holds).to_string()));
    Launch { set, unset, group: Group::Shared, not_after: None }
}
