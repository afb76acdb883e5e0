//! Certificates for servers of the tests, valid and flawed ones.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use std::path::{Path, PathBuf};

/// The flaw of a server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// None: it is for 127.0.0.1 and localhost, and valid.
    None,
    /// It expired in 2001.
    Expired,
    /// It is for another host.
    WrongHost,
    /// It is that of an authority, as `openssl req -x509` creates them.
    Authority,
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
    /// The authority's certificate that expired in 2001, with the same key.
    pub expired_ca: PathBuf,
    /// A client's certificate and key, expired in 2001.
    pub expired_client: (PathBuf, PathBuf),
}

impl Certificates {
    /// Creates an authority, a server's certificate with this flaw, and a client's without.
    pub fn make(directory: &Path, flaw: Flaw) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "authority of the tests");
        let key = KeyPair::generate().expect("a key");
        let ca = params.self_signed(&key).expect("a certificate").pem();
        let past = expired(params.clone()).self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);

        let hosts: &[&str] =
            if flaw == Flaw::WrongHost { &["elsewhere.example"] } else { &["127.0.0.1", "localhost"] };
        let mut server = named(hosts, "server of the tests");
        if flaw == Flaw::Expired {
            server = expired(server);
        }
        if flaw == Flaw::Authority {
            server.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let client = || named(&["client.example"], "client of the tests");

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
        let expired_client = issue(expired(client()), "expired-client");
        let (client, client_key) = issue(client(), "client");
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&client_key, own).expect("our own file");
        let expired_ca = write("expired-ca.pem", &past);
        Self { ca: write("ca.pem", &ca), server, server_key, client, client_key, expired_ca, expired_client }
    }
}

/// The same, expired in 2001.
fn expired(mut params: CertificateParams) -> CertificateParams {
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2001, 1, 1);
    params
}

fn named(hosts: &[&str], common_name: &str) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("names of hosts");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}
