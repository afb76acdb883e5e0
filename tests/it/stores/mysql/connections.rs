//! TLS, Unix sockets, and how many requests go over a connection.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::mariadb::{DATABASE, MariaDb, Plan, Product};
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::tls::{Certificates, Flaw};
use crate::support::wait::until;
use std::process::Stdio;
use tempfile::TempDir;

/// A server with TLS.
pub fn secured(flaw: Flaw) -> (TempDir, MariaDb, Certificates) {
    let directory = tempfile::Builder::new().prefix("it-tls-").tempdir().expect("a directory");
    let files = Certificates::make(directory.path(), flaw);
    let plan = Plan { certificates: Some(files.clone()), ..Plan::default() };
    (directory, MariaDb::start_with(plan), files)
}

fn run(server: &MariaDb, query: &str) -> Dlock {
    let url = format!("mysql://root@127.0.0.1:{}/{DATABASE}?{query}", server.port());
    Dlock::run().backend(url).args(["--connect-timeout", "5s"]).sh("echo ran")
}

#[track_caller]
fn assert_refused(server: &MariaDb, query: &str, code: i32, message: &str) {
    let output = run(server, query).output();
    let expected = format!("dlock: x on mysql://root@127.0.0.1:{}/{DATABASE}: {message}\n", server.port());
    assert_eq!(output.outcome(), (Exit::Code(code), "", expected.as_str()), "{query}");
}

#[test]
fn a_server_with_tls_is_verified_when_asked_for() {
    let (_directory, server, files) = secured(Flaw::None);
    let (_other, others) = {
        let directory = tempfile::Builder::new().prefix("it-tls-").tempdir().expect("a directory");
        let files = Certificates::make(directory.path(), Flaw::None);
        (directory, files)
    };
    server.sql("CREATE USER secure REQUIRE SSL; GRANT ALL ON locks.* TO secure");
    let verified = format!("ca_file={}", files.ca.display());
    for query in [
        "",
        "ssl_mode=required",
        &verified,
        &format!("ssl_ca={}&ssl_mode=verify_identity", files.ca.display()),
    ] {
        let url = format!("mysql://secure@127.0.0.1:{}/{DATABASE}?{query}", server.port());
        let output = Dlock::run().backend(url).sh("echo ran").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "{query}");
    }
    let unknown = "TLS: the server's certificate is signed by an unknown authority: name the authority with ca_file=; the \
                   command did not run";
    assert_refused(&server, &format!("ca_file={}", others.ca.display()), 69, unknown);
    // Without TLS the server refuses this user.
    let url = format!("mysql://secure@127.0.0.1:{}/{DATABASE}?ssl_mode=disabled", server.port());
    let output = Dlock::run().backend(url).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{}", output.stderr);
}

#[test]
fn a_server_with_another_name_is_refused() {
    let (_directory, server, files) = secured(Flaw::WrongHost);
    let ca = format!("ca_file={}", files.ca.display());
    let message = "TLS: certificate not valid for name \"127.0.0.1\"; certificate is only valid for \
                   DnsName(\"elsewhere.example\"): give the name in the certificate with server_name=; the command did not \
                   run";
    assert_refused(&server, &ca, 69, message);
    let named = run(&server, &format!("{ca}&server_name=elsewhere.example")).output();
    assert_eq!(named.outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn a_user_authenticates_with_a_certificate() {
    let (_directory, server, files) = secured(Flaw::None);
    server.sql("CREATE USER certified REQUIRE X509; GRANT ALL ON locks.* TO certified");
    let run = |more: &str| {
        let ca = files.ca.display();
        let url = format!("mysql://certified@127.0.0.1:{}/{DATABASE}?ca_file={ca}{more}", server.port());
        Dlock::run().backend(url).sh("echo ran").output()
    };
    let (cert, key) = (files.client.display(), files.client_key.display());
    assert_eq!(run(&format!("&cert_file={cert}&key_file={key}")).outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(run("").exit, Exit::Code(77));
}

#[test]
fn a_server_without_tls_is_refused_where_it_is_required() {
    let server = MariaDb::lent();
    let message =
        "the server does not use TLS: configure it there, or use ssl_mode=disabled; the command did not run";
    assert_refused(&server, "ssl_mode=required", 78, message);
    assert_eq!(run(&server, "ssl_mode=preferred").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn a_unix_socket_needs_no_port() {
    let server = MariaDb::lent();
    // The server takes the user from the socket.
    server.sql("CREATE USER daemon IDENTIFIED VIA unix_socket; GRANT ALL ON locks.* TO daemon");
    let url = |user: &str| format!("mysql://{user}@/{DATABASE}?socket={}", server.socket().display());
    let output = Dlock::run().backend(url("root")).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let other = Dlock::run().backend(url("daemon")).sh("echo ran").output();
    assert_eq!((other.exit, other.stdout.as_str()), (Exit::Code(77), ""), "{}", other.stderr);
}

/// Each changes the row once, and waits for one reply.
#[test]
fn a_lock_is_taken_renewed_and_released_with_one_request_each() {
    for product in [Product::System, Product::Mysql9_7] {
        let server = MariaDb::lent_of(product);
        let proxy = Proxy::to(server.port());
        let url = format!("mysql://root@127.0.0.1:{}/{DATABASE}?ssl_mode=disabled", proxy.port());
        // The table is there from then on.
        assert_eq!(Dlock::run().backend(&url).sh("true").output().exit, Exit::Code(0));
        let version = || {
            let version = server.sql("SELECT version FROM dlock_locks WHERE name = 'x'");
            version.trim().parse::<usize>().expect("a number")
        };
        let before = version();
        proxy.forget_flights();
        // With time for a reply on a busy machine: what is given up is repeated over a new connection.
        let run = Dlock::run().backend(&url).args(["--ttl", "15s"]).stdin(Stdio::piped());
        let mut run = run.sh("echo ready; read line").spawn();
        run.await_ready();
        let login = 2;
        assert_eq!((proxy.flights().len() - login, version() - before), (1, 1), "{product:?}: requests");
        // A renewal without its reply would be given up, with its connection.
        until(SOON, "an answered renewal", || {
            let flights = proxy.flights();
            flights.len() >= login + 2 && flights.iter().all(|flight| flight.answered.is_some())
        });
        drop(run.take_stdin());
        run.wait();
        assert_eq!(proxy.flights().len() - login, version() - before, "{product:?}: requests");
    }
}
