//! TLS: a table of all stores, on real servers, with the same claims for each. What only one store can do is in
//! `redis::tls`, `postgres::tls` and `mysql::connections`.

mod servers;

use crate::stores::refusal::shown;
use crate::support::dlock::Dlock;
use crate::support::doctor::doctor;
use crate::support::running::Exit;
use crate::support::tls::{Certificates, Flaw};
use servers::{Clients, Server};
use tempfile::TempDir;

fn certificates(flaw: Flaw) -> (TempDir, Certificates) {
    let directory = tempfile::Builder::new().prefix("it-tls-").tempdir().expect("a directory");
    let files = Certificates::make(directory.path(), flaw);
    (directory, files)
}

/// The claims as tests of each of these stores.
macro_rules! tests_of {
    ($($store:ident)+) => {
        $(
            mod $store {
                use super::{Clients, Flaw, Server};

                fn server(flaw: Flaw) -> Server {
                    Server::$store(flaw, Clients::Any)
                }

                #[test]
                fn a_server_with_a_known_authority_is_trusted() {
                    super::assert_trusted(&server(Flaw::None));
                }

                #[test]
                fn a_server_with_an_unknown_authority_is_refused() {
                    super::assert_unknown_authority_is_refused(&server(Flaw::None));
                }

                #[test]
                fn a_server_with_another_name_is_refused_unless_that_name_is_given() {
                    super::assert_other_name_is_refused(&server(Flaw::WrongHost));
                }

                #[test]
                fn an_expired_certificate_is_refused() {
                    super::assert_expired_certificate_is_refused(&server(Flaw::Expired));
                }

                #[test]
                fn tls_and_plain_do_not_mix() {
                    super::assert_protocols_do_not_mix(&server(Flaw::None));
                }
            }
        )+
    };
}

tests_of!(redis memcached etcd zookeeper postgres mysql consul s3 dynamodb kubernetes);

#[track_caller]
fn assert_trusted(server: &Server) {
    for host in ["127.0.0.1", "localhost"] {
        server.assert_runs(host, &server.ca());
    }
    // Renewals and release use the same connection.
    let (ttl, sleep) = (format!("{}s", server.ttl), format!("sleep {}; echo ran", server.ttl + 1));
    let held = server.run("127.0.0.1", &server.ca()).args(["--ttl", &ttl]).sh(&sleep).output();
    assert_eq!(held.outcome(), (Exit::Code(0), "ran\n", ""));
    server.assert_runs("127.0.0.1", &server.ca());
    // The authority may also come from the environment.
    let by_variable = server.run("127.0.0.1", server.verifies).env(server.variable, &server.files.ca);
    assert_eq!(by_variable.sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    let doctor = doctor(&server.url("127.0.0.1", &server.ca()));
    assert_eq!(doctor.exit, Exit::Code(0), "{}", doctor.stdout);
}

#[track_caller]
fn assert_unknown_authority_is_refused(server: &Server) {
    let (_directory, others) = certificates(Flaw::None);
    let [named, _] = server.words;
    let message = format!(
        "TLS: the server's certificate is signed by an unknown authority: name the authority with {named}; the command did not \
         run"
    );
    server.assert_refused(&server.authority(&others.ca), 69, &message);
    // Nor do the authorities of the environment include it.
    let run = server.run("127.0.0.1", server.verifies).env(server.variable, &others.ca);
    let output = run.sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.ends_with(&format!("{message}\n")), "{}", output.stderr);
}

#[track_caller]
fn assert_other_name_is_refused(server: &Server) {
    let [_, named] = server.words;
    let with_name = |name: &str| format!("{}&{}={name}", server.ca(), server.name_option);
    for (query, name) in [(server.ca(), "127.0.0.1"), (with_name("other.example"), "other.example")] {
        let message = format!(
            "TLS: certificate not valid for name \"{name}\"; certificate is only valid for \
             DnsName(\"elsewhere.example\"): give the name in the certificate with {named}; the command did not run"
        );
        server.assert_refused(&query, 69, &message);
    }
    server.assert_runs("127.0.0.1", &with_name("elsewhere.example"));
}

#[track_caller]
fn assert_expired_certificate_is_refused(server: &Server) {
    let message = "TLS: the server's certificate expired on 2001-01-01; the command did not run";
    server.assert_refused(&server.ca(), 69, message);
}

/// The wrong one of the two protocols, in either direction: what to use instead is named, and not waited for.
#[track_caller]
fn assert_protocols_do_not_mix(server: &Server) {
    assert!(!server.mixed.is_empty());
    for (url, query, found) in &server.mixed {
        let run = Dlock::run().backend(servers::with_query(url, query)).args(["-q", "--retry", "1m"]);
        let output = run.sh("echo ran").output();
        let expected = format!("dlock: x on {}: {found}; the command did not run\n", shown(url));
        assert_eq!(output.outcome(), (Exit::Code(78), "", expected.as_str()));
    }
}

/// What stores report in which the server requires a certificate of every client.
mod a_client_authenticates_with_a_certificate {
    use super::{Clients, Flaw, Server, certificates};
    use crate::support::tls::Certificates;

    /// `alert` is what this server sends for a certificate of an authority that it does not know.
    #[track_caller]
    fn assert_authenticated(server: &Server, alert: &str) {
        let (_directory, others) = certificates(Flaw::None);
        let with = |files: &Certificates| {
            let (cert, key) = (files.client.display(), files.client_key.display());
            format!("{}&cert_file={cert}&key_file={key}", server.ca())
        };
        server.assert_runs("127.0.0.1", &with(&server.files));
        let missing = "TLS: the server requires a client certificate, cert_file= and key_file= (BadCertificate); the \
                       command did not run";
        server.assert_refused(&server.ca(), 77, missing);
        let file = others.client.display();
        let unknown = format!(
            "TLS: the server does not accept our certificate {file} ({alert}); the command did not run"
        );
        server.assert_refused(&with(&others), 77, &unknown);
    }

    #[test]
    fn etcd() {
        assert_authenticated(&Server::etcd(Flaw::None, Clients::Certified), "BadCertificate");
    }

    #[test]
    fn zookeeper() {
        assert_authenticated(&Server::zookeeper(Flaw::None, Clients::Certified), "CertificateUnknown");
    }
}
