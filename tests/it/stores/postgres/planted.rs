//! F58: what a stranger has planted where the table is expected. The functions count their calls.

use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_found, doctor, init};
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::running::{Exit, Output};

const COLUMNS: &str = "name bytea NOT NULL PRIMARY KEY, format integer NOT NULL, version bigint NOT NULL, fencing_token \
                       bigint NOT NULL, ticket bigint NOT NULL, taken_at bigint NOT NULL, ends_at bigint NOT NULL, leases \
                       text NOT NULL, entries text NOT NULL, success text, outcomes text NOT NULL";

/// A stranger, who may create what he likes, and a role that runs dlock. What a sequence counts is not rolled back.
fn server(plan: Plan) -> Postgres {
    let server = Postgres::start_with(plan);
    server.sql(
        "CREATE ROLE mallory LOGIN; CREATE ROLE web LOGIN; GRANT CREATE ON DATABASE postgres TO mallory; GRANT CREATE ON \
         SCHEMA public TO mallory, web; SET ROLE mallory; CREATE SCHEMA mallory; GRANT USAGE ON SCHEMA mallory TO PUBLIC; \
         CREATE SEQUENCE mallory.calls; GRANT ALL ON mallory.calls TO PUBLIC; CREATE FUNCTION mallory.spy(text) RETURNS text \
         LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM nextval(''mallory.calls''); RETURN $1; END'; CREATE FUNCTION \
         mallory.trip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''mallory.calls''); RETURN NEW; END'; \
         CREATE DOMAIN mallory.watched AS text CHECK (mallory.spy('x') IS NOT NULL)",
    );
    server
}

/// What is planted, and the words that name it.
fn plants() -> Vec<(String, &'static str)> {
    let mut plants = plants_on_the_table();
    plants.extend(plants_on_a_column());
    plants
}

fn plants_on_the_table() -> Vec<(String, &'static str)> {
    let table = format!("CREATE TABLE public.dlock_locks ({COLUMNS})");
    let with = |more: &str| format!("{table}; {more}");
    let view = "CREATE VIEW public.dlock_locks AS SELECT decode(mallory.spy('00'), 'hex') AS name, 1 AS format, 1::bigint AS \
                version, 1::bigint AS fencing_token, 1::bigint AS ticket, 0::bigint AS taken_at, 0::bigint AS ends_at, '' AS \
                leases, '' AS entries, mallory.spy('x') AS success, mallory.spy('[]') AS outcomes";
    vec![
        (
            with(
                "CREATE TRIGGER spy BEFORE INSERT OR UPDATE ON public.dlock_locks FOR EACH ROW EXECUTE FUNCTION mallory.trip()",
            ),
            "the trigger spy",
        ),
        (view.to_owned(), "public.dlock_locks of mallory is a view"),
        (
            with("CREATE RULE spy AS ON INSERT TO public.dlock_locks DO ALSO SELECT mallory.spy('x')"),
            "the rule spy",
        ),
        (
            with(
                "CREATE POLICY spy ON public.dlock_locks USING (mallory.spy('x') IS NOT NULL); ALTER TABLE public.dlock_locks \
                 ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            ),
            "row security",
        ),
        (
            with(
                "CREATE TABLE mallory.child (CHECK (mallory.spy('x') IS NOT NULL)) INHERITS (public.dlock_locks); GRANT ALL ON \
                 mallory.child TO PUBLIC; INSERT INTO mallory.child VALUES ('x', 1, 1, 1, 1, 0, 0, '', '', NULL, '[]')",
            ),
            "the child mallory.child",
        ),
        (
            format!(
                "CREATE TABLE mallory.parent (extra text DEFAULT mallory.spy('x')); CREATE TABLE public.dlock_locks ({COLUMNS}) \
                 INHERITS (mallory.parent)"
            ),
            "the parent mallory.parent",
        ),
        (
            format!(
                "CREATE TABLE mallory.parent (); CREATE TABLE public.dlock_locks ({COLUMNS}) INHERITS (mallory.parent)"
            ),
            "the parent mallory.parent",
        ),
        (
            format!("CREATE TABLE public.dlock_locks ({COLUMNS}) PARTITION BY LIST (name)"),
            "public.dlock_locks of mallory is a partitioned table",
        ),
    ]
}

fn plants_on_a_column() -> Vec<(String, &'static str)> {
    let with = |more: &str| format!("CREATE TABLE public.dlock_locks ({COLUMNS}); {more}");
    vec![
        (
            with(
                "ALTER TABLE public.dlock_locks ADD extra text; ALTER TABLE public.dlock_locks ALTER extra SET DEFAULT mallory.spy('x')",
            ),
            "the default of the column extra",
        ),
        (
            with("ALTER TABLE public.dlock_locks ADD CONSTRAINT spy CHECK (mallory.spy('x') IS NOT NULL)"),
            "the constraint spy",
        ),
        (
            with(
                "ALTER TABLE public.dlock_locks ADD extra text GENERATED ALWAYS AS (mallory.spy(entries)) STORED",
            ),
            "the generated column extra",
        ),
        (with("CREATE INDEX spy ON public.dlock_locks (mallory.spy(entries))"), "the index spy"),
        (
            with("CREATE INDEX spy ON public.dlock_locks (version) WHERE mallory.spy('x') IS NOT NULL"),
            "the index spy",
        ),
        (with("ALTER TABLE public.dlock_locks ADD extra mallory.watched"), "the type of the column extra"),
        (
            with("ALTER TABLE public.dlock_locks ADD extra bigint GENERATED BY DEFAULT AS IDENTITY"),
            "the identity column extra",
        ),
        (
            with(
                "CREATE TABLE mallory.wanted (version bigint PRIMARY KEY); GRANT ALL ON mallory.wanted TO PUBLIC; ALTER TABLE \
                 public.dlock_locks ADD CONSTRAINT spy FOREIGN KEY (version) REFERENCES mallory.wanted",
            ),
            "the constraint spy",
        ),
    ]
}

const CLEAN: &str = "SET client_min_messages = error; DROP TABLE IF EXISTS mallory.child, mallory.wanted CASCADE; DO $$ BEGIN DROP \
                     VIEW IF EXISTS public.dlock_locks; EXCEPTION WHEN wrong_object_type THEN NULL; END $$; DO $$ BEGIN DROP \
                     TABLE IF EXISTS public.dlock_locks; EXCEPTION WHEN wrong_object_type THEN NULL; END $$; DROP TABLE IF \
                     EXISTS mallory.parent; ALTER SEQUENCE mallory.calls RESTART";

fn calls(server: &Postgres) -> String {
    server.sql("SELECT is_called FROM mallory.calls")
}

/// What a user may do with a lock.
fn commands(url: &str) -> Vec<Output> {
    let bare = |args: &[&str]| Place::new().bare().args(args).args(["-b", url]).output();
    vec![
        Dlock::run().backend(url).sh("echo ran").output(),
        Dlock::run().backend(url).args(["--shared", "--wait", "1s"]).sh("echo ran").output(),
        bare(&["status"]),
        bare(&["status", "x"]),
        bare(&["status", "--history"]),
        bare(&["acquire", "--ttl", "10m", "x"]),
        bare(&["break", "--yes", "x"]),
    ]
}

#[track_caller]
fn assert_refused(output: &Output, planted: &str, text: &str) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{planted}: {}", output.stderr);
    assert!(output.stderr.contains(text), "{planted}: {}", output.stderr);
}

