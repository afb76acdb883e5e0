//! The names of the selected locks.

use super::within;
use crate::backend::StoreError;
use crate::backend::admin::LockAdmin;
use crate::lock::{LockName, natural_order};
use crate::settings::Selection;

/// Which locks of a store a pattern is matched against.
#[derive(Clone, Copy)]
pub(super) enum Listed {
    /// Those that are held or awaited.
    InUse,
    /// Those with a history.
    WithHistory,
}

/// Connects, and returns the selected locks: those that were named, then the others in the order for people.
///
/// # Errors
/// The store could not be queried, or refused.
pub(super) async fn selected(
    selection: &Selection,
    store: &mut dyn LockAdmin,
    listed: Listed,
) -> Result<Vec<LockName>, StoreError> {
    let limit = selection.target.connect_timeout;
    within(limit, store.connect()).await?;
    let mut names = selection.names.clone();
    if selection.needs_list() {
        let listed = match listed {
            Listed::InUse => store.list(),
            Listed::WithHistory => store.list_with_history(),
        };
        let mut listed = within(limit, listed).await?;
        listed.sort_by(natural_order);
        names.extend(
            listed.into_iter().filter(|name| selection.matches(name) && !selection.names.contains(name)),
        );
    }
    Ok(names)
}
