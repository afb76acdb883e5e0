//! TLS, Unix sockets, and how many requests go over a connection.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::mariadb::{DATABASE, MariaDb, Plan, Product};
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::tls::{Certificates, Flaw};
use crate::support::wait::{throughout, until};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// A server with TLS.
pub fn secured(flaw: Flaw) -> (TempDir, MariaDb, Certificates) {
    let directory = tempfile::Builder::new().prefix("it-tls-").tempdir().expect("a directory");
    let files = Certificates::make(directory.path(), flaw);
    let plan = Plan { certificates: Some(files.clone()), ..Plan::default() };
    (directory, MariaDb::start_with(plan), files)
}

#[test]
fn a_server_with_tls_is_verified_when_asked_for() {
    let (_directory, server, files) = secured(Flaw::None);
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
    // Without TLS the server refuses this user.
    let url = format!("mysql://secure@127.0.0.1:{}/{DATABASE}?ssl_mode=disabled", server.port());
    let output = Dlock::run().backend(url).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{}", output.stderr);
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
fn a_server_without_tls_is_used_unless_it_is_required() {
    let server = MariaDb::lent();
    let url = format!("{}?ssl_mode=preferred", server.url());
    let output = Dlock::run().backend(url).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
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
        until(SOON, "a renewal", || version() - before == 2);
        // One without its whole reply would be given up, with its connection: the row changes before the disk has it.
        throughout(Duration::from_secs(1), "one renewal", || version() - before == 2);
        drop(run.take_stdin());
        run.wait();
        assert_eq!(proxy.flights().len() - login, version() - before, "{product:?}: requests");
    }
}
