//! The limits of settings, whatever their source.

use std::time::Duration;

use super::{Settings, Source, Sourced};
use crate::duration::show;
use crate::exit::Failure;
use crate::lease::validity::{LONGEST_TTL, SHORTEST_TTL, Terms};

/// The longest `--min-hold`: a lock that outlives its dlock for longer is a mistake.
const LONGEST_MIN_HOLD: Duration = Duration::from_secs(31 * 24 * 3600);
/// The limit of `--note`, which is stored beside the lock.
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

/// Checks the settings as far as possible before a store is known, and returns lease, grace and timeouts.
///
/// # Errors
/// A value is out of range, or two contradict each other (64, or 78 if they do not come from the command line).
pub(super) fn terms(settings: &Settings, connect_timeout: Duration) -> Result<Terms, Failure> {
    settings.check()?;
    let ttl = settings.ttl();
    let Some(Sourced { value: grace, source }) = settings.grace.clone() else {
        return Ok(Terms { ttl, grace: Terms::default_grace(ttl), connect_timeout });
    };
    let most = Terms::longest_grace(ttl);
    if grace <= most {
        return Ok(Terms { ttl, grace, connect_timeout });
    }
    let ttl_source = settings.ttl.as_ref().map_or(&Source::Default, |ttl| &ttl.source);
    let ttl_named = match ttl_source {
        Source::Flag(_) | Source::Default => String::new(),
        elsewhere => format!(" ({elsewhere})"),
    };
    let longer = match ttl_source {
        Source::Environment(name) => *name,
        _ => "--ttl",
    };
    let why = format!(
        "{} does not fit into a ttl of {}{ttl_named}: at most {}, or SIGTERM would come before half of the lease has \
         elapsed",
        show(grace),
        show(ttl),
        show(most)
    );
    Err(match source {
        Source::Flag(flag) => {
            let why = format!("{flag} {why}; shorten {flag} or lengthen {longer}");
            // Only two flags contradict each other.
            if ttl_source.is_configuration() { Failure::config(why) } else { Failure::usage(why) }
        }
        source => source.failure(format!("{why}; shorten it or lengthen {longer}")),
    })
}
