//! What is wrong with the server or the URL, in a sentence.

use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::running::Exit;

#[track_caller]
fn assert_refused(url: &str, code: i32, message: &str) {
    let run = Dlock::run().backend(url).args(["--connect-timeout", "5s"]);
    let output = run.sh("echo ran").output();
    let expected = format!("dlock: {message}\n");
    assert_eq!(output.outcome(), (Exit::Code(code), "", expected.as_str()));
}

#[test]
fn a_url_names_servers_and_known_options() {
    for (url, message) in [
        (
            "postgres://",
            "postgres:// takes a host, such as postgres://db1/app, or the directory of a Unix socket, such as postgres:///app?host=/run/postgresql",
        ),
        ("postgres://h,h:5432/app", "h:5432 is named twice"),
        (
            "postgres://h/app?keys=raw",
            "unknown option 'keys' for postgres:// (known: table, owner, recipe, key, prefix, clock, zone, shedlock_table, host, port, sslmode, sslrootcert, sslcert, sslkey, require_auth, channel_binding, passfile, target_session_attrs, username, password_file, ca_file, cert_file, key_file, server_name, insecure, require_verified_tls)",
        ),
        (
            "postgres://h/app?sslmode=allow",
            "sslmode=allow uses TLS only after a rejection without: use prefer",
        ),
        ("postgres://h/app?sslmode=on", "sslmode= is disable, prefer, require, verify-ca or verify-full"),
        (
            "postgres://h/app?sslrootcert=/x",
            "'ca_file' needs a server that is verified: add sslmode=verify-full",
        ),
        ("postgres://h/app?sslmode=disable&sslrootcert=/x", "'ca_file' needs TLS: add sslmode=verify-full"),
        (
            "postgres://h/app?channel_binding=require",
            "channel binding is not supported: use sslmode=verify-full",
        ),
        (
            "postgres://h/app?table=a-b",
            "table= takes a name, or schema.name, of letters, digits and underscores",
        ),
        ("postgres://h/app?host=/run", "host= is for a URL without a host"),
        (
            "postgres:///app?host=h",
            "host= takes the directory of a Unix socket; write postgres://h/ for a host",
        ),
        ("postgres://h/app?target_session_attrs=any", "locks are always taken on the primary (read-write)"),
    ] {
        let output = Dlock::run().backend(url).sh("echo ran").output();
        let expected = format!("dlock: --backend: {message}\n");
        assert_eq!(output.outcome(), (Exit::Code(78), "", expected.as_str()), "{url}");
    }
}

#[test]
fn a_server_of_another_kind_is_recognised() {
    for (kind, greeting, advice) in [
        ("HTTP", &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "check the host and the port of the URL"),
        ("Redis", b"-ERR unknown command\r\n", "use redis://, or check the host and the port of the URL"),
    ] {
        let other = Fake::answering_once(greeting.to_vec());
        let url = format!("postgres://me@127.0.0.1:{}/app", other.port());
        let message = format!(
            "x on {url}: the server speaks the protocol of {kind}, not of PostgreSQL: {advice}; the command did not run"
        );
        assert_refused(&url, 78, &message);
    }
}

#[test]
fn a_silent_server_is_unavailable_in_time() {
    let silent = Fake::silent();
    let url = format!("postgres://me@127.0.0.1:{}/app", silent.port());
    let message = format!("x on {url}: no connection within 5000 ms; the command did not run, see --retry");
    assert_refused(&url, 69, &message);
}

#[test]
fn a_database_that_does_not_exist_is_named() {
    let server = Postgres::lent();
    let url = format!("postgres://postgres@127.0.0.1:{}/nothing", server.port());
    let message = format!("x on {url}: database \"nothing\" does not exist; the command did not run");
    assert_refused(&url, 78, &message);
}

