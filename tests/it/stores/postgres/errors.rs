//! What is wrong with the server or the URL, in a sentence.

use crate::stores::refusal::{assert_invalid, assert_refused};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::running::Exit;

#[test]
fn a_url_names_servers_and_known_options() {
    assert_invalid([
        (
            "postgres://",
            "postgres:// takes a host, such as postgres://db1/app, or the directory of a Unix socket, such as postgres:///app?host=/run/postgresql",
        ),
        ("postgres://h,h:5432/app", "h:5432 is named twice"),
        (
            "postgres://h/app?keys=raw",
            "unknown option 'keys' for postgres:// (known: host, port, table, owner, recipe, key, prefix, clock, zone, shedlock_table, sslmode, sslrootcert, sslcert, sslkey, require_auth, channel_binding, passfile, target_session_attrs, username, password_file, ca_file, cert_file, key_file, server_name, insecure, require_verified_tls)",
        ),
        (
            "postgres://h/app?sslmode=allow",
            "sslmode= is disable, prefer, require, verify-ca or verify-full, not 'allow'",
        ),
        ("postgres:///app?host=/s&port=0", "port= is a number from 1 to 65535, not '0'"),
        (
            "postgres://h/app?sslrootcert=/x",
            "'ca_file' needs a server that is verified: add sslmode=verify-full",
        ),
        (
            "postgres://h/app?sslmode=verify-full&sslrootcert=/x&ca_file=/y",
            "ca_file= and sslrootcert= are the same option: give one of them",
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
        ("postgres://h/app?port=6432", "port= is for a URL without a host"),
        (
            "postgres:///app?host=h",
            "host= takes the directory of a Unix socket; write postgres://h/ for a host",
        ),
        ("postgres://h/app?target_session_attrs=any", "locks are always taken on the primary (read-write)"),
    ]);
}

#[test]
fn a_database_that_does_not_exist_is_named() {
    let server = Postgres::lent();
    let url = format!("postgres://postgres@127.0.0.1:{}/nothing", server.port());
    let message = format!("x on {url}: database \"nothing\" does not exist; the command did not run");
    assert_refused(&url, 78, &message);
}

#[test]
fn a_password_comes_from_the_usual_places() {
    let access =
        "local all postgres trust\nlocal all all scram-sha-256\nhost all all all scram-sha-256\n".to_owned();
    let server = Postgres::start_with(Plan { access: Some(access), ..Plan::default() });
    server.sql("CREATE ROLE web LOGIN PASSWORD 's3cret'; GRANT CREATE ON SCHEMA public TO web");
    let at = format!("127.0.0.1:{}/postgres", server.port());
    let shown = format!("postgres://web@{at}");
    let place = Place::new();
    let pass_file = place.path("pass");
    let (port, directory) = (server.port(), server.directory().display());
    let lines =
        format!("127.0.0.1:{port}:*:web:s3cret\nlocalhost:*:*:*:wrong\n{directory}:{port}:*:web:s3cret\n");
    std::fs::write(&pass_file, lines).unwrap();
    let ways: [&dyn Fn(Dlock) -> Dlock; 4] = [
        &|run| run.env("PGPASSWORD", "s3cret"),
        &|run| run.env("PGPASSFILE", &pass_file),
        &|run| run.env("HOME", place.home()),
        &|run| run.env("PGPASSFILE", "").env("HOME", place.home()),
    ];
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
    let over_unix = format!("postgres://web@/postgres?host={directory}&port={port}");
    let output = place.run().backend(&over_unix).env("PGPASSFILE", &pass_file).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
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
