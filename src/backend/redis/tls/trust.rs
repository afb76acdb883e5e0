//! Verifies the identity of a server: by an authority of the system or of `ca_file`, or by its own certificate if that
//! is in `ca_file`.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::{certificates, now, unusable};
use crate::backend::StoreError;
use crate::backend::redis::certificate;
use crate::backend::redis::location::TlsSettings;

/// The verifier of server certificates.
pub(super) struct Trust {
    pub(super) verifier: Arc<dyn ServerCertVerifier>,
    /// Descriptions of the authorities that have expired.
    pub(super) expired: Vec<String>,
}

impl Trust {
    /// Reads the authorities.
    ///
    /// # Errors
    /// There are no authorities, or their file cannot be used.
    pub(super) fn new(settings: &TlsSettings, provider: &Arc<CryptoProvider>) -> Result<Trust, StoreError> {
        let provider = provider.clone();
        match &settings.ca_file {
            _ if settings.insecure => {
                Ok(Trust { verifier: Arc::new(Unchecked(provider)), expired: Vec::new() })
            }
            None => Ok(Trust { verifier: chain_verifier(system_roots()?, provider)?, expired: Vec::new() }),
            Some(path) => {
                let CaFile { roots, certificates, expired } = read_ca_file(path)?;
                let chain = chain_verifier(Arc::new(roots), provider)?;
                Ok(Trust { verifier: Arc::new(ByFile { chain, certificates }), expired })
            }
        }
    }
}

fn chain_verifier(
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, StoreError> {
    WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| StoreError::Config(format!("TLS: {error}")))
}

/// The authorities of the system, read once: there are 150 of them, and connections are opened repeatedly.
fn system_roots() -> Result<Arc<RootCertStore>, StoreError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(roots.clone());
    }
    // It is read in place of the system's, without a check of its type: a FIFO would block forever.
    if let Some(path) = std::env::var_os("SSL_CERT_FILE")
        && std::fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file())
    {
        return Err(unusable(Path::new(&path), &"SSL_CERT_FILE is not a regular file"));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let text =
            "this system has no certificate authorities: install them (ca-certificates) or give ca_file=";
        return Err(StoreError::Config(text.into()));
    }
    Ok(ROOTS.get_or_init(|| Arc::new(roots)).clone())
}

/// The content of `ca_file`.
struct CaFile {
    roots: RootCertStore,
    /// The same in their original form.
    certificates: Vec<CertificateDer<'static>>,
    /// Descriptions of those that have expired.
    expired: Vec<String>,
}

fn read_ca_file(path: &Path) -> Result<CaFile, StoreError> {
    let mut content = CaFile { roots: RootCertStore::empty(), certificates: Vec::new(), expired: Vec::new() };
    let now = now();
    for certificate in certificates(path)? {
        // The verifier uses only the key of an authority (RFC 5280, section 6.1.1 d): an expired authority is not
        // trusted.
        match certificate::expiry(&certificate, now) {
            Some(description) => content.expired.push(description),
            None => {
                content.roots.add(certificate.clone()).map_err(|error| unusable(path, &error))?;
                content.certificates.push(certificate);
            }
        }
    }
    if content.certificates.is_empty() {
        let description = content.expired.join(", ");
        return Err(unusable(path, &format!("{description}: name a valid authority with ca_file=")));
    }
    Ok(content)
}

/// Whether a server presented the certificate of an authority as its own, which is not accepted.
pub(super) fn is_ca_as_end_entity(error: &CertificateError) -> bool {
    let CertificateError::Other(OtherError(inner)) = error else { return false };
    matches!(inner.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Trusts the content of `ca_file`: its authorities, and each of its certificates if a server presents it as its own.
/// Such a certificate is made by `openssl req -x509` (CA:TRUE, and self-signed), and cannot end a chain (RFC 5280);
/// OpenSSL and Go accept it too.
#[derive(Debug)]
struct ByFile {
    chain: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl ByFile {
    /// Checks that this very certificate is valid for the server `name` at `now`.
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (not_before, not_after) =
            certificate::validity(certificate).ok_or(CertificateError::BadEncoding)?;
        let time = |since: Duration| UnixTime::since_unix_epoch(since);
        if now < time(not_before) {
            return Err(
                CertificateError::NotValidYetContext { time: now, not_before: time(not_before) }.into()
            );
        }
        if now > time(not_after) {
            return Err(CertificateError::ExpiredContext { time: now, not_after: time(not_after) }.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for ByFile {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.chain.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
            // Compared byte for byte: a certificate with the same key or name is not the same.
            Err(Error::InvalidCertificate(error))
                if is_ca_as_end_entity(&error) && self.certificates.iter().any(|own| own == certificate) =>
            {
                self.check(certificate, name, now)
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Accepts any certificate: `?insecure`. Signatures are still checked, so that the session itself is authentic.
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