#[test]
fn a_role_is_rejected_without_its_password() {
    let access = "local all all trust\nhost all all all scram-sha-256\n".to_owned();
    let server = Postgres::start_with(Plan { access: Some(access), ..Plan::default() });
    server.sql("CREATE ROLE web LOGIN PASSWORD 's3cret'; GRANT CREATE ON SCHEMA public TO web");
    let at = format!("127.0.0.1:{}/postgres", server.port());
    let shown = format!("postgres://web@{at}");
    let output = Dlock::run().backend(&shown).env("PGPASSWORD", "wrong").sh("echo ran").output();
    let message = format!(
        "dlock: x on {shown}: password authentication failed for user \"web\"; the command did not run\n"
    );
    assert_eq!(output.outcome(), (Exit::Code(77), "", message.as_str()));
    let message = format!(
        "x on {shown}: the server requires a password: add it to the URL, as password_file=, as PGPASSWORD, or to ~/.pgpass; the command did not run"
    );
    assert_refused(&shown, 77, &message);
    let place = Place::new();
    let pass_file = place.path("pass");
    std::fs::write(&pass_file, format!("127.0.0.1:{}:*:web:s3cret\n", server.port())).unwrap();
    let ways: [&dyn Fn(Dlock) -> Dlock; 3] =
        [&|run| run.env("PGPASSWORD", "s3cret"), &|run| run.env("PGPASSFILE", &pass_file), &|run| {
            run.env("HOME", place.home())
        }];
    std::fs::create_dir_all(place.home()).unwrap();
    let home_file = place.home().join(".pgpass");
    std::fs::copy(&pass_file, &home_file).unwrap();
    let protect = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    protect(&pass_file, 0o600);
    protect(&home_file, 0o600);
    for way in ways {
        let output = way(place.run().backend(&shown)).sh("echo ran").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    }
    protect(&pass_file, 0o640);
    let output = place.run().backend(&shown).env("PGPASSFILE", &pass_file).sh("echo ran").output();
    let message = format!(
        "dlock: x on {shown}: password file {}: others may read it (mode 0640): chmod 0600 it; the command did not run\n",
        pass_file.display()
    );
    assert_eq!(output.outcome(), (Exit::Code(78), "", message.as_str()));
}

#[test]
fn a_missing_right_is_named_and_granted_by_the_policy() {
    let server = Postgres::start();
    server.sql("CREATE ROLE web LOGIN");
    let url = format!("postgres://web@127.0.0.1:{}/postgres", server.port());
    let message = format!(
        "x on {url}: a right is missing (permission denied for schema public): see dlock doctor --policy; the command did not run"
    );
    assert_refused(&url, 77, &message);
    assert_eq!(server.sql("SELECT to_regclass('dlock_locks')"), "", "nothing was changed");
    let policy = super::super::conformance::rig::locate(&url).unwrap().policy().commands;
    server.sql(policy.iter().find(|command| command.starts_with("CREATE TABLE")).unwrap());
    let message = format!(
        "x on {url}: a right is missing (permission denied for table dlock_locks): see dlock doctor --policy; the command did not run"
    );
    assert_refused(&url, 77, &message);
    // The role exists.
    for command in &policy[1..] {
        server.sql(command);
    }
    let output = Dlock::run().backend(&url).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn a_table_of_another_shape_is_not_touched() {
    let server = Postgres::lent();
    for shape in ["name bytea PRIMARY KEY, owner text", "name text, version bigint"] {
        server.sql(&format!("DROP TABLE IF EXISTS dlock_locks; CREATE TABLE dlock_locks ({shape})"));
        let output = Dlock::run().backend(server.url()).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""));
        assert!(
            output.stderr.contains("the table public.dlock_locks is not one of dlock ("),
            "{}",
            output.stderr
        );
        assert_eq!(server.sql("SELECT count(*) FROM dlock_locks"), "0");
    }
}

/// A newer dlock has stored it.
#[test]
fn a_row_in_another_format_is_refused_and_not_overwritten() {
    let server = Postgres::lent();
    let run = || Dlock::run().backend(server.url()).sh("echo ran").output();
    assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
    server.sql("UPDATE dlock_locks SET format = 2, entries = 'new'");
    let before = server.sql("SELECT * FROM dlock_locks");
    let message = format!(
        "dlock: x on {}: x: written by another dlock (format 2, known: 1); the command did not run\n",
        server.url()
    );
    assert_eq!(run().outcome(), (Exit::Code(78), "", message.as_str()));
    assert_eq!(server.sql("SELECT * FROM dlock_locks"), before);
}

#[test]
fn a_table_in_a_schema_is_used() {
    let server = Postgres::lent();
    server.sql("DROP SCHEMA IF EXISTS jobs CASCADE; CREATE SCHEMA jobs");
    let url = format!("{}?table=jobs.locks", server.url());
    let output = Dlock::run().backend(&url).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(server.sql("SELECT convert_from(name, 'UTF8') FROM jobs.locks"), "x");
}

#[test]
fn a_unix_socket_is_used() {
    let server = Postgres::lent();
    let url =
        format!("postgres://postgres@/postgres?host={}&port={}", server.directory().display(), server.port());
    let output = Dlock::run().backend(&url).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}
