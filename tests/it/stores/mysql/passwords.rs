//! F60: a server that asks for the password itself, which a man in the middle can do, too.

use super::connections::secured;
use crate::support::dlock::Dlock;
use crate::support::doctor::assert_found;
use crate::support::fake::Fake;
use crate::support::mariadb::{DATABASE, MariaDb, Plan, fake};
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::tls::{Certificates, Flaw};
use std::io;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const WARNING: &str = "the server asked for the password itself, and got it over TLS that is not verified, so that it may \
                       be anyone: use ssl_mode=verify_ca with ca_file=";

/// What a man in the middle was sent after he asked.
type Heard = Arc<Mutex<Vec<u8>>>;

fn certificates(flaw: Flaw) -> (TempDir, Certificates) {
    let directory = tempfile::Builder::new().prefix("it-tls-").tempdir().expect("a directory");
    let files = Certificates::make(directory.path(), flaw);
    (directory, files)
}

/// A server that terminates TLS with these certificates, asks, and keeps what it gets.
fn man_in_the_middle(
    certificates: Option<&Certificates>,
    ask: impl Fn(&mut fake::Client) -> io::Result<Vec<u8>> + Send + Sync + 'static,
) -> (Fake, Heard) {
    let heard = Heard::default();
    let greeting = fake::greeting("8.4.0", "caching_sha2_password", certificates.is_some());
    let theirs = Arc::clone(&heard);
    let server = fake::start(greeting, certificates, move |client| {
        theirs.lock().unwrap().extend(ask(client)?);
        client.reject()
    });
    (server, heard)
}

fn url(port: u16, query: &str) -> String {
    format!("mysql://me@127.0.0.1:{port}/db{query}")
}

fn heard(heard: &Heard) -> String {
    String::from_utf8_lossy(&heard.lock().unwrap()).into_owned()
}

/// `dlock run` with the password s3cret, and with this in the table of its backend.
fn run(url: &str, settings: &str) -> Output {
    let place = Place::new();
    let config = format!("[backends.db]\nurl = \"{url}\"\n{settings}\n");
    let config = place.write("c.toml", &config);
    let run = place.run().no_backend().args(["-b", "db", "--config"]).arg(config);
    run.env("MYSQL_PWD", "s3cret").sh("echo ran").output()
}

#[test]
fn a_password_that_anyone_could_ask_for_is_not_sent_in_silence() {
    let (_directory, files) = certificates(Flaw::None);
    let rejected = "the server rejected the user or the password (error 1045: Access denied): see password_file=, MYSQL_PWD \
                    and ~/.my.cnf; the command did not run";
    for query in ["", "?ssl_mode=preferred", "?ssl_mode=required", "?insecure"] {
        let (server, asked) = man_in_the_middle(Some(&files), fake::Client::ask_for_password);
        let (url, shown) = (url(server.port(), query), url(server.port(), ""));
        let insecure = match query {
            "?insecure" => {
                "dlock: the server's certificate is not checked (?insecure): a man in the middle can take the lock\n"
            }
            _ => "",
        };
        let output = run(&url, "");
        let expected = format!("{insecure}dlock: {shown}: {WARNING}\ndlock: x on {shown}: {rejected}\n");
        assert_eq!(output.outcome(), (Exit::Code(77), "", expected.as_str()), "{query}");
        assert_eq!(heard(&asked), "s3cret\0");
        let output = run(&url, "accept = [\"insecure\"]");
        let expected = format!("dlock: x on {shown}: {rejected}\n");
        assert_eq!(output.outcome(), (Exit::Code(77), "", expected.as_str()), "{query}");
        let doctor = Place::new().bare().args(["doctor", "--json", "-b", &url]).env("MYSQL_PWD", "s3cret");
        let doctor = doctor.output();
        let found = "the server asked for the password itself, and got it over TLS that is not verified";
        assert_found(&doctor, "warning", "password", found);
        assert!(doctor.stdout.contains("use ssl_mode=verify_ca with ca_file="), "{}", doctor.stdout);
    }
}

#[test]
fn a_man_in_the_middle_gets_no_password_where_the_server_is_verified() {
    let (_directory, files) = certificates(Flaw::None);
    let (_other, others) = certificates(Flaw::None);
    let (server, asked) = man_in_the_middle(Some(&others), fake::Client::ask_for_password);
    for mode in ["verify_ca", "VERIFY_CA", "verify_identity"] {
        let query = format!("?ssl_mode={mode}&ca_file={}", files.ca.display());
        let output = run(&url(server.port(), &query), "");
        let expected = format!(
            "dlock: x on {}: TLS: the server's certificate is signed by an unknown authority: name the authority with \
             ca_file=; the command did not run\n",
            url(server.port(), "")
        );
        assert_eq!(output.outcome(), (Exit::Code(69), "", expected.as_str()), "{mode}");
    }
    assert_eq!(heard(&asked), "");
    let output = run(&url(server.port(), "?ssl_mode=verify_ca"), "");
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
    assert!(output.stderr.contains("name the server's own authority with ca_file="), "{}", output.stderr);
}

