//! TLS for `rediss://`: verified by default, against the system's authorities or a file's.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::location::TlsSettings;
use crate::backend::{StoreError, io_text};

/// A TLS session that has not begun: every file has been read.
pub(super) struct Session {
    connector: TlsConnector,
    name: ServerName<'static>,
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
        Ok(Session { connector: TlsConnector::from(Arc::new(config(settings)?)), name })
    }

    /// Begins the session with a server.
    ///
    /// # Errors
    /// It does not prove to be the one that is meant.
    pub(super) async fn begin(self, tcp: TcpStream) -> Result<TlsStream<TcpStream>, StoreError> {
        let begun = self.connector.connect(self.name, tcp).await;
        begun.map_err(|error| StoreError::unreachable(format!("TLS: {}", explain(&error))))
    }
}

fn config(settings: &TlsSettings) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Config(format!("TLS: {error}")))?;
    let builder = if settings.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
    } else {
        builder.with_root_certificates(authorities(settings)?)
    };
    match (&settings.cert_file, &settings.key_file) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert)?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| unusable(cert, &error))
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn authorities(settings: &TlsSettings) -> Result<RootCertStore, StoreError> {
    let mut store = RootCertStore::empty();
    match &settings.ca_file {
        Some(path) => {
            for certificate in certificates(path)? {
                store.add(certificate).map_err(|error| unusable(path, &error))?;
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
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(path, &error))?;
    match certificates.is_empty() {
        true => Err(StoreError::Config(format!("{}: no certificate in it", path.display()))),
        false => Ok(certificates),
    }
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Config(format!("{}: {error}", path.display()))
}

fn explain(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => error.to_string(),
        None => io_text(error),
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
