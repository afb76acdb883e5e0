//! F57: where the table is, whatever the search path of a role says.

use crate::stores::conformance::rig::locate;
use crate::support::dlock::{BINARY, Dlock};
use crate::support::doctor::{assert_found, doctor, init};
use crate::support::place::Place;
use crate::support::postgres::Postgres;
use crate::support::running::{Exit, Output};

/// What an administrator runs for this URL.
fn grant(server: &Postgres, url: &str) {
    for command in locate(url).expect("a URL").policy().commands {
        // The role may exist.
        let _ = server.try_sql(&command);
    }
}

fn url(server: &Postgres, role: &str) -> String {
    format!("postgres://{role}@127.0.0.1:{}/postgres", server.port())
}

#[track_caller]
fn assert_refused(output: &Output, exit: i32, text: &str) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(exit), ""), "{}", output.stderr);
    assert!(output.stderr.contains(text), "{}", output.stderr);
}

fn run(url: &str) -> Output {
    Dlock::run().backend(url).sh("echo ran").output()
}

fn assert_ran(url: &str) {
    assert_eq!(run(url).outcome(), (Exit::Code(0), "ran\n", ""), "{url}");
}

/// With the default search path, the schema of one role comes first for it.
#[test]
fn two_roles_with_different_search_paths_never_hold_one_lock() {
    let server = Postgres::start();
    server.sql("CREATE ROLE app LOGIN; CREATE ROLE web LOGIN; CREATE SCHEMA app AUTHORIZATION app");
    server.sql("GRANT CREATE ON SCHEMA public TO app, web");
    let (app, web) = (url(&server, "app"), url(&server, "web"));
    let mut held = Dlock::run().backend(&app).sh("echo ready; exec sleep 600").spawn();
    held.await_ready();
    assert_eq!(server.sql("SELECT schemaname FROM pg_tables WHERE tablename = 'dlock_locks'"), "public");
    assert_refused(&run(&web), 78, "the table public.dlock_locks belongs to app");
    grant(&server, &web);
    assert_eq!(run(&format!("{web}?owner=app")).exit, Exit::Code(75));
    held.signal(nix::sys::signal::Signal::SIGTERM);
    held.wait();
    assert_ran(&format!("{web}?owner=app"));
}

/// The location in `DLOCK_HELD` is read back, whatever the name of the owner is.
#[test]
fn a_lock_in_the_table_of_another_role_is_checked_inside_the_run() {
    let server = Postgres::start();
    server.sql("CREATE ROLE web LOGIN");
    for owner in ["app", "app_owner", "app%20owner"] {
        let url = format!("{}?owner={owner}", url(&server, "web"));
        server.sql("GRANT CREATE ON SCHEMA public TO web");
        let output = Dlock::run().backend(&url).sh(&format!("{BINARY} check x && echo checked")).output();
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
        assert!(output.stdout.ends_with("checked\n"), "{}", output.stdout);
    }
}

/// An older dlock has created it there: its state is neither used nor forgotten without a word.
#[test]
fn a_table_elsewhere_in_the_search_path_is_refused_until_one_is_named() {
    let server = Postgres::start();
    server.sql("CREATE ROLE app LOGIN; CREATE SCHEMA app AUTHORIZATION app");
    let app = url(&server, "app");
    let (old, new) = (format!("{app}?table=app.dlock_locks"), format!("{app}?table=public.dlock_locks"));
    assert_ran(&old);
    let kept = Dlock::run().backend(&old).args(["--min-hold", "10m"]).sh("echo ran").output();
    assert_eq!(kept.outcome(), (Exit::Code(0), "ran\n", ""));
    let sentence = "app.dlock_locks is in the search path of app, but locks are kept in public.dlock_locks, which does not \
                    exist: move it there (ALTER TABLE ... SET SCHEMA), or name it with table=app.dlock_locks";
    assert_refused(&run(&app), 78, sentence);
    let status = Place::new().bare().args(["status", "-b", &app, "x"]).output();
    assert_refused(&status, 78, sentence);
    assert_found(&doctor(&app), "problem", "table", sentence);
    assert_eq!(run(&old).exit, Exit::Code(75));
    grant(&server, &app);
    let sentence = "app.dlock_locks is in the search path of app, but locks are kept in public.dlock_locks: remove one of \
                    them, or name the one to use with table=app.dlock_locks or table=public.dlock_locks";
    assert_refused(&run(&app), 78, sentence);
    assert_ran(&new);
    assert_eq!(run(&old).exit, Exit::Code(75));
    // The hold moves with its table.
    server.sql("DROP TABLE public.dlock_locks; ALTER TABLE app.dlock_locks SET SCHEMA public");
    assert_eq!(run(&app).exit, Exit::Code(75));
    assert_eq!(run(&new).exit, Exit::Code(75));
}

