//! F58: what others have created under the name of a table runs nothing with our rights.

use crate::support::doctor::assert_found;
use crate::support::mariadb::{MariaDb, Product};
use crate::support::place::Place;
use crate::support::running::Exit;

const PRODUCTS: [Product; 3] = [Product::System, Product::MariaDb11_8, Product::Mysql9_7];

/// A function that notes by whose rights it runs.
const STEAL: &str = "CREATE FUNCTION steal(x BLOB) RETURNS INT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER BEGIN \
                     INSERT INTO loot VALUES (CURRENT_USER()); RETURN 1; END";

/// A server with a user that has all rights in the database, and a table to note such users in.
fn server(product: Product) -> (impl std::ops::Deref<Target = MariaDb>, String) {
    let server = MariaDb::lent_of(product);
    server.create_user("me", "", "ALL ON locks.*");
    server.sql("CREATE TABLE loot (who VARCHAR(100))");
    server.statement(STEAL);
    let url = server.url().replace("root", "me");
    (server, url)
}

/// Puts a view in place of a table, which has a row.
fn plant(server: &MariaDb, table: &str) {
    server.sql(&format!(
        "RENAME TABLE {table} TO own; CREATE SQL SECURITY INVOKER VIEW {table} AS SELECT * FROM own WHERE steal(name) = 1"
    ));
    server.sql(&format!("SELECT COUNT(*) FROM {table}; SELECT COUNT(*) FROM loot"));
    assert_eq!(server.sql("SELECT COUNT(*) > 0 FROM loot; DELETE FROM loot"), "1\n", "the view is harmless");
}

fn assert_harmless(server: &MariaDb, url: &str, table: &str) {
    let what = format!(
        "{table} is not a table (view), and would run what its creator wants with the rights of this user: drop it, or use \
         another database"
    );
    let place = Place::new();
    let output = place.run().backend(url).command(["touch", "t"]).output();
    assert_eq!(output.exit, Exit::Code(78), "{}", output.stderr);
    assert!(output.stderr.contains(&what), "{}", output.stderr);
    assert!(!place.path("t").exists());
    for command in [&["status"][..], &["status", "x"], &["break", "--yes", "x"]] {
        let output = place.bare().args(command).args(["-b", url]).output();
        assert_eq!(output.exit, Exit::Code(78), "{command:?} {}", output.stderr);
    }
    let doctor = place.bare().args(["doctor", "--json", "-b", url]).output();
    assert_found(&doctor, "problem", "table", &what);
    assert_eq!(server.sql("SELECT * FROM loot"), "", "code of others ran");
}

#[test]
fn a_view_in_place_of_the_table_runs_nothing() {
    for product in PRODUCTS {
        let (server, url) = server(product);
        let ran = Place::new().run().backend(&url).command(["true"]).output();
        assert_eq!(ran.outcome(), (Exit::Code(0), "", ""));
        plant(&server, "dlock_locks");
        assert_harmless(&server, &url, "dlock_locks");
        assert_harmless(&server, &format!("{url}?recipe=get_lock"), "dlock_locks");
    }
}

#[test]
fn a_view_in_place_of_the_table_of_shedlock_runs_nothing() {
    for product in PRODUCTS {
        let (server, url) = server(product);
        let url = format!("{url}?recipe=shedlock&clock=db-utc");
        let init = Place::new().bare().args(["doctor", "--init", "-b", &url]).output();
        assert_eq!(init.exit, Exit::Code(0), "{}", init.stdout);
        let ran = Place::new().run().backend(&url).command(["true"]).output();
        assert_eq!(ran.outcome(), (Exit::Code(0), "", ""));
        plant(&server, "shedlock");
        assert_harmless(&server, &url, "shedlock");
    }
}

/// The manual says so.
#[test]
fn nothing_else_of_a_table_runs_with_the_rights_of_its_user() {
    for product in PRODUCTS {
        let (server, url) = server(product);
        for column in [
            "x INT GENERATED ALWAYS AS (steal(name)) VIRTUAL",
            "x INT GENERATED ALWAYS AS (steal(name)) STORED",
            "x INT DEFAULT (steal(name))",
            "x INT, CHECK (steal(name) = 1)",
        ] {
            let created =
                server.try_sql(&format!("CREATE TABLE planted (name VARCHAR(9) PRIMARY KEY, {column})"));
            let error = created.expect_err(column);
            assert!(error.contains("unction"), "{column}: {error}");
        }
        let run = || Place::new().run().backend(&url).command(["true"]).output();
        assert_eq!(run().outcome(), (Exit::Code(0), "", ""));
        for event in ["INSERT", "UPDATE"] {
            server.sql(&format!(
                "CREATE TRIGGER on_{event} BEFORE {event} ON dlock_locks FOR EACH ROW SET @stolen = steal(NEW.name)"
            ));
        }
        assert_eq!(run().outcome(), (Exit::Code(0), "", ""));
        assert_eq!(server.sql("SELECT DISTINCT who FROM loot"), "root@localhost\n");
    }
}
