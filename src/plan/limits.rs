//! The limits of what can be set, wherever it was.

use std::time::Duration;

use crate::config::{Settings, Source, Sourced};
use crate::duration::show;
use crate::exit::Failure;
use crate::lease::validity::{LONGEST_TTL, SHORTEST_TTL, Terms};

/// A lock that outlives its dlock for longer than this is a mistake.
const LONGEST_MIN_HOLD: Duration = Duration::from_secs(31 * 24 * 3600);
/// `--note` is stored beside the lock, so it is kept short.
const LONGEST_NOTE: usize = 1000;
/// How long a crashed host blocks the others.
pub(super) const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// What was said of a setting, if anything.
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

/// Checks what can be checked of settings before a store is known.
///
/// # Errors
/// A value is out of its range, or two do not fit (64, or 78 where they come from elsewhere than the command line).
pub(super) fn check(settings: &Settings) -> Result<Terms, Failure> {
    min_hold(settings)?;
    note(settings)?;
    terms(settings, Duration::ZERO)
}

/// The length of a lease, if it can be one.
pub(super) fn checked_ttl(ttl: Duration, source: &Source) -> Result<Duration, Failure> {
    match (SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
        true => Ok(ttl),
        false => Err(source.failure(format!("{} is not between 1s and 24h", show(ttl)))),
    }
}

/// Lease, grace and time-outs, if they fit into each other.
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
        "{} does not fit into a ttl of {}{ttl_named}: at most {}, or SIGTERM would come before half of the lease is over",
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
