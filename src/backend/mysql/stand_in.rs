//! What is found in place of a table: a view with SQL SECURITY INVOKER runs stored functions of its creator with the
//! rights of its reader. Nothing else of a table does: triggers run with the rights of their definer, and neither
//! generated columns nor defaults nor checks can call stored functions
//! (<https://dev.mysql.com/doc/refman/9.4/en/stored-objects-security.html>).

use super::recipe::Recipe;
use super::reply::{self, Row};
use super::table::literal;
use crate::backend::{shedlock, sql};

/// Returns the tables of a recipe.
pub(super) fn tables(recipe: &Recipe) -> &'static [&'static str] {
    match recipe {
        Recipe::Table | Recipe::Session(_) => &[sql::TABLE],
        Recipe::ShedLock(_) => &[sql::TABLE, shedlock::TABLE],
    }
}

/// Returns the statement that selects the names of those that exist in the database of the connection, and what they are.
/// It opens none of them.
pub(super) fn kinds(recipe: &Recipe) -> String {
    // Each by its whole name, so that the server looks at no other table.
    let kind = |table: &&str| {
        format!(
            "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = \
             _utf8mb4 {}",
            literal(table)
        )
    };
    tables(recipe).iter().map(kind).collect::<Vec<_>>().join(" UNION ALL ")
}

/// Returns why the first of these rows of [`kinds`] that is not about a table cannot be used.
pub(super) fn among(kinds: &[Row]) -> Option<String> {
    let text = |row: &Row, column| reply::text(row, column).unwrap_or_default();
    let found = kinds.iter().find(|row| text(row, 1) != "BASE TABLE")?;
    Some(format!(
        "{} is not a table ({}), and would run what its creator wants with the rights of this user: drop it, or use another \
         database",
        text(found, 0),
        text(found, 1).to_lowercase()
    ))
}
