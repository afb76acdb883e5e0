//! The rows of the table: a server of each store, with TLS, and another port or server without.

use super::certificates;
use crate::stores::refusal::shown;
use crate::support::consul::Consul;
use crate::support::dlock::Dlock;
use crate::support::dynamodb::Dynamo;
use crate::support::etcd::{self, Etcd};
use crate::support::kubernetes::{self, Kubernetes};
use crate::support::mariadb::{self, DATABASE, MariaDb};
use crate::support::memcached::Memcached;
use crate::support::postgres::{self, Postgres};
use crate::support::redis::{self, Redis};
use crate::support::running::Exit;
use crate::support::s3::S3;
use crate::support::tls::{Certificates, Flaw};
use crate::support::zookeeper::{self, ZooKeeper};
use serde_json::json;
use std::any::Any;
use std::path::Path;
use tempfile::TempDir;

/// Whether clients need a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    Any,
    Certified,
}

/// A URL by way of this host, with this query.
type Url = dyn Fn(&str, &str) -> String;

/// A row of the table.
pub struct Server {
    /// The URL of its port with TLS.
    at: Box<Url>,
    /// What makes a client verify it by the authorities of the system.
    pub verifies: &'static str,
    /// Names the file with the authorities, ...
    ca_option: &'static str,
    /// ... and the server.
    pub name_option: &'static str,
    /// What messages call both.
    pub words: [&'static str; 2],
    /// The variable that names that file.
    pub variable: &'static str,
    /// The shortest lease in whole seconds, of at least six, for a renewal on a busy machine.
    pub ttl: u64,
    /// URLs of the wrong protocol, the query of each, and what is reported.
    pub mixed: Vec<(String, String, String)>,
    pub files: Certificates,
    _running: Box<dyn Any>,
    _directory: TempDir,
}

impl Server {
    /// A server whose options are those of most stores.
    fn new(at: impl Fn(&str) -> String + 'static, made: (TempDir, Certificates), running: impl Any) -> Self {
        Self::with(move |host, query| with_query(&at(host), query), made, running)
    }

    /// A server whose URL depends on what is verified.
    fn with(
        at: impl Fn(&str, &str) -> String + 'static,
        (directory, files): (TempDir, Certificates),
        running: impl Any,
    ) -> Self {
        Self {
            at: Box::new(at),
            verifies: "",
            ca_option: "ca_file",
            name_option: "server_name",
            words: ["ca_file=", "server_name="],
            variable: "SSL_CERT_FILE",
            ttl: 6,
            mixed: Vec::new(),
            files,
            _running: Box::new(running),
            _directory: directory,
        }
    }

    /// Adds what is reported of both directions, where the scheme with TLS is the other one with an `s`.
    fn mixing(mut self, scheme: &str, (secure, plain): (u16, u16), path: &str) -> Self {
        let ca = self.ca();
        self.mixed = vec![
            (
                format!("{scheme}://127.0.0.1:{secure}{path}"),
                String::new(),
                format!("the server uses TLS: use {scheme}s://"),
            ),
            (
                format!("{scheme}s://127.0.0.1:{plain}{path}"),
                ca,
                format!("the server does not use TLS: use {scheme}://"),
            ),
        ];
        self
    }

    pub fn redis(flaw: Flaw, _: Clients) -> Self {
        let made = certificates(flaw);
        let options = redis::Options { certificates: Some(made.1.clone()), ..redis::Options::default() };
        let (secure, plain) = (Redis::start_with(options), Redis::start());
        let ports = (secure.port(), plain.port());
        let at = move |host: &str| format!("rediss://{host}:{}/0", ports.0);
        Self::new(at, made, (secure, plain)).mixing("redis", ports, "/0")
    }

    pub fn memcached(flaw: Flaw, _: Clients) -> Self {
        let made = certificates(flaw);
        let (secure, plain) = (Memcached::start_with_tls(&made.1), Memcached::start());
        let ports = (secure.port(), plain.port());
        let at = move |host: &str| format!("memcacheds://{host}:{}", ports.0);
        Self::new(at, made, (secure, plain)).mixing("memcached", ports, "")
    }

