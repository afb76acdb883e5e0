//! TLS for `rediss://`: verified by default, against the system's certificate authorities or those of a file.

mod identity;
mod trust;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error};

pub(super) use self::identity::Identity;
use self::trust::{Trust, is_ca_as_end_entity};
use super::certificate;
use super::location::TlsSettings;
use crate::backend::{StoreError, io_text};
use crate::clock::wall_micros;
use crate::input;

/// Several times the size of a system's bundle.
const LONGEST_FILE: u64 = 4 << 20;

/// A TLS session that has not been started: all files have been read.
pub(super) struct Session {
    connector: TlsConnector,
    name: ServerName<'static>,
    identity: Identity,
    /// Descriptions of the authorities that have expired.
    expired: Vec<String>,
}

impl Session {
    /// Reads the files.
    ///
    /// # Errors
    /// One of them cannot be used, or the name is not a valid server name.
    pub(super) fn new(settings: &TlsSettings, host: &str) -> Result<Session, StoreError> {
        let name = settings.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name.clone())
            .map_err(|_| StoreError::Config(format!("'{name}' cannot be the name of a TLS server")))?;
        let provider = Arc::new(ring::default_provider());
        let Trust { verifier, expired } = Trust::new(settings, &provider)?;
        let identity = Identity::new(settings);
        let config = config(settings, provider, verifier, &identity)?;
        Ok(Session { connector: TlsConnector::from(Arc::new(config)), name, identity, expired })
    }

    /// Starts the session with a server.
    ///
    /// # Errors
    /// The server does not prove its identity, or rejects the client certificate.
    pub(super) async fn begin(self, tcp: TcpStream) -> Result<(TlsStream<TcpStream>, Identity), StoreError> {
        match self.connector.connect(self.name, tcp).await {
            Ok(stream) => Ok((stream, self.identity)),
            Err(error) => Err(self.identity.refusal(&error).unwrap_or_else(|| {
                StoreError::unreachable(format!("TLS: {}", explain(&error, &self.expired)))
            })),
        }
    }
}

fn config(
    settings: &TlsSettings,
    provider: Arc<CryptoProvider>,
    verifier: Arc<dyn ServerCertVerifier>,
    identity: &Identity,
) -> Result<ClientConfig, StoreError> {
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Config(format!("TLS: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let (Some(cert), Some(key)) = (&settings.cert_file, &settings.key_file) else {
        return Ok(builder.with_client_cert_resolver(identity.no_certificate()));
    };
    let chain = certificates(cert)?;
    if let Some(expired) = chain.first().and_then(|own| certificate::expiry(own, now())) {
        return Err(unusable(cert, &format!("{expired}: renew it")));
    }
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| match error {
        pem::Error::NoItemsFound => unusable(key, &"no unencrypted private key in it"),
        error => unusable(key, &error),
    })?;
    builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
        Error::InconsistentKeys(_) => {
            unusable(key, &format!("this key does not fit the certificate {}", cert.display()))
        }
        error => unusable(cert, &error),
    })
}

fn now() -> Duration {
    Duration::from_micros(wall_micros())
}

/// The content of a file, which may be a bundle of all certificate authorities.
fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    input::read(path, LONGEST_FILE).map_err(|error| unusable(path, &io_text(&error)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(path, &error))?;
    match certificates.is_empty() {
        true => Err(StoreError::Config(format!("{}: no certificate in it", path.display()))),
        false => Ok(certificates),
    }
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Config(format!("{}: {error}", path.display()))
}

/// Explains why a session could not be started. `expired` are the authorities that have expired.
fn explain(error: &io::Error, expired: &[String]) -> String {
    let date = |time: &UnixTime| certificate::date(Duration::from_secs(time.as_secs()));
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return io_text(error);
    };
    let Error::InvalidCertificate(wrong) = error else { return error.to_string() };
    match wrong {
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the server's certificate expired on {}", date(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("the server's certificate is valid from {} only", date(not_before))
        }
        // The signature is wrong if another authority has the name of a known one.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            let expired =
                if expired.is_empty() { String::new() } else { format!(" ({})", expired.join(", ")) };
            format!(
                "the server's certificate is signed by an unknown authority{expired}: name the authority with ca_file="
            )
        }
        wrong if is_ca_as_end_entity(wrong) => {
            "the server presents a CA certificate (CA:TRUE) as its own: issue it a server certificate, or name \
             this very certificate with ca_file="
                .into()
        }
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            "the server's certificate has no subjectAltName: create it with one (openssl req -x509 -addext \
             subjectAltName=DNS:...)"
                .into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("{wrong}: give the name in the certificate with server_name=")
        }
        _ => error.to_string(),
    }
}