#[track_caller]
fn assert_nothing_runs(server: &Postgres, url: &str, planted: &str, text: &str) {
    for output in commands(url) {
        assert_refused(&output, planted, text);
    }
    for report in [doctor(url), init(url)] {
        assert_eq!(report.exit, Exit::Code(1), "{}", report.stdout);
        assert_found(&report, "problem", "table", text);
    }
    assert_eq!(calls(server), "f", "{planted}: run with the rights of {url}");
}

fn url(server: &Postgres, role: &str) -> String {
    format!("postgres://{role}@127.0.0.1:{}/postgres", server.port())
}

/// Plants one after the other, and calls a function each time.
fn plant_each(server: &Postgres, plants: Vec<(String, &'static str)>, assert: impl Fn(&str, &'static str)) {
    for (planted, words) in plants {
        server.sql(&format!(
            "{CLEAN}; SET ROLE mallory; {planted}; GRANT ALL ON public.dlock_locks TO PUBLIC; RESET ROLE; ALTER SEQUENCE \
             mallory.calls RESTART"
        ));
        assert(&planted, words);
    }
}

#[test]
fn nothing_planted_in_the_table_runs() {
    let server = server(Plan::default());
    let url = |role: &str| url(&server, role);
    plant_each(&server, plants(), |planted, words| {
        let owner = match words.contains(" of mallory is ") {
            true => words,
            false => "the table public.dlock_locks belongs to mallory",
        };
        assert_nothing_runs(&server, &url("web"), planted, owner);
        assert_nothing_runs(&server, &url("postgres"), planted, owner);
        assert_nothing_runs(&server, &format!("{}?owner=mallory", url("postgres")), planted, owner);
        // Also when its owner is trusted.
        assert_nothing_runs(&server, &format!("{}?owner=mallory", url("web")), planted, words);
        if owner != words {
            // A brief look is enough for a table of the role itself, and for one of a superuser, to whom it was given.
            assert_nothing_runs(&server, &url("mallory"), planted, words);
            server.sql("ALTER TABLE public.dlock_locks OWNER TO postgres");
            assert_nothing_runs(&server, &url("web"), planted, words);
        }
    });
    server.sql(&format!("{CLEAN}; SET ROLE mallory; CREATE TABLE public.dlock_locks ({COLUMNS}); GRANT ALL ON public.dlock_locks TO PUBLIC"));
    let output = Dlock::run().backend(format!("{}?owner=mallory", url("web"))).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "a table without anything else");
}

