//! `dlock doctor --fencing-floor`: lets the fencing tokens of a lock continue from those of another store.

use super::super::hold::bounded;
use crate::backend::admin::Raised;
use crate::exit::{Exit, Failure};
use crate::report::{Reporter, lock_error};
use crate::settings::FloorPlan;

pub async fn raise(plan: &FloorPlan, reporter: &Reporter) -> Result<Exit, Failure> {
    let FloorPlan { target, name, floor } = plan;
    let display = target.store.display();
    let mut store = target.store.open();
    let raised = bounded(target.connect_timeout, async || {
        store.connect().await?;
        store.raise_fencing(name, *floor).await
    });
    match raised.await.map_err(|error| lock_error(name, display, &error, ""))? {
        Raised::Done => {
            reporter
                .detail(&format!("{name} on {display}: every later fencing token is larger than {floor}"));
            Ok(Exit::SUCCESS)
        }
        Raised::Held => {
            let message = format!(
                "{name} on {display} is held, and its fencing tokens are left unchanged: see dlock status, and repeat \
                 this when it is free"
            );
            reporter.held(Some(name), None, &message);
            Ok(Exit::CONTENDED)
        }
        Raised::Above(last) => {
            let why = format!("{name} on {display} has fencing token {last} already, which is never lowered");
            Err(Failure::usage(format!("--fencing-floor {floor}: {why}")))
        }
        Raised::Unsupported(why) => {
            Err(Failure::usage(format!("--fencing-floor: {name} on {display}: {why}")))
        }
    }
}
