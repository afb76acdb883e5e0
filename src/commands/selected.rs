//! The names of the selected locks.

use super::within;
use crate::backend::StoreError;
use crate::backend::admin::{Listed, LockAdmin};
use crate::lock::{LockName, natural_order};
use crate::settings::Selection;

/// Connects, and returns the selected locks: those that were named, then the others in the order for people.
///
/// # Errors
/// The store could not be queried, or refused.
pub(super) async fn selected(
    selection: &Selection,
    store: &mut dyn LockAdmin,
    which: Listed,
) -> Result<Vec<LockName>, StoreError> {
    let limit = selection.target.connect_timeout;
    within(limit, store.connect()).await?;
    let mut names = selection.names.clone();
    if selection.needs_list() {
        let mut listed = within(limit, store.list(which)).await?;
        listed.sort_by(natural_order);
        names.extend(
            listed.into_iter().filter(|name| selection.matches(name) && !selection.names.contains(name)),
        );
    }
    Ok(names)
}
