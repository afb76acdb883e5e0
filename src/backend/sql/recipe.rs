//! The recipes: what keeps a lock besides its row.

use crate::backend::ledger::GateLifetime;
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

/// The options of a URL that name a recipe, and what it needs to know.
#[derive(Default)]
pub struct Choice<'a> {
    /// `recipe`
    pub recipe: Option<&'a str>,
    /// `clock`
    pub clock: Option<&'a str>,
    /// `zone`
    pub zone: Option<&'a str>,
}

impl<S> Recipe<S> {
    /// Returns the recipe that the options name. The one with the lock of a session has this name and these options, of
    /// which `session` reads the values.
    ///
    /// # Errors
    /// There is no such recipe, or it lacks an option, or does not have it.
    pub fn of(
        choice: &Choice<'_>,
        name: &'static str,
        options: &[(&'static str, Option<&str>)],
        session: impl FnOnce() -> Result<S, UrlError>,
    ) -> Result<Recipe<S>, UrlError> {
        let Choice { recipe, clock, zone } = *choice;
        let recipe = recipe.unwrap_or("table");
        if !["table", name, "shedlock"].contains(&recipe) {
            let text = format!("unknown recipe '{recipe}' (known: table, {name}, shedlock)");
            return Err(UrlError::new(text).about("recipe"));
        }
        let of_session = options.iter().map(|(option, value)| (*option, *value, name));
        let all = of_session.chain([("clock", clock, "shedlock"), ("zone", zone, "shedlock")]);
        let mut unfit = all.filter(|(_, value, of)| value.is_some() && *of != recipe);
        if let Some((option, _, of)) = unfit.next() {
            return Err(UrlError::new(format!("{option}= is for recipe={of}")).about(option));
        }
        match recipe {
            "table" => Ok(Recipe::Table),
            "shedlock" => Clock::parse(clock, zone).map(Recipe::ShedLock),
            _ => session().map(Recipe::Session),
        }
    }

    /// Returns the options that name it, unless it is the default.
    pub fn options(&self, session: impl FnOnce(&S) -> String) -> Option<String> {
        match self {
            Recipe::Table => None,
            Recipe::Session(own) => Some(session(own)),
            Recipe::ShedLock(clock) => Some(format!("recipe=shedlock&{}", clock.options())),
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
