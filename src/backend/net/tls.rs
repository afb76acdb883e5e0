//! TLS: the server is verified by default, against the system's certificate authorities or those of a file.
//!
//! Used by this folder alone: stores open a stream and do not see whether it is encrypted. What always holds: unless the
//! URL says otherwise, nothing is sent to a server that has not proved its identity.

mod client_certificate;
mod pem;
mod verifier;

use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, InvalidMessage};

pub(super) use self::client_certificate::Identity;
pub use self::pem::Pem;
pub(super) use self::verifier::not_after;
use self::verifier::{Verifier, is_ca_as_end_entity};
use super::Address;
use super::mismatch::does_not_use_tls;
use crate::backend::options::Options;
use crate::backend::url::UrlError;
use crate::backend::{Outlook, StoreError, io_text};
use crate::input;

const WRITABLE_BY_OTHERS: u32 = 0o002;

/// The verification of the server, and the client certificate. The default verifies against the system's certificate
/// authorities, and presents no certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<Pem>,
    /// The client certificate.
    pub cert_file: Option<Pem>,
    /// Its key.
    pub key_file: Option<Pem>,
    /// The name to expect instead of the host's.
    pub server_name: Option<String>,
    /// Do not verify the server.
    pub insecure: bool,
    /// Verify who issued the server's certificate, but not that it has the name of the server. Needs `ca_file`. Set by
    /// the store, not by an option.
    pub any_name: bool,
    /// What sets these, in messages.
    pub words: Words,
    /// The protocol to negotiate (ALPN), if the server demands one. Set by the store, not by an option.
    pub protocol: Option<&'static str>,
    /// What asks the server for TLS, if the connection begins without, and the byte by which it agrees. Likewise.
    pub request: Option<(&'static [u8], u8)>,
    /// The byte by which the server declines, if the connection may go on without TLS. Likewise.
    pub declined: Option<u8>,
}

/// What a user sets the authorities, the certificate and the name of a server by: in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// The authorities.
    pub authorities: &'static str,
    /// The client certificate and its key.
    pub certificate: &'static str,
    /// The name in the server's certificate.
    pub server_name: &'static str,
}

/// The options of a URL.
impl Default for Words {
    fn default() -> Words {
        Words {
            authorities: "ca_file=",
            certificate: "cert_file= and key_file=",
            server_name: "server_name=",
        }
    }
}

impl TlsSettings {
    /// The options of a URL that set them.
    pub(super) const OPTIONS: [&str; 5] = ["ca_file", "cert_file", "key_file", "server_name", "insecure"];

    /// Reads the options of a URL, and checks the files as far as possible without contacting a server.
    ///
    /// # Errors
    /// Those of [`TlsSettings::check`], or a name that no server can have.
    pub(super) fn read(&mut self, options: &Options) -> Result<(), UrlError> {
        self.ca_file = options.path("ca_file").map(Pem::File);
        self.cert_file = options.path("cert_file").map(Pem::File);
        self.key_file = options.path("key_file").map(Pem::File);
        self.server_name = options.given("server_name").map(str::to_owned);
        self.insecure = options.switch("insecure").unwrap_or(self.insecure);
        if let Some(name) = self.server_name.as_deref().filter(|name| ServerName::try_from(*name).is_err()) {
            let text = format!("server_name='{name}' cannot be the name of a TLS server");
            return Err(UrlError::new(text).about("server_name"));
        }
        self.check()
    }

    /// Checks the files as far as possible without contacting a server.
    ///
    /// # Errors
    /// One of a certificate and its key is missing, a file cannot be opened, others may write the key, or everyone with a certificate would be
    /// trusted.
    pub fn check(&self) -> Result<(), UrlError> {
        let files =
            [("ca_file", &self.ca_file), ("cert_file", &self.cert_file), ("key_file", &self.key_file)];
        if self.cert_file.is_some() != self.key_file.is_some() {
            let single = if self.cert_file.is_some() { "cert_file" } else { "key_file" };
            return Err(UrlError::new(format!(
                "{} are needed together: add the other one",
                self.words.certificate
            ))
            .about(single));
        }
        if self.any_name && self.ca_file.is_none() && !self.insecure {
            let text = "without the name of the server, everyone with a certificate of one of the system's authorities \
                        would be trusted: name the server's own authority with ca_file=";
            return Err(UrlError::new(text));
        }
        for (name, file) in files {
            let Some(Pem::File(file)) = file else { continue };
            let wrong = |why: &str| UrlError::new(format!("{}: {why}", file.display())).about(name);
            let opened = input::open(file).map_err(|error| wrong(&io_text(&error)))?;
            let mode = opened.metadata().map_err(|error| wrong(&io_text(&error)))?.mode();
            // A user who can write the key determines the identity of the client.
            if name == "key_file" && mode & WRITABLE_BY_OTHERS != 0 {
                return Err(wrong(&format!("it is world-writable (mode {:04o}): chmod o-w", mode & 0o7777)));
            }
        }
        Ok(())
    }
}

/// What has become of a session.
pub(super) enum Begun {
    /// It has started.
    Encrypted(Box<TlsStream<TcpStream>>, Identity),
    /// The server has declined, as it may.
    Declined(TcpStream),
}

