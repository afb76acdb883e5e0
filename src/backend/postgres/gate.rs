//! The recipes: what keeps a lock besides its row.

use super::key::Rule;
use crate::backend::url::UrlError;

/// What keeps a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Recipe {
    /// Its row.
    #[default]
    Table,
    /// An advisory lock of its holder's session, with a key by this rule.
    Advisory(Rule),
}

impl Recipe {
    /// Reads the options `recipe`, `key` and `prefix`.
    ///
    /// # Errors
    /// There is no such recipe, or the other options do not fit.
    pub(super) fn of(
        recipe: Option<&str>,
        key: Option<&str>,
        prefix: Option<&str>,
    ) -> Result<Recipe, UrlError> {
        match recipe {
            Some("advisory") => Rule::of(key, prefix).map(Recipe::Advisory),
            Some("table") | None => match key.map(|_| "key").or(prefix.map(|_| "prefix")) {
                None => Ok(Recipe::Table),
                Some(option) => Err(UrlError::new(format!("{option}= is for recipe=advisory")).about(option)),
            },
            Some(other) => {
                let text = format!("unknown recipe '{other}' (known: table, advisory)");
                Err(UrlError::new(text).about("recipe"))
            }
        }
    }

    /// Returns the rule for the keys of advisory locks, if it takes them.
    pub(super) fn rule(self) -> Option<Rule> {
        match self {
            Recipe::Table => None,
            Recipe::Advisory(rule) => Some(rule),
        }
    }

    /// Returns the options of a URL that differ from the defaults.
    pub(super) fn options(self) -> Vec<String> {
        let Some(rule) = self.rule() else { return Vec::new() };
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