    pub fn etcd(flaw: Flaw, clients: Clients) -> Self {
        let made = certificates(flaw);
        let args = match clients {
            Clients::Any => Vec::new(),
            Clients::Certified => vec![format!("--trusted-ca-file={}", made.1.ca.display())],
        };
        let plan = etcd::Plan { args, certificates: Some(made.1.clone()), ..etcd::Plan::default() };
        let etcd = Etcd::start_with(plan);
        let ports = (etcd.port(0), etcd.daemon(0).address().port());
        let at = move |host: &str| format!("etcds://{host}:{}", ports.0);
        Self::new(at, made, etcd).mixing("etcd", ports, "")
    }

    pub fn zookeeper(flaw: Flaw, clients: Clients) -> Self {
        let made = certificates(flaw);
        let lines = match clients {
            Clients::Any => Vec::new(),
            Clients::Certified => vec!["ssl.clientAuth=need".to_owned()],
        };
        let plan =
            zookeeper::Plan { lines, certificates: Some(made.1.clone()), ..zookeeper::Plan::default() };
        let zookeeper = ZooKeeper::start_with(&plan);
        let ports = (zookeeper.secure_port(0), zookeeper.port(0));
        let at = move |host: &str| format!("zookeepers://{host}:{}", ports.0);
        Self::new(at, made, zookeeper).mixing("zookeeper", ports, "")
    }

    pub fn postgres(flaw: Flaw, _: Clients) -> Self {
        let made = certificates(flaw);
        let plan = postgres::Plan { certificates: Some(made.1.clone()), ..postgres::Plan::default() };
        let (secure, plain) = (Postgres::start_with(plan), Postgres::lent());
        let port = secure.port();
        let at = move |host: &str| format!("postgres://postgres@{host}:{port}/postgres");
        let found = "the server does not use TLS: use sslmode=disable with postgres://";
        // Without TLS a server with TLS accepts connections or refuses them, as it is configured.
        let mixed = vec![(plain.url(), "sslmode=verify-full".to_owned(), found.to_owned())];
        let server = Self::new(at, made, (secure, plain));
        Self {
            verifies: "sslmode=verify-full",
            ca_option: "sslmode=verify-full&sslrootcert",
            mixed,
            ..server
        }
    }

    pub fn mysql(flaw: Flaw, _: Clients) -> Self {
        let made = certificates(flaw);
        let plan = mariadb::Plan { certificates: Some(made.1.clone()), ..mariadb::Plan::default() };
        let (secure, plain) = (MariaDb::start_with(plan), MariaDb::lent());
        let port = secure.port();
        let at = move |host: &str| format!("mysql://root@{host}:{port}/{DATABASE}");
        let found = "the server does not use TLS: configure it there, or use ssl_mode=disabled";
        let mixed = vec![(plain.url(), "ssl_mode=required".to_owned(), found.to_owned())];
        Self { verifies: "ssl_mode=verify_identity", mixed, ..Self::new(at, made, (secure, plain)) }
    }

    pub fn consul(flaw: Flaw, _: Clients) -> Self {
        let made = certificates(flaw);
        let consul = Consul::start_with(&json!({}), Some(&made.1));
        let url = consul.url();
        let port =
            url.split_once('?').and_then(|(url, _)| url.rsplit_once(':')).expect("a port").1.to_owned();
        let ports = (port.parse().expect("a number"), consul.port());
        let at = move |host: &str| format!("consuls://{host}:{port}");
        let mut server = Self::new(at, made, consul).mixing("consul", ports, "");
        // Go answers a request without TLS on such a port in HTTP.
        server.mixed[0].2 =
            "the server replies 400 Bad Request: Client sent an HTTP request to an HTTPS server.".to_owned();
        Self { variable: "CONSUL_CACERT", ttl: 10, ..server }
    }

    pub fn s3(flaw: Flaw, _: Clients) -> Self {
        let made = certificates(flaw);
        let (secure, plain) = (S3::start_with(&[], Some(&made.1)), S3::lent());
        let (url, port) = (secure.url_by("ENDPOINT"), secure.port());
        let at = move |host: &str| url.replace("ENDPOINT", &format!("https://{host}:{port}"));
        let mixed = plain.url().replace("http:", "https:");
        let found = "the server does not use TLS: use endpoint=http://".to_owned();
        let server = Self::new(at, made, (secure, plain));
        let mixed = vec![(mixed, server.ca(), found)];
        Self { variable: "AWS_CA_BUNDLE", ttl: 10, mixed, ..server }
    }

