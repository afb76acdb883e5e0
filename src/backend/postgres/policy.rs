//! The table, and the rights that dlock needs, as the statements that create and grant them.

use super::location::Location;
use super::options::{PUBLIC, Table};
use super::recipe::{GATE_ALONE, Recipe};
use crate::backend::location::Policy;
use crate::backend::shedlock::Dialect;
use crate::backend::sql;

/// Returns the statement that creates the table. Its rows change often and are never deleted: room for their next values
/// in the same page keeps it small (heap-only tuples).
pub(super) fn create_table(table: &Table) -> String {
    sql::create_table(&table.quoted(), "pg_catalog.bytea", "pg_catalog.text", "", " WITH (fillfactor = 50)")
}

/// Returns the statements that give the role of this location exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let role = quoted(&location.user);
    let database = quoted(location.database.as_deref().unwrap_or(&location.user));
    let mut commands = vec![
        format!("CREATE ROLE {role} LOGIN;"),
        format!("GRANT CONNECT ON DATABASE {database} TO {role};"),
    ];
    let mut tables = vec![(&location.table, create_table(&location.table))];
    if let Recipe::ShedLock(_) = location.recipe {
        let table = &location.shedlock_table;
        tables.push((table, Dialect::Postgres.create_table(&table.quoted())));
    }
    let mut schemas: Vec<&str> = tables.iter().map(|(table, _)| table.schema.as_str()).collect();
    schemas.dedup();
    for schema in schemas {
        if schema != PUBLIC {
            commands.push(format!("CREATE SCHEMA IF NOT EXISTS {};", quoted(schema)));
        }
        commands.push(format!("GRANT USAGE ON SCHEMA {} TO {role};", quoted(schema)));
    }
    for (table, create) in tables {
        commands.push(format!("{create};"));
        commands.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {role};", table.quoted()));
    }
    let optional = match location.recipe.session() {
        None => String::new(),
        Some(_) => format!(". Advisory locks need no right. Without the table they are {GATE_ALONE}"),
    };
    let note = "run this with psql as a superuser or as the owner of the database, connected to it, without the first line if \
                the role exists; then set its password, with \\password, unless pg_hba.conf authenticates it otherwise. \
                Only dlock doctor deletes, its own scratch lock"
        .to_owned();
    let note = note + &optional;
    Policy { commands, note }
}
