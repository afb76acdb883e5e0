//! `dlock doctor`: its options and the store that it checks.

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

    #[command(flatten)]
    pub common: CommonArguments,
}

impl StoreTarget {
    /// Returns the store to check; the connect timeout applies to each step.
    ///
    /// # Errors
    /// Bad values (64), bad configuration or URL (78).
    pub fn of_doctor(arguments: &DoctorArguments) -> Result<StoreTarget, Failure> {
        let mut target = StoreTarget::of(&arguments.common, &[])?;
        // The checks report these as well, accepted or not.
        let found = [target.store.warning(), target.store.insecure().map(str::to_owned)];
        target.notices.retain(|notice| found.iter().flatten().all(|found| found != notice));
        Ok(target)
    }
}
