//! The limits of settings, whatever their source.

use std::time::Duration;

use super::Sourced;
use crate::duration::show;
use crate::exit::Failure;
use crate::lease::validity::{LONGEST_TTL, SHORTEST_TTL};

/// The longest `--min-hold`: a lock that outlives its dlock for longer is a mistake.
const LONGEST_MIN_HOLD: Duration = Duration::from_secs(31 * 24 * 3600);
/// The limit of `--note` and `--reason`, which are stored beside the lock.
const LONGEST_NOTE: usize = 1000;
/// The default lease: how long a crashed host blocks other clients.
pub(super) const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// Checks the value of a setting, if it is set.
///
/// # Errors
/// It is out of range (64, or 78 if it does not come from the command line).
pub(super) fn check<T>(
    setting: &Option<Sourced<T>>,
    limit: impl FnOnce(&T) -> Result<(), String>,
) -> Result<(), Failure> {
    match setting {
        Some(Sourced { value, source }) => limit(value).map_err(|error| source.failure(error)),
        None => Ok(()),
    }
}

pub(super) fn check_ttl(ttl: &Duration) -> Result<(), String> {
    match (SHORTEST_TTL..=LONGEST_TTL).contains(ttl) {
        true => Ok(()),
        false => Err(format!("{} is not between 1s and 24h", show(*ttl))),
    }
}

pub(super) fn check_min_hold(min_hold: &Duration) -> Result<(), String> {
    match *min_hold > LONGEST_MIN_HOLD {
        true => Err(format!("{} is not between 0 and {}", show(*min_hold), show(LONGEST_MIN_HOLD))),
        false => Ok(()),
    }
}

pub(super) fn check_note(note: &str) -> Result<(), String> {
    match note.len() > LONGEST_NOTE {
        true => Err(format!("{} bytes are too many, at most {LONGEST_NOTE}", note.len())),
        false => Ok(()),
    }
}
