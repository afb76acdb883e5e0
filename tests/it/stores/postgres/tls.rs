//! `sslmode`: real servers with TLS. What all stores have in common is in `redis::tls`.

use crate::support::dlock::Dlock;
use crate::support::postgres::{Plan, Postgres};
use crate::support::running::Exit;
use crate::support::tls::{Certificates, Flaw};

/// A server that accepts connections with TLS only.
fn secure(flaw: Flaw) -> (tempfile::TempDir, Certificates, Postgres) {
    let directory = tempfile::tempdir().unwrap();
    let files = Certificates::make(directory.path(), flaw);
    let access = Some("local all all trust\nhostssl all all all trust\n".to_owned());
    let server = Postgres::start_with(Plan { certificates: Some(files.clone()), access, ..Plan::default() });
    (directory, files, server)
}

fn url(server: &Postgres, options: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres{options}", server.port())
}

#[test]
fn a_server_is_verified_when_asked_for() {
    let (_directory, files, server) = secure(Flaw::None);
    let run = |options: &str| Dlock::run().backend(url(&server, options)).sh("echo ran").output();
    let verified = run(&format!("?sslmode=verify-full&sslrootcert={}", files.ca.display()));
    assert_eq!(verified.outcome(), (Exit::Code(0), "ran\n", ""));
    let unverified = run("?sslmode=require");
    assert_eq!((unverified.exit, unverified.stdout.as_str()), (Exit::Code(0), "ran\n"));
    assert!(unverified.stderr.contains("the server's certificate is not checked"), "{}", unverified.stderr);
    let unknown = run("?sslmode=verify-full");
    assert_eq!((unknown.exit, unknown.stdout.as_str()), (Exit::Code(69), ""));
    assert!(unknown.stderr.contains("signed by an unknown authority"), "{}", unknown.stderr);
    let plain = run("");
    assert_eq!((plain.exit, plain.stdout.as_str()), (Exit::Code(77), ""));
    assert!(plain.stderr.contains("no encryption"), "{}", plain.stderr);
}

#[test]
fn a_server_of_another_name_is_rejected() {
    let (_directory, files, server) = secure(Flaw::WrongHost);
    let options = format!("?sslmode=verify-full&sslrootcert={}", files.ca.display());
    let output = Dlock::run().backend(url(&server, &options)).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
    assert!(output.stderr.contains("server_name="), "{}", output.stderr);
}

#[test]
fn a_server_without_tls_is_recognised() {
    let server = Postgres::lent();
    let output = Dlock::run().backend(url(&server, "?sslmode=verify-full")).sh("echo ran").output();
    let message = format!(
        "dlock: x on {}: the server does not use TLS: use sslmode=disable with postgres://; the command did not run\n",
        url(&server, "")
    );
    assert_eq!(output.outcome(), (Exit::Code(78), "", message.as_str()));
}
