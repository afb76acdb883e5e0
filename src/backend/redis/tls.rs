//! TLS for `rediss://`: verified by default, against the system's authorities or a file's.

mod identity;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

pub(super) use self::identity::Identity;
use super::certificate;
use super::location::TlsSettings;
use crate::backend::{StoreError, io_text};
use crate::clock::wall_micros;
use crate::input;

/// Several times the bundle of a system.
const LONGEST_FILE: u64 = 4 << 20;

/// A TLS session that has not begun: every file has been read.
pub(super) struct Session {
    connector: TlsConnector,
    name: ServerName<'static>,
    identity: Identity,
    /// What is said of the authorities that are not valid any more.
    expired: Vec<String>,
}

impl Session {
    /// Reads the files.
    ///
    /// # Errors
    /// One of them cannot be used, or the name cannot be that of a server.
    pub(super) fn new(settings: &TlsSettings, host: &str) -> Result<Session, StoreError> {
        let name = settings.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name.clone())
            .map_err(|_| StoreError::Config(format!("'{name}' cannot be the name of a TLS server")))?;
        let authorities = if settings.insecure { Authorities::default() } else { authorities(settings)? };
        let expired = authorities.expired;
        let identity = Identity::new(settings);
        let config = config(settings, authorities.store, &identity)?;
        Ok(Session { connector: TlsConnector::from(Arc::new(config)), name, identity, expired })
    }

    /// Begins the session with a server.
    ///
    /// # Errors
    /// It does not prove to be the one that is meant, or does not take us for who we are.
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
    authorities: RootCertStore,
    identity: &Identity,
) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Config(format!("TLS: {error}")))?;
    let builder = if settings.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
    } else {
        builder.with_root_certificates(authorities)
    };
    let (Some(cert), Some(key)) = (&settings.cert_file, &settings.key_file) else {
        return Ok(builder.with_client_cert_resolver(identity.unknown()));
    };
    let chain = certificates(cert)?;
    if let Some(expired) = chain.first().and_then(|own| certificate::expiry(own, now())) {
        return Err(unusable(cert, &format!("{expired}: renew it")));
    }
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| match error {
        pem::Error::NoItemsFound => unusable(key, &"no private key in it that is not encrypted"),
        error => unusable(key, &error),
    })?;
    builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
        Error::InconsistentKeys(_) => {
            unusable(key, &format!("this key does not fit the certificate {}", cert.display()))
        }
        error => unusable(cert, &error),
    })
}

/// Whom to believe that a server is who it says.
struct Authorities {
    store: RootCertStore,
    /// What is said of those that are not valid any more.
    expired: Vec<String>,
}

impl Default for Authorities {
    fn default() -> Self {
        Authorities { store: RootCertStore::empty(), expired: Vec::new() }
    }
}

fn authorities(settings: &TlsSettings) -> Result<Authorities, StoreError> {
    let Authorities { mut store, mut expired } = Authorities::default();
    match &settings.ca_file {
        Some(path) => {
            let now = now();
            for certificate in certificates(path)? {
                // The verifier asks of an authority only its key (RFC 5280, section 6.1.1 d): an authority that has ended is
                // nobody that we were told to trust.
                match certificate::expiry(&certificate, now) {
                    Some(said) => expired.push(said),
                    None => store.add(certificate).map_err(|error| unusable(path, &error))?,
                }
            }
            if store.is_empty() {
                let said = expired.join(", ");
                return Err(unusable(path, &format!("{said}: name an authority that is valid by ca_file=")));
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                let text = "this system has no certificate authorities: install them (ca-certificates) or give ca_file=";
                return Err(StoreError::Config(text.into()));
            }
        }
    }
    Ok(Authorities { store, expired })
}

fn now() -> Duration {
    Duration::from_micros(wall_micros())
}

/// The content of a file, which may be a bundle of all authorities there are.
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

/// Why a session did not begin. `expired` are the authorities that are not believed any more.
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
        // The signature does not fit where another authority has the name of one that we know.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            let expired =
                if expired.is_empty() { String::new() } else { format!(" ({})", expired.join(", ")) };
            format!(
                "the server's certificate is by nobody whom we know{expired}: name its authority by ca_file="
            )
        }
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "the server shows the certificate of an authority (CA:TRUE) as its own: give it one of its own"
                .into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("{wrong}: name what it is made out to by server_name=")
        }
        _ => error.to_string(),
    }
}

/// Accepts any certificate: `?insecure`. Signatures are still checked, so that the session itself is sound.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