#[test]
fn the_table_of_shedlock_is_in_public_unless_another_is_named() {
    const COLUMNS: &str = "(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, locked_by \
                           VARCHAR(255) NOT NULL, PRIMARY KEY (name))";
    let server = Postgres::start();
    server.sql(
        "CREATE ROLE app LOGIN; CREATE SCHEMA app AUTHORIZATION app; GRANT CREATE ON SCHEMA public TO app",
    );
    server.sql(&format!("SET ROLE app; CREATE TABLE app.shedlock {COLUMNS}"));
    let app = format!("{}?recipe=shedlock&clock=db-utc", url(&server, "app"));
    let sentence = "app.shedlock is in the search path of app, but locks are kept in public.shedlock, which does not exist: \
                    move it there (ALTER TABLE ... SET SCHEMA), or name it with shedlock_table=app.shedlock";
    assert_refused(&run(&app), 78, sentence);
    assert_ran(&format!("{app}&shedlock_table=app.shedlock"));
    assert_eq!(server.sql("SELECT count(*) FROM app.shedlock"), "1");
    server.sql("ALTER TABLE app.shedlock SET SCHEMA public");
    assert_ran(&app);
    let elsewhere = format!("{app}&shedlock_table=app.shedlock");
    assert_refused(&run(&elsewhere), 78, "there is no table app.shedlock");
    let init = Place::new().bare().args(["doctor", "--init", "-b", &elsewhere]).output();
    assert_eq!(init.exit, Exit::Code(0), "{}{}", init.stdout, init.stderr);
    assert_ran(&elsewhere);
}

/// The case of a name counts, as within double quotes, and nothing else has to be quoted.
#[test]
fn a_name_without_a_schema_is_in_public() {
    let server = Postgres::start();
    server.sql("CREATE SCHEMA \"Jobs\"");
    for (option, table) in
        [("Locks", "public.Locks"), ("Jobs.Locks", "Jobs.Locks"), ("select", "public.select")]
    {
        assert_ran(&format!("{}?table={option}", server.url()));
        let (schema, name) = table.split_once('.').expect("a schema");
        assert_eq!(server.sql(&format!("SELECT count(*) FROM \"{schema}\".\"{name}\"")), "1");
    }
    // A session would have it for itself.
    for schema in ["pg_temp", "pg_catalog", "information_schema"] {
        let output = run(&format!("{}?table={schema}.locks", server.url()));
        let text = format!(
            "dlock: --backend: table= cannot be in the schema {schema}, which belongs to the server\n"
        );
        assert_eq!(output.outcome(), (Exit::Code(78), "", text.as_str()));
    }
}

#[test]
fn doctor_shows_schema_owner_and_kind_of_the_table() {
    let server = Postgres::start();
    server.sql("CREATE ROLE web LOGIN; CREATE SCHEMA jobs");
    let web = format!("{}?table=jobs.locks", url(&server, "web"));
    grant(&server, &web);
    let output = doctor(&web);
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    let found = "jobs.locks exists: a table of postgres, in the schema jobs of postgres";
    assert_found(&output, "ok", "table", found);
    // That server is shared by all tests.
    let found = "public.dlock_locks exists: a table of postgres, in the schema public of pg_database_owner";
    assert_found(&init(&server.url()), "ok", "table", found);
}