/// A TLS session that has not been started: all files have been read.
pub struct Session {
    connector: TlsConnector,
    name: ServerName<'static>,
    identity: Identity,
    request: Option<(&'static [u8], u8)>,
    declined: Option<u8>,
    /// When an authority in `ca_file` expired that is not trusted any more.
    expired_authority: Option<UnixTime>,
    words: Words,
}

impl Session {
    /// Prepares a session with a server; `None` without settings, and for a Unix socket.
    ///
    /// # Errors
    /// A file cannot be used, or the host cannot be the name of a TLS server.
    pub fn of(settings: Option<&TlsSettings>, address: &Address) -> Result<Option<Session>, StoreError> {
        let (Some(settings), Address::Tcp(host)) = (settings, address) else { return Ok(None) };
        let name = settings.server_name.as_ref().unwrap_or(&host.name).to_owned();
        let name = ServerName::try_from(name.clone())
            .map_err(|_| StoreError::Config(format!("'{name}' cannot be the name of a TLS server")))?;
        let provider = Arc::new(ring::default_provider());
        let (verifier, expired_authority) = Verifier::new(settings, &provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| StoreError::Config(format!("TLS: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let (mut config, identity) = Identity::present(settings, builder)?;
        config.alpn_protocols =
            settings.protocol.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let connector = TlsConnector::from(Arc::new(config));
        let TlsSettings { request, declined, words, .. } = *settings;
        Ok(Some(Session { connector, name, identity, request, declined, expired_authority, words }))
    }

    /// Returns whether the server is asked for TLS in its own protocol, before the handshake.
    pub(super) fn is_requested(&self) -> bool {
        self.request.is_some()
    }

    /// Returns whether the connection may go on without TLS.
    pub(super) fn is_optional(&self) -> bool {
        self.declined.is_some()
    }

    /// Starts the session with a server. `other_scheme` is the one of URLs without TLS.
    ///
    /// # Errors
    /// The server does not prove its identity, does not use TLS, or rejects the client certificate.
    pub(super) async fn begin(self, mut tcp: TcpStream, other_scheme: &str) -> Result<Begun, StoreError> {
        if let Some((request, agreed)) = self.request {
            let broken = |error: io::Error| StoreError::unreachable(io_text(&error));
            tcp.write_all(request).await.map_err(broken)?;
            match tcp.read_u8().await.map_err(broken)? {
                byte if byte == agreed => {}
                byte if self.declined == Some(byte) => return Ok(Begun::Declined(tcp)),
                _ => return Err(does_not_use_tls(other_scheme)),
            }
        }
        let error = match self.connector.connect(self.name, tcp).await {
            Ok(stream) => return Ok(Begun::Encrypted(Box::new(stream), self.identity)),
            Err(error) => error,
        };
        if let Some(refusal) = self.identity.refusal(&error) {
            return Err(refusal);
        }
        let outlook = match tls_error(&error) {
            Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                return Err(does_not_use_tls(other_scheme));
            }
            Some(Error::InvalidCertificate(_)) => Outlook::Permanent,
            _ => Outlook::Unknown,
        };
        let reason = format!("TLS: {}", explain(&error, self.expired_authority, self.words));
        Err(StoreError::Unavailable { reason, maybe_applied: false, outlook })
    }
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem.read()?)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(pem, &error))?;
    match certificates.is_empty() {
        true => Err(unusable(pem, &"no certificate in it")),
        false => Ok(certificates),
    }
}

fn unusable(file: &dyn Display, error: &dyn Display) -> StoreError {
    StoreError::Config(format!("{file}: {error}"))
}

/// The day of a time.
fn date(time: UnixTime) -> String {
    let time = time.as_secs().try_into().ok().and_then(|secs| Timestamp::from_second(secs).ok());
    time.unwrap_or_default().strftime("%Y-%m-%d").to_string()
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Explains why a session could not be started.
fn explain(error: &io::Error, expired_authority: Option<UnixTime>, words: Words) -> String {
    let Words { authorities, server_name, .. } = words;
    let Some(error) = tls_error(error) else { return io_text(error) };
    let Error::InvalidCertificate(wrong) = error else { return error.to_string() };
    match wrong {
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the server's certificate expired on {}", date(*not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("the server's certificate is valid from {} only", date(*not_before))
        }
        // The signature is wrong if another authority has the name of a known one.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            let expired = expired_authority
                .map(|end| {
                    format!(" (one in {} expired on {})", authorities.trim_end_matches('='), date(end))
                })
                .unwrap_or_default();
            format!(
                "the server's certificate is signed by an unknown authority{expired}: name the authority with {authorities}"
            )
        }
        wrong if is_ca_as_end_entity(wrong) => format!(
            "the server presents a CA certificate (CA:TRUE) as its own: issue it a server certificate, or name this very \
             certificate with {authorities}"
        ),
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            "the server's certificate has no subjectAltName: create it with one (openssl req -x509 -addext \
             subjectAltName=DNS:...)"
                .into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("{wrong}: give the name in the certificate with {server_name}")
        }
        _ => error.to_string(),
    }
}
