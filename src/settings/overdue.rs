//! `dlock status --overdue`: its limits and its plan.

use super::target::contradiction;
use super::{Selection, Source, StatusArguments};
use crate::backend::location::Demand;
use crate::exit::Failure;
use crate::lock::overdue::AgeLimits;

/// How the result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverdueStyle {
    /// A line for each lock that is overdue.
    Lines,
    /// One line, as of a Nagios plug-in.
    Nagios,
    Json,
}

pub struct OverduePlan {
    pub selection: Selection,
    pub limits: AgeLimits,
    pub style: OverdueStyle,
}

impl OverduePlan {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Contradictions, bad names or none, or a store without a history (64); bad environment or URL (78).
    pub fn new(arguments: &StatusArguments, limits: AgeLimits) -> Result<OverduePlan, Failure> {
        let own = ["--overdue", "--nagios", "--json"];
        if let Some(other) = arguments.given().into_iter().find(|flag| !own.contains(flag)) {
            return contradiction("--overdue", other);
        }
        let style = match (arguments.nagios, arguments.json) {
            (true, true) => return contradiction("--nagios", "--json"),
            (true, false) => OverdueStyle::Nagios,
            (false, true) => OverdueStyle::Json,
            (false, false) => OverdueStyle::Lines,
        };
        if arguments.names.is_empty() {
            return Err(Failure::usage(
                "--overdue needs the locks to check: names, patterns, or '*' for all",
            ));
        }
        let selection = Selection::new(&arguments.names, &arguments.common)?;
        selection.target.check(Demand::History, &Source::Flag("--overdue"))?;
        selection.check_list()?;
        Ok(OverduePlan { selection, limits, style })
    }
}
