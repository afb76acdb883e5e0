//! The recipes: what a lock is, besides its row in the table.

use crate::backend::ledger::GateLifetime;
use crate::backend::shedlock::{self, Clock};
use crate::backend::url::UrlError;

/// What excludes others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// The lease in the row.
    Table,
    /// `GET_LOCK`: a lock that ends with the session, see [`get_lock`](super::get_lock).
    GetLock,
    /// A row in the table of ShedLock, by this clock.
    ShedLock(Clock),
}

impl Recipe {
    /// Returns the recipe that these options name.
    ///
    /// # Errors
    /// There is none of this name, or it lacks an option, or does not have it.
    pub(super) fn parse(name: &str, clock: Option<&str>, zone: Option<&str>) -> Result<Recipe, UrlError> {
        match (name, clock.and(Some("clock")).or(zone.and(Some("zone")))) {
            ("shedlock", _) => Ok(Recipe::ShedLock(Clock::parse(clock, zone)?)),
            ("table", None) => Ok(Recipe::Table),
            ("get_lock", None) => Ok(Recipe::GetLock),
            ("table" | "get_lock", Some(option)) => {
                Err(UrlError::new(format!("{option}= is for recipe=shedlock")).about(option))
            }
            _ => Err(UrlError::new(format!("unknown recipe '{name}' (known: table, get_lock, shedlock)"))
                .about("recipe")),
        }
    }

    /// Returns the options that name it, unless it is the default.
    pub(super) fn options(&self) -> Option<String> {
        match self {
            Recipe::Table => None,
            Recipe::GetLock => Some("recipe=get_lock".to_owned()),
            Recipe::ShedLock(clock) => Some(format!("recipe=shedlock&{}", clock.options())),
        }
    }

    /// Returns what keeps the gate in front of a row.
    pub(super) fn gate_lifetime(&self) -> Option<GateLifetime> {
        match self {
            Recipe::Table => None,
            Recipe::GetLock => Some(GateLifetime::Session),
            Recipe::ShedLock(_) => Some(GateLifetime::Lease),
        }
    }

    /// Returns the gate of one client, if it is a row of ShedLock.
    pub(super) fn shedlock(&self, prefix: &str) -> Option<shedlock::Gate> {
        match self {
            Recipe::Table | Recipe::GetLock => None,
            Recipe::ShedLock(clock) => Some(shedlock::Gate::new(clock.clone(), prefix)),
        }
    }
}
