//! `dlock doctor`: its options and its plan.

use clap::Args;

use super::{CommonArguments, StoreTarget};
use crate::exit::Failure;

/// `dlock doctor`
#[derive(Debug, Default, Args)]
#[command(after_help = "With --help: examples, environment and exit status.", after_long_help = include_str!("help/doctor.txt"))]
pub struct DoctorArguments {
    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

/// The plan of `dlock doctor`.
pub struct DoctorPlan {
    /// The access to the store; the connect timeout applies to each step.
    pub access: StoreTarget,
    /// Print JSON.
    pub json: bool,
}

impl DoctorPlan {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Bad values (64), bad configuration or URL (78).
    pub fn new(arguments: &DoctorArguments) -> Result<DoctorPlan, Failure> {
        let mut access = StoreTarget::of(&arguments.common, &[])?;
        // The checks report these as well, accepted or not.
        let found = [access.store.warning(), access.store.insecure().map(str::to_owned)];
        access.notices.retain(|notice| found.iter().flatten().all(|found| found != notice));
        Ok(DoctorPlan { access, json: arguments.json })
    }
}