/// Neither as it is nor encrypted with a key of whoever asks: its first byte would be 2, for that key.
#[test]
fn a_password_is_never_sent_in_clear() {
    let (_directory, files) = certificates(Flaw::None);
    let sha2 = "the server asks for the password itself (caching_sha2_password), and the connection is not encrypted: use \
                ssl_mode=verify_ca with ca_file=, or a Unix socket; the command did not run";
    let clear = "the server asks for the password itself: use ssl_mode=verify_ca with ca_file=, or a Unix socket; the \
                 command did not run";
    type Script = fn(&mut fake::Client) -> std::io::Result<Vec<u8>>;
    let cases: [(_, Option<&Certificates>, Script, _); 5] = [
        ("", None, fake::Client::ask_for_password, sha2),
        ("?ssl_mode=disabled", Some(&files), fake::Client::ask_for_password, sha2),
        ("", None, |client| client.switch_to("mysql_clear_password"), clear),
        ("", Some(&files), |client| client.switch_to("mysql_clear_password"), clear),
        ("?ssl_mode=required", Some(&files), |client| client.switch_to("sha256_password"), clear),
    ];
    for (query, certificates, ask, message) in cases {
        let (server, asked) = man_in_the_middle(certificates, ask);
        let output = run(&url(server.port(), query), "");
        let expected = format!("dlock: x on {}: {message}\n", url(server.port(), ""));
        assert_eq!(output.outcome(), (Exit::Code(78), "", expected.as_str()), "{query}");
        assert_eq!(heard(&asked), "", "{query}");
    }
}

/// MySQL asks once after its start, and for every user. Its own certificates have no subjectAltName.
#[test]
fn mysql_gets_the_password_of_a_verified_connection_without_a_word() {
    let server = MariaDb::start_with(Plan::current());
    server.create_user("me", "s3cret", "ALL ON locks.*");
    let ca = server.daemon().directory().join("data/ca.pem");
    let url = |query: &str| server.url().replace("root", "me") + query;
    let forget = || server.sql("FLUSH PRIVILEGES");
    let ran = |output: Output| assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let warned = format!("dlock: {}: {WARNING}\n", url(""));
    forget();
    assert_eq!(run(&url(""), "").outcome(), (Exit::Code(0), "ran\n", warned.as_str()));
    // It knows a digest now.
    ran(run(&url(""), ""));
    forget();
    ran(run(&url(""), "accept = [\"insecure\"]"));
    forget();
    ran(run(&url(&format!("?ssl_mode=verify_ca&ca_file={}", ca.display())), ""));
    forget();
    ran(run(&format!("mysql://me@/{DATABASE}?socket={}", server.socket().display()), ""));
    let identity = run(&url(&format!("?ssl_mode=verify_identity&ca_file={}", ca.display())), "");
    assert_eq!((identity.exit, identity.stdout.as_str()), (Exit::Code(69), ""), "{}", identity.stderr);
    assert!(identity.stderr.contains("has no subjectAltName"), "{}", identity.stderr);
    forget();
    let doctor = |query: &str| {
        let doctor = Place::new().bare().args(["doctor", "--json", "-b", &url(query)]);
        doctor.env("MYSQL_PWD", "s3cret").output()
    };
    let found = doctor("");
    assert_found(&found, "warning", "tls", "the server's certificate is not checked (ssl_mode=preferred)");
    assert_found(&found, "warning", "password", "the server asked for the password itself");
    let found = doctor(&format!("?ssl_mode=verify_ca&ca_file={}", ca.display()));
    assert_found(&found, "ok", "tls", "the server's certificate is valid");
}

#[test]
fn mariadb_is_verified_by_its_authority_alone_when_asked_for() {
    let (_directory, server, files) = secured(Flaw::WrongHost);
    server.create_user("me", "s3cret", "ALL ON locks.*");
    let url = |mode: &str| {
        let ca = files.ca.display();
        format!("mysql://me@127.0.0.1:{}/{DATABASE}?ssl_mode={mode}&ca_file={ca}", server.port())
    };
    let output = run(&url("verify_ca"), "");
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(run(&url("verify_identity"), "").exit, Exit::Code(69));
    let default = format!("mysql://me@127.0.0.1:{}/{DATABASE}", server.port());
    // It never asks for the password itself.
    assert_eq!(run(&default, "").outcome(), (Exit::Code(0), "ran\n", ""));
    let output = Dlock::run().backend(default + "?require_verified_tls=yes").sh("echo ran").output();
    assert_eq!(output.exit, Exit::Code(78), "{}", output.stderr);
}
