//! The plan of `dlock doctor`.

use super::StoreTarget;
use crate::cli::DoctorArguments;
use crate::exit::Failure;

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
