//! `dlock status --prometheus`: its plan.

use super::target::contradiction;
use super::{Selection, StatusArguments};
use crate::backend::location::Demand;
use crate::exit::Failure;

pub struct FleetPlan {
    pub selection: Selection,
    /// Whether the store keeps a history.
    pub has_history: bool,
}

impl FleetPlan {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Contradictions and bad names (64); bad environment or URL (78).
    pub fn new(arguments: &StatusArguments) -> Result<FleetPlan, Failure> {
        if let Some(other) = arguments.given().into_iter().find(|flag| *flag != "--prometheus") {
            return contradiction("--prometheus", other);
        }
        let selection = Selection::new(&arguments.names, &arguments.common)?;
        selection.check_list()?;
        let has_history = selection.target.store.refuses(Demand::History).is_none();
        Ok(FleetPlan { selection, has_history })
    }
}
