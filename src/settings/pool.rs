//! Pools: names of several locks, of which a run takes the first that becomes free.

use super::source::Sourced;
use crate::lock::LockName;

/// The maximum number of locks of a run: each uses several descriptors, and a process may have about a thousand.
pub const MOST_NAMES: usize = 64;

/// `[pools.NAME]`
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) names: Sourced<Vec<LockName>>,
}

/// Adds a name to those of which a run takes one.
///
/// # Errors
/// It is there already, or there are too many.
pub(super) fn add(names: &mut Vec<LockName>, name: LockName) -> Result<(), String> {
    if names.contains(&name) {
        return Err(format!("'{name}' is named twice"));
    }
    if names.len() == MOST_NAMES {
        return Err(format!("at most {MOST_NAMES} names"));
    }
    names.push(name);
    Ok(())
}
