//! The recipes: what keeps a lock besides its row.

use super::key::Rule;
use crate::backend::ledger::GateLifetime;
use crate::backend::shedlock::{self, Clock};
use crate::backend::url::UrlError;

/// What the locks of a role are that may not have the table.
pub(super) const GATE_ALONE: &str =
    "exclusive only, without a queue, slots, nested runs, tokens, --once-per, break and history";

/// What keeps a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Recipe {
    /// Its row.
    #[default]
    Table,
    /// An advisory lock of its holder's session, with a key by this rule.
    Advisory(Rule),
    /// A row in the table of ShedLock, by this clock.
    ShedLock(Clock),
}

/// The options of a URL that name a recipe, and what it needs to know.
#[derive(Default)]
pub(super) struct Choice<'a> {
    pub(super) recipe: Option<&'a str>,
    pub(super) key: Option<&'a str>,
    pub(super) prefix: Option<&'a str>,
    pub(super) clock: Option<&'a str>,
    pub(super) zone: Option<&'a str>,
}

impl Recipe {
    /// Returns the recipe that the options name.
    ///
    /// # Errors
    /// There is no such recipe, or it lacks an option, or does not have it.
    pub(super) fn of(choice: &Choice<'_>) -> Result<Recipe, UrlError> {
        let Choice { recipe, key, prefix, clock, zone } = *choice;
        let recipe = recipe.unwrap_or("table");
        let others = [
            ("key", key, "advisory"),
            ("prefix", prefix, "advisory"),
            ("clock", clock, "shedlock"),
            ("zone", zone, "shedlock"),
        ];
        match recipe {
            "table" | "advisory" | "shedlock" => {}
            other => {
                let text = format!("unknown recipe '{other}' (known: table, advisory, shedlock)");
                return Err(UrlError::new(text).about("recipe"));
            }
        }
        let unfit = others.into_iter().find(|(_, value, of)| value.is_some() && *of != recipe);
        if let Some((option, _, of)) = unfit {
            return Err(UrlError::new(format!("{option}= is for recipe={of}")).about(option));
        }
        match recipe {
            "advisory" => Rule::of(key, prefix).map(Recipe::Advisory),
            "shedlock" => Clock::parse(clock, zone).map(Recipe::ShedLock),
            _ => Ok(Recipe::Table),
        }
    }

    /// Returns the rule for the keys of advisory locks, if it takes them.
    pub(super) fn rule(&self) -> Option<Rule> {
        match self {
            Recipe::Table | Recipe::ShedLock(_) => None,
            Recipe::Advisory(rule) => Some(*rule),
        }
    }

    /// Returns what keeps the gate in front of a row.
    pub(super) fn gate_lifetime(&self) -> Option<GateLifetime> {
        match self {
            Recipe::Table => None,
            Recipe::Advisory(_) => Some(GateLifetime::Session),
            Recipe::ShedLock(_) => Some(GateLifetime::Lease),
        }
    }

    /// Returns the gate of one client, if it is a row of ShedLock.
    pub(super) fn shedlock(&self) -> Option<shedlock::Gate> {
        match self {
            Recipe::Table | Recipe::Advisory(_) => None,
            Recipe::ShedLock(clock) => Some(shedlock::Gate::new(clock.clone(), "")),
        }
    }

    /// Returns the options of a URL that differ from the defaults.
    pub(super) fn options(&self) -> Vec<String> {
        let rule = match self {
            Recipe::Table => return Vec::new(),
            Recipe::ShedLock(clock) => return vec![format!("recipe=shedlock&{}", clock.options())],
            Recipe::Advisory(rule) => *rule,
        };
        let mut options = vec!["recipe=advisory".to_owned()];
        if rule != Rule::default() {
            options.push(format!("key={}", rule.name()));
        }
        if let Rule::Rails(prefix @ (..=-1 | 1..)) = rule {
            options.push(format!("prefix={prefix}"));
        }
        options
    }
}
