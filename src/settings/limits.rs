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

/// Returns the value of a setting, if it was given.
pub(super) fn value<T: Copy>(setting: &Option<Sourced<T>>) -> Option<T> {
    setting.as_ref().map(|known| known.value)
}

pub(super) fn min_hold(settings: &Settings) -> Result<Duration, Failure> {
    match &settings.min_hold {
        Some(Sourced { value, source }) if *value > LONGEST_MIN_HOLD => {
            Err(source.failure(format!("{} is not between 0 and {}", show(*value), show(LONGEST_MIN_HOLD))))
        }
        known => Ok(value(known).unwrap_or_default()),
    }
}

pub(super) fn note(settings: &Settings) -> Result<Option<String>, Failure> {
    match settings.note.clone() {
        Some(Sourced { value, source }) if value.len() > LONGEST_NOTE => {
            Err(source.failure(format!("{} bytes are too many, at most {LONGEST_NOTE}", value.len())))
        }
        note => Ok(note.map(|note| note.value)),
    }
}

/// Checks the settings as far as possible before a store is known.
///
/// # Errors
/// A value is out of range, or two contradict each other (64, or 78 if they do not come from the command line).
pub(super) fn check(settings: &Settings) -> Result<Terms, Failure> {
    min_hold(settings)?;
    note(settings)?;
    terms(settings, Duration::ZERO)
}

/// Checks the length of a lease.
pub(super) fn checked_ttl(ttl: Duration, source: &Source) -> Result<Duration, Failure> {
    match (SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
        true => Ok(ttl),
        false => Err(source.failure(format!("{} is not between 1s and 24h", show(ttl)))),
    }
}

/// Returns lease, grace and timeouts, if they are compatible.
pub(super) fn terms(settings: &Settings, connect_timeout: Duration) -> Result<Terms, Failure> {
    let default = Sourced { value: DEFAULT_TTL, source: Source::Default };
    let Sourced { value: ttl, source: ttl_source } = settings.ttl.clone().unwrap_or(default);
    checked_ttl(ttl, &ttl_source)?;
    let Some(Sourced { value: grace, source }) = settings.grace.clone() else {
        return Ok(Terms { ttl, grace: Terms::default_grace(ttl), connect_timeout });
    };
    let most = Terms::longest_grace(ttl);
    if grace <= most {
        return Ok(Terms { ttl, grace, connect_timeout });
    }
    let ttl_named = match &ttl_source {
        Source::Flag(_) | Source::Default => String::new(),
        elsewhere => format!(" ({elsewhere})"),
    };
    let longer = match &ttl_source {
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