    pub fn dynamodb(flaw: Flaw, _: Clients) -> Self {
        let made = certificates(flaw);
        let (secure, plain) = (Dynamo::secure(&made.1), Dynamo::lent());
        let (url, port) = (secure.url_at("ENDPOINT"), secure.port());
        let at = move |host: &str| url.replace("ENDPOINT", &format!("https://{host}:{port}"));
        let (to_tls, to_plain) = (secure.url(), plain.url().replace("http:", "https:"));
        let server = Self::new(at, made, (secure, plain));
        let mixed = vec![
            (to_tls, String::new(), "the server uses TLS: use endpoint=https://".to_owned()),
            (to_plain, server.ca(), "the server does not use TLS: use endpoint=http://".to_owned()),
        ];
        Self { variable: "AWS_CA_BUNDLE", ttl: 10, mixed, ..server }
    }

    pub fn kubernetes(flaw: Flaw, _: Clients) -> Self {
        let made = certificates(flaw);
        let (secure, plain) = (Kubernetes::with_certificates(&made.1), Kubernetes::lent());
        let directory = secure.daemon().directory().to_owned();
        let url = move |server: &str, query: &str| url_of_cluster(&directory, server, query);
        let (port, plain_port) = (secure.port(), plain.port());
        let to_tls = url(&format!("http://127.0.0.1:{port}"), "");
        let to_plain = url(&format!("https://127.0.0.1:{plain_port}"), "");
        let mixed = vec![
            (to_tls, String::new(), "the server uses TLS: use https://".to_owned()),
            (to_plain, String::new(), "the server does not use TLS: use http://".to_owned()),
        ];
        let at = move |host: &str, query: &str| url(&format!("https://{host}:{port}"), query);
        Self {
            ca_option: "certificate-authority",
            name_option: "tls-server-name",
            words: ["certificate-authority in the kubeconfig", "tls-server-name in the kubeconfig"],
            mixed,
            ..Self::with(at, made, (secure, plain))
        }
    }

    /// The query that names these authorities.
    pub fn authority(&self, file: &Path) -> String {
        format!("{}={}", self.ca_option, file.display())
    }

    /// The query that names its own authority.
    pub fn ca(&self) -> String {
        self.authority(&self.files.ca)
    }

    /// Its URL by way of this host name, with this query.
    pub fn url(&self, host: &str, query: &str) -> String {
        (self.at)(host, query)
    }

    /// A run by way of this host name, with this query. It is quiet, since Memcached may forget a lock.
    pub fn run(&self, host: &str, query: &str) -> Dlock {
        Dlock::run().backend(self.url(host, query)).args(["-q", "--connect-timeout", "5s"])
    }

    #[track_caller]
    pub fn assert_runs(&self, host: &str, query: &str) {
        let output = self.run(host, query).sh("echo ran").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "{}", self.url(host, query));
    }

    #[track_caller]
    pub fn assert_refused(&self, query: &str, code: i32, message: &str) {
        let output = self.run("127.0.0.1", query).sh("echo ran").output();
        let expected = format!("dlock: x on {}: {message}\n", shown(&self.url("127.0.0.1", query)));
        assert_eq!(output.outcome(), (Exit::Code(code), "", expected.as_str()));
    }
}

/// The URL of a Kubernetes with this server, and with the options of a query in its configuration.
fn url_of_cluster(directory: &Path, server: &str, query: &str) -> String {
    let mut cluster = json!({ "server": server });
    for (name, value) in query.split('&').filter_map(|option| option.split_once('=')) {
        cluster[name] = value.into();
    }
    kubernetes::url_with(directory, &cluster, &json!({}))
}

/// A URL with these options besides those that it has.
pub fn with_query(url: &str, query: &str) -> String {
    match (query.is_empty(), url.contains('?')) {
        (true, _) => url.to_owned(),
        (false, false) => format!("{url}?{query}"),
        (false, true) => format!("{url}&{query}"),
    }
}
