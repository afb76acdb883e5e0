//! Certificates for servers of the tests, good ones and bad ones.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use std::path::{Path, PathBuf};

/// What is wrong with a server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing: it is for 127.0.0.1 and localhost, and valid.
    None,
    /// It was valid until 2001.
    Expired,
    /// It is for another host.
    WrongHost,
}

/// An authority and what it issued, as files in a directory.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The authority's certificate: `?ca_file=`.
    pub ca: PathBuf,
    /// The server's certificate.
    pub server: PathBuf,
    /// The server's key.
    pub server_key: PathBuf,
    /// A client's certificate: `?cert_file=`.
    pub client: PathBuf,
    /// A client's key: `?key_file=`.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes an authority of its own, a server's certificate with this flaw, and a client's without.
    pub fn make(directory: &Path, flaw: Flaw) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "authority of the tests");
        let key = KeyPair::generate().expect("a key");
        let ca = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);

        let hosts: &[&str] =
            if flaw == Flaw::WrongHost { &["elsewhere.example"] } else { &["127.0.0.1", "localhost"] };
        let mut server = named(hosts, "server of the tests");
        if flaw == Flaw::Expired {
            server.not_before = date_time_ymd(2000, 1, 1);
            server.not_after = date_time_ymd(2001, 1, 1);
        }
        let client = named(&["client.example"], "client of the tests");

        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        let issue = |params: CertificateParams, name: &str| {
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &issuer).expect("a certificate");
            (
                write(&format!("{name}.pem"), &certificate.pem()),
                write(&format!("{name}.key"), &key.serialize_pem()),
            )
        };
        let (server, server_key) = issue(server, "server");
        let (client, client_key) = issue(client, "client");
        Self { ca: write("ca.pem", &ca), server, server_key, client, client_key }
    }
}

fn named(hosts: &[&str], common_name: &str) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("names of hosts");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}
