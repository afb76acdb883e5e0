//! The recipes: what a lock is, besides its row in the table.

use crate::backend::url::UrlError;

/// What excludes others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// The lease in the row.
    Table,
    /// `GET_LOCK`: a lock that ends with the session, see [`get_lock`](super::get_lock).
    GetLock,
}

const RECIPES: [Recipe; 2] = [Recipe::Table, Recipe::GetLock];

impl Recipe {
    /// # Errors
    /// There is no recipe of this name.
    pub(super) fn parse(name: &str) -> Result<Recipe, UrlError> {
        RECIPES.into_iter().find(|recipe| recipe.name() == name).ok_or_else(|| {
            let known = RECIPES.map(Recipe::name).join(", ");
            UrlError::new(format!("unknown recipe '{name}' (known: {known})"))
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Recipe::Table => "table",
            Recipe::GetLock => "get_lock",
        }
    }
}
