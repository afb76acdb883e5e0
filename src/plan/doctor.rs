//! What `dlock doctor` is to do.

use super::StoreTarget;
use crate::cli::DoctorArguments;
use crate::exit::Failure;

/// What `dlock doctor` is to do.
pub struct DoctorPlan {
    /// The way to the store, each step of which may take as long as a connection.
    pub access: StoreTarget,
    /// As JSON.
    pub json: bool,
}

impl DoctorPlan {
    /// Checks everything.
    ///
    /// # Errors
    /// Bad values (64), bad configuration or URL (78).
    pub fn new(arguments: &DoctorArguments) -> Result<DoctorPlan, Failure> {
        let mut access = StoreTarget::of(&arguments.common, &[])?;
        // These are found, too, accepted or not.
        let found = [access.store.warning(), access.store.insecure().map(str::to_owned)];
        access.notices.retain(|notice| found.iter().flatten().all(|found| found != notice));
        Ok(DoctorPlan { access, json: arguments.json })
    }
}
