//! Verifies the identity of a server: by an authority of the system or of `ca_file`, or by its own certificate if that
//! is in `ca_file`.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::{TlsSettings, certificate, certificates, now, unusable};
use crate::backend::StoreError;

/// Trusts the authorities of the system or of `ca_file`, and each certificate in `ca_file` if a server presents it as
/// its own. Such a certificate is made by `openssl req -x509` (CA:TRUE, and self-signed), and cannot end a chain
/// (RFC 5280); OpenSSL and Go accept it too.
#[derive(Debug)]
pub(super) struct Verifier {
    /// `None` accepts any certificate: `?insecure`. Signatures are still checked, so that the session itself is
    /// authentic.
    chain: Option<Arc<WebPkiServerVerifier>>,
    /// The certificates of `ca_file`.
    own: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// Reads the authorities. Also returns descriptions of those that have expired.
    ///
    /// # Errors
    /// There are no authorities, or their file cannot be used.
    pub(super) fn new(
        settings: &TlsSettings,
        provider: &Arc<CryptoProvider>,
    ) -> Result<(Verifier, Vec<String>), StoreError> {
        let algorithms = provider.signature_verification_algorithms;
        if settings.insecure {
            return Ok((Verifier { chain: None, own: Vec::new(), algorithms }, Vec::new()));
        }
        let (roots, own, expired) = match &settings.ca_file {
            None => (system_roots()?, Vec::new(), Vec::new()),
            Some(path) => read_authorities(path)?,
        };
        let chain = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| StoreError::Config(format!("TLS: {error}")))?;
        Ok((Verifier { chain: Some(chain), own, algorithms }, expired))
    }
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

type Authorities = (Arc<RootCertStore>, Vec<CertificateDer<'static>>, Vec<String>);

/// Reads `ca_file`: its authorities, the same in their original form, and descriptions of those that have expired.
fn read_authorities(path: &Path) -> Result<Authorities, StoreError> {
    let (mut roots, mut valid, mut expired) = (RootCertStore::empty(), Vec::new(), Vec::new());
    for certificate in certificates(path)? {
        // The verifier uses only the key of an authority (RFC 5280, section 6.1.1 d): an expired authority is not
        // trusted.
        if let Some(description) = certificate::expiry(&certificate, now()) {
            expired.push(description);
            continue;
        }
        roots.add(certificate.clone()).map_err(|error| unusable(path, &error))?;
        valid.push(certificate);
    }
    if valid.is_empty() {
        let text = format!("{}: name a valid authority with ca_file=", expired.join(", "));
        return Err(unusable(path, &text));
    }
    Ok((Arc::new(roots), valid, expired))
}

/// Whether a server presented the certificate of an authority as its own, which is not accepted.
pub(super) fn is_ca_as_end_entity(error: &CertificateError) -> bool {
    let CertificateError::Other(OtherError(inner)) = error else { return false };
    matches!(inner.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
            // The dates have been checked before. Compared byte for byte: a certificate with the same key or name is
            // not the same.
            Err(Error::InvalidCertificate(error))
                if is_ca_as_end_entity(&error) && self.own.iter().any(|own| own == certificate) =>
            {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
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
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
