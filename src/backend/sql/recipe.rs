//! The recipes: what keeps a lock besides its row.

use crate::backend::ledger::GateLifetime;
use crate::backend::options::Options;
use crate::backend::shedlock::{self, Clock};
use crate::backend::url::UrlError;

/// What keeps a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recipe<S> {
    /// Its row.
    #[default]
    Table,
    /// A lock of its holder's session, and what that depends on.
    Session(S),
    /// A row in the table of ShedLock, by this clock.
    ShedLock(Clock),
}

impl<S> Recipe<S> {
    /// Returns the recipe that the options name. The one with the lock of a session has this name and these options, which
    /// `session` reads.
    ///
    /// # Errors
    /// It lacks an option, or does not have it.
    pub fn of(
        options: &mut Options,
        name: &str,
        own: &[&str],
        session: impl FnOnce(&mut Options) -> Result<S, UrlError>,
    ) -> Result<Recipe<S>, UrlError> {
        let recipe = options.get("recipe");
        if recipe != name {
            options.reject(own, |option| format!("{option}= is for recipe={name}"))?;
        }
        if recipe != "shedlock" {
            let of_shedlock = ["clock", "zone", "shedlock_table"];
            options.reject(&of_shedlock, |option| format!("{option}= is for recipe=shedlock"))?;
        }
        match recipe {
            "table" => Ok(Recipe::Table),
            "shedlock" => Clock::of(options).map(Recipe::ShedLock),
            _ => session(options).map(Recipe::Session),
        }
    }

    /// Returns what the lock of a session depends on, if there is one.
    pub fn session(&self) -> Option<&S> {
        match self {
            Recipe::Session(session) => Some(session),
            Recipe::Table | Recipe::ShedLock(_) => None,
        }
    }

    /// Returns the gate of one client, if it is a row of ShedLock, in which names begin with the prefix.
    pub fn shedlock(&self, prefix: &str) -> Option<shedlock::Gate> {
        match self {
            Recipe::ShedLock(clock) => Some(shedlock::Gate::new(clock.clone(), prefix)),
            Recipe::Table | Recipe::Session(_) => None,
        }
    }

    /// Returns what keeps the gate in front of a row.
    pub fn gate_lifetime(&self) -> Option<GateLifetime> {
        match self {
            Recipe::Table => None,
            Recipe::Session(_) => Some(GateLifetime::Session),
            Recipe::ShedLock(_) => Some(GateLifetime::Lease),
        }
    }
}
