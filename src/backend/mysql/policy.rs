//! The table and the rights that dlock needs, as the statements that create and grant them.

use super::location::Location;
use super::recipe::Recipe;
use super::table::{create, quoted};
use crate::backend::location::Policy;
use crate::backend::shedlock::{self, Dialect};
use crate::backend::sql::TABLE;

/// Returns the statements that give the user of this location exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let user = location.security.credentials.username().unwrap_or("dlock");
    let user = format!("{}@'%'", text(user));
    let database = quoted(&location.database);
    let mut commands = vec![
        format!("USE {database};"),
        format!("{};", create()),
        format!("CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '<password>';"),
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.{TABLE} TO {user};"),
    ];
    if let Recipe::ShedLock(_) = location.recipe {
        commands.insert(2, format!("{};", Dialect::Mysql.create_table(shedlock::TABLE)));
        let table = shedlock::TABLE;
        commands.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.{table} TO {user};"));
    }
    let mut note = "run this with the client mariadb or mysql as an administrator, with a password in place of <password>; \
                DELETE is only for dlock doctor, which removes its scratch lock"
        .to_owned();
    if location.recipe.session().is_some() {
        note.push_str(
            "; GET_LOCK needs no right: a user without the table has exclusive locks, and nothing else",
        );
    }
    Policy { commands, note }
}

/// Returns a text as a literal that people can read.
fn text(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', "''"))
}
