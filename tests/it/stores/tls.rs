//! `etcds://` and `zookeepers://`: real servers with TLS. What both have in common with `rediss://`, and more of its
//! cases, is in `redis::tls`.

use crate::support::dlock::Dlock;
use crate::support::etcd::{self, Etcd};
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::tls::{Certificates, Flaw};
use crate::support::zookeeper::{self, ZooKeeper};
use std::any::Any;
use tempfile::TempDir;

/// Whether clients need a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clients {
    Any,
    Certified,
}

/// A server with TLS, and another port without.
struct Server {
    /// The scheme without the final `s`.
    scheme: &'static str,
    port: u16,
    plain: u16,
    files: Certificates,
    _running: Box<dyn Any>,
    _directory: TempDir,
}

impl Server {
    /// One of each store.
    fn each(flaw: Flaw, clients: Clients) -> [Self; 2] {
        [Self::etcd(flaw, clients), Self::zookeeper(flaw, clients)]
    }

    fn etcd(flaw: Flaw, clients: Clients) -> Self {
        let (directory, files) = certificates(flaw);
        let args = match clients {
            Clients::Any => Vec::new(),
            Clients::Certified => vec![format!("--trusted-ca-file={}", files.ca.display())],
        };
        let plan = etcd::Plan { args, certificates: Some(files.clone()), ..etcd::Plan::default() };
        let etcd = Etcd::start_with(plan);
        let (port, plain) = (etcd.port(0), etcd.daemon(0).address().port());
        Self { scheme: "etcd", port, plain, files, _running: Box::new(etcd), _directory: directory }
    }

    fn zookeeper(flaw: Flaw, clients: Clients) -> Self {
        let (directory, files) = certificates(flaw);
        let lines = match clients {
            Clients::Any => Vec::new(),
            Clients::Certified => vec!["ssl.clientAuth=need".to_owned()],
        };
        let plan = zookeeper::Plan { lines, certificates: Some(files.clone()), ..zookeeper::Plan::default() };
        let zookeeper = ZooKeeper::start_with(&plan);
        let (port, plain) = (zookeeper.secure_port(0), zookeeper.port(0));
        Self { scheme: "zookeeper", port, plain, files, _running: Box::new(zookeeper), _directory: directory }
    }

    fn ca(&self) -> String {
        format!("ca_file={}", self.files.ca.display())
    }

    /// A run by way of this host name, with this query.
    fn run(&self, host: &str, query: &str) -> Dlock {
        let url = format!("{}s://{host}:{}?{query}", self.scheme, self.port);
        Dlock::run().backend(url).args(["--connect-timeout", "5s"]).sh("echo ran")
    }

    #[track_caller]
    fn assert_runs(&self, host: &str, query: &str) {
        assert_eq!(self.run(host, query).output().outcome(), (Exit::Code(0), "ran\n", ""), "{}", self.scheme);
    }

    #[track_caller]
    fn assert_refused(&self, query: &str, code: i32, message: &str) {
        let output = self.run("127.0.0.1", query).output();
        let expected = format!("dlock: x on {}s://127.0.0.1:{}: {message}\n", self.scheme, self.port);
        assert_eq!(output.outcome(), (Exit::Code(code), "", expected.as_str()));
    }
}

fn certificates(flaw: Flaw) -> (TempDir, Certificates) {
    let directory = tempfile::Builder::new().prefix("it-tls-").tempdir().expect("a directory");
    let files = Certificates::make(directory.path(), flaw);
    (directory, files)
}

#[test]
fn a_server_with_a_known_authority_is_trusted() {
    for server in Server::each(Flaw::None, Clients::Any) {
        server.assert_runs("127.0.0.1", &server.ca());
        server.assert_runs("localhost", &server.ca());
        // Renewals and release use the same connection.
        let held =
            server.run("127.0.0.1", &server.ca()).args(["--ttl", "2s"]).sh("sleep 3; echo ran").output();
        assert_eq!(held.outcome(), (Exit::Code(0), "ran\n", ""), "{}", server.scheme);
        server.assert_runs("127.0.0.1", &server.ca());
        let url = format!("{}s://127.0.0.1:{}?{}", server.scheme, server.port, server.ca());
        let doctor = Place::new().bare().args(["doctor", "-b", &url]).output();
        assert_eq!(doctor.exit, Exit::Code(0), "{}", doctor.stdout);
    }
}

#[test]
fn a_server_with_an_unknown_authority_is_refused() {
    let (_directory, others) = certificates(Flaw::None);
    for server in Server::each(Flaw::None, Clients::Any) {
        let message = "TLS: the server's certificate is signed by an unknown authority: name the authority with \
                       ca_file=; the command did not run";
        server.assert_refused(&format!("ca_file={}", others.ca.display()), 69, message);
        // The system's authorities, if there are any, do not include it.
        let output = server.run("127.0.0.1", "").env("SSL_CERT_FILE", &others.ca).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
        assert!(output.stderr.ends_with(&format!("{message}\n")), "{}", output.stderr);
    }
}

#[test]
fn a_server_with_another_name_is_refused_unless_that_name_is_given() {
    for server in Server::each(Flaw::WrongHost, Clients::Any) {
        let message = "TLS: certificate not valid for name \"127.0.0.1\"; certificate is only valid for \
                       DnsName(\"elsewhere.example\"): give the name in the certificate with server_name=; the command \
                       did not run";
        server.assert_refused(&server.ca(), 69, message);
        server.assert_runs("127.0.0.1", &format!("{}&server_name=elsewhere.example", server.ca()));
    }
}

#[test]
fn an_expired_certificate_is_refused() {
    for server in Server::each(Flaw::Expired, Clients::Any) {
        let message = "TLS: the server's certificate expired on 2001-01-01; the command did not run";
        server.assert_refused(&server.ca(), 69, message);
    }
}

#[test]
fn a_client_authenticates_with_a_certificate() {
    let (_directory, others) = certificates(Flaw::None);
    for server in Server::each(Flaw::None, Clients::Certified) {
        let with = |files: &Certificates| {
            let (cert, key) = (files.client.display(), files.client_key.display());
            format!("{}&cert_file={cert}&key_file={key}", server.ca())
        };
        server.assert_runs("127.0.0.1", &with(&server.files));
        let missing = "TLS: the server requires a client certificate, cert_file= and key_file= (BadCertificate); the \
                       command did not run";
        server.assert_refused(&server.ca(), 77, missing);
        let alert = if server.scheme == "etcd" { "BadCertificate" } else { "CertificateUnknown" };
        let file = others.client.display();
        let unknown = format!(
            "TLS: the server does not accept our certificate {file} ({alert}); the command did not run"
        );
        server.assert_refused(&with(&others), 77, &unknown);
    }
}

/// The wrong one of the two protocols, in either direction: the scheme to use is named.
#[test]
fn tls_and_plain_do_not_mix() {
    for server in Server::each(Flaw::None, Clients::Any) {
        let scheme = server.scheme;
        let query = server.ca();
        for (other, port, query, found) in [
            (format!("{scheme}s"), server.port, "", "the server uses TLS"),
            (scheme.to_owned(), server.plain, query.as_str(), "the server does not use TLS"),
        ] {
            let used = if port == server.port { scheme.to_owned() } else { format!("{scheme}s") };
            let url = format!("{used}://127.0.0.1:{port}");
            let output = Dlock::run().backend(format!("{url}?{query}")).sh("echo ran").output();
            let expected = format!("dlock: x on {url}: {found}: use {other}://; the command did not run\n");
            assert_eq!(output.outcome(), (Exit::Code(78), "", expected.as_str()));
        }
    }
}