/// Another version of the catalog can change what is found there, but not who asks.
#[test]
fn what_is_planted_is_found_on_todays_server() {
    let server = server(Plan::current());
    let refuses = |url: String, planted: &str, words: &str| {
        assert_refused(&Dlock::run().backend(&url).sh("echo ran").output(), planted, words);
        assert_eq!(calls(&server), "f", "{planted}");
    };
    let table = format!("CREATE TABLE public.dlock_locks ({COLUMNS})");
    let computed = format!(
        "{table}; ALTER TABLE public.dlock_locks ADD extra text GENERATED ALWAYS AS (upper(entries)) VIRTUAL"
    );
    let mut plants = plants();
    plants.push((computed, "the generated column extra"));
    plant_each(&server, plants, |planted, words| {
        refuses(format!("{}?owner=mallory", url(&server, "web")), planted, words);
        if !words.contains(" of mallory is ") {
            refuses(url(&server, "mallory"), planted, words);
            server.sql("ALTER TABLE public.dlock_locks OWNER TO postgres");
            refuses(url(&server, "web"), planted, words);
        }
    });
}

/// The search path of every role begins with a schema of its name.
#[test]
fn a_view_in_a_schema_of_the_administrators_name_is_not_read() {
    let server = server(Plan::default());
    let (view, _) = plants().remove(1);
    let view = view.replace("public.dlock_locks", "postgres.dlock_locks");
    server.sql(&format!(
        "SET ROLE mallory; CREATE SCHEMA postgres; GRANT USAGE ON SCHEMA postgres TO PUBLIC; {view}; GRANT ALL ON \
         postgres.dlock_locks TO PUBLIC"
    ));
    let text =
        "postgres.dlock_locks is in the search path of postgres, but locks are kept in public.dlock_locks";
    assert_nothing_runs(&server, &server.url(), &view, text);
}

#[test]
fn the_table_belongs_to_someone_who_is_trusted() {
    let server = server(Plan::default());
    server.sql("CREATE ROLE keeper; CREATE ROLE boss; CREATE SCHEMA jobs AUTHORIZATION boss; GRANT USAGE ON SCHEMA jobs TO web");
    server.sql(&format!("CREATE TABLE jobs.locks ({COLUMNS}); GRANT ALL ON jobs.locks TO web"));
    let web = |options: &str| {
        format!("postgres://web@127.0.0.1:{}/postgres?table=jobs.locks{options}", server.port())
    };
    let run = |url: &str| Dlock::run().backend(url).sh("echo ran").output();
    let owned_by = |owner: &str| {
        server
            .sql(&format!("GRANT CREATE ON SCHEMA jobs TO {owner}; ALTER TABLE jobs.locks OWNER TO {owner}; GRANT ALL ON jobs.locks TO web"))
    };
    for owner in ["web", "boss", "postgres"] {
        owned_by(owner);
        assert_eq!(run(&web("")).outcome(), (Exit::Code(0), "ran\n", ""), "{owner}");
    }
    owned_by("keeper");
    let refused = run(&web(""));
    let text = "the table jobs.locks belongs to keeper, whose code could run with the rights of web: drop or move it, or name \
                its owner with owner=keeper";
    assert_eq!(refused.exit, Exit::Code(78));
    assert!(refused.stderr.contains(text), "{}", refused.stderr);
    assert_eq!(run(&web("&owner=keeper")).exit, Exit::Code(0));
    assert_eq!(run(&web("&owner=boss")).exit, Exit::Code(78));
    server.sql("ALTER DATABASE postgres OWNER TO keeper");
    assert_eq!(run(&web("")).exit, Exit::Code(0));
    // A superuser would run whatever the owner of the database plants later.
    let admin = format!("{}?table=jobs.locks", server.url());
    let refused = run(&admin);
    let text = "the table jobs.locks belongs to keeper, who is not a superuser, unlike postgres: give dlock a role of its own \
                (see dlock doctor --policy), or the table to a superuser";
    assert_eq!(refused.exit, Exit::Code(78));
    assert!(refused.stderr.contains(text), "{}", refused.stderr);
    // So would a member of such a role, which can become it.
    server.sql("GRANT postgres TO web");
    assert_eq!(run(&web("&owner=keeper")).exit, Exit::Code(78));
    owned_by("postgres");
    assert_eq!(run(&web("")).exit, Exit::Code(0));
    assert_found(&doctor(&web("")), "warning", "role", "web can act as a superuser");
    server.sql("REVOKE postgres FROM web");
    assert!(!doctor(&web("")).stdout.contains("act as a superuser"));
}
