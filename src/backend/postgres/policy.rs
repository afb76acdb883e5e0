//! The table, and the rights that dlock needs, as the statements that create and grant them.

use super::gate::{GATE_ALONE, Recipe};
use super::location::Location;
use crate::backend::location::Policy;
use crate::backend::shedlock::{self, Dialect};
use crate::backend::sql;

/// Returns the statement that creates the table. Its rows change often and are never deleted: room for their next values
/// in the same page keeps it small (heap-only tuples).
pub(super) fn create_table(table: &str) -> String {
    sql::create_table(table, "bytea", "text", "", " WITH (fillfactor = 50)")
}

/// Returns the statements that give the role of this location exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let table = &location.table;
    let role = format!("\"{}\"", location.user.replace('"', "\"\""));
    let mut commands = vec![format!("{};", create_table(table))];
    if let Some((schema, _)) = table.split_once('.') {
        commands.push(format!("GRANT USAGE ON SCHEMA {schema} TO {role};"));
    }
    commands.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role};"));
    if let Recipe::ShedLock(_) = location.recipe {
        commands.push(format!("{};", Dialect::Postgres.create_table()));
        commands.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {role};", shedlock::TABLE));
    }
    let optional = match location.recipe.rule() {
        None => String::new(),
        Some(_) => format!(". Advisory locks need no right. Without the table they are {GATE_ALONE}"),
    };
    let note = "run this with psql as the owner of the database: the role has to exist, with LOGIN and the right to connect \
                to the database. A role that may create tables needs none of this: the table is created at first use. Only dlock doctor deletes, its \
                own scratch lock"
        .to_owned();
    let note = note + &optional;
    Policy { commands, note }
}
