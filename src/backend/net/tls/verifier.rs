//! Verifies the identity of a server: by an authority of the system or of `ca_file`, or by its own certificate if that
//! is in `ca_file`.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::{Pem, TlsSettings, Words, certificates, date, unusable};
use crate::backend::StoreError;

/// Trusts the authorities of the system or of `ca_file`, and each certificate in `ca_file` if a server presents it as
/// its own. Such a certificate is made by `openssl req -x509` (CA:TRUE, and self-signed), and cannot end a chain
/// (RFC 5280); OpenSSL and Go accept it too.
#[derive(Debug)]
pub(super) struct Verifier {
    /// The trusted authorities. `None` accepts any certificate: `?insecure`. Signatures are still checked, so that the
    /// session itself is authentic.
    roots: Option<Arc<RootCertStore>>,
    /// The certificates of `ca_file`.
    own: Vec<CertificateDer<'static>>,
    /// Accepts a trusted certificate of another name, too.
    any_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// Reads the authorities. Also returns when the last one expired that is not trusted any more.
    ///
    /// # Errors
    /// There are no authorities, or their file cannot be used.
    pub(super) fn new(
        settings: &TlsSettings,
        provider: &CryptoProvider,
    ) -> Result<(Verifier, Option<UnixTime>), StoreError> {
        let algorithms = provider.signature_verification_algorithms;
        if settings.insecure {
            return Ok((Verifier { roots: None, own: Vec::new(), any_name: true, algorithms }, None));
        }
        let (roots, own, expired) = match &settings.ca_file {
            None => (system_roots()?, Vec::new(), None),
            Some(pem) => read_authorities(pem, settings.words)?,
        };
        Ok((Verifier { roots: Some(roots), own, any_name: settings.any_name, algorithms }, expired))
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
        return Err(unusable(&Path::new(&path).display(), &"SSL_CERT_FILE is not a regular file"));
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

type Authorities = (Arc<RootCertStore>, Vec<CertificateDer<'static>>, Option<UnixTime>);

/// Reads `ca_file`: its authorities, the same in their original form, and when the last of the expired ones expired.
fn read_authorities(pem: &Pem, words: Words) -> Result<Authorities, StoreError> {
    let (mut roots, mut valid, mut latest) = (RootCertStore::empty(), Vec::new(), None);
    for certificate in certificates(pem)? {
        // The verifier uses only the key of an authority (RFC 5280, section 6.1.1 d): an expired authority is not
        // trusted.
        if let Some(end) = expired(&certificate) {
            latest = latest.max(Some(end));
            continue;
        }
        roots.add(certificate.clone()).map_err(|error| unusable(pem, &error))?;
        valid.push(certificate);
    }
    match latest {
        Some(end) if valid.is_empty() => {
            let (end, by) = (date(end), words.authorities);
            Err(unusable(pem, &format!("the certificate expired on {end}: name a valid authority with {by}")))
        }
        _ => Ok((Arc::new(roots), valid, latest)),
    }
}

/// Returns when a certificate expires, whoever issued it; `None` if webpki cannot parse it, such as version 1 of X.509:
/// webpki checks the dates before it searches for the issuer, and reports which of them does not fit the time.
pub(in super::super) fn not_after(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    match verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], end_of_time, &[]) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => Some(not_after),
        _ => None,
    }
}

/// Returns when a certificate expired, if it has.
pub(super) fn expired(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    not_after(certificate).filter(|end| *end < UnixTime::now())
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
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms) {
            // The dates have been checked before. Compared byte for byte: a certificate with the same key or name is
            // not the same.
            Err(Error::InvalidCertificate(error))
                if is_ca_as_end_entity(&error) && self.own.iter().any(|own| own == certificate) => {}
            verified => verified?,
        }
        if !self.any_name {
            verify_server_name(&parsed, name)?;
        }
        Ok(ServerCertVerified::assertion())
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

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
    use tokio_rustls::rustls::crypto::ring;

    use super::*;

    fn certificate(is_ca: IsCa, year: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("parameters");
        params.is_ca = is_ca;
        params.not_before = date_time_ymd(1990, 1, 1);
        params.not_after = date_time_ymd(year, 3, 4);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().clone()
    }

    #[test]
    fn the_end_of_a_certificate_is_known_whoever_issued_it() {
        for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
            for (year, end) in [(1999, 920_505_600), (2030, 1_898_812_800), (2060, 2_845_584_000)] {
                let certificate = certificate(is_ca, year);
                let end = UnixTime::since_unix_epoch(Duration::from_secs(end));
                assert_eq!(not_after(&certificate), Some(end), "{year}");
                assert_eq!(expired(&certificate), (year == 1999).then_some(end), "{year}");
            }
        }
        assert_eq!(not_after(&CertificateDer::from(b"garbage".as_slice())), None);
    }

    /// Returns what a verifier finds in the certificate of another host, which an authority has issued.
    fn verify_other_host(any_name: bool, is_trusted: bool) -> Result<(), Error> {
        let authority = || {
            let mut params = CertificateParams::new(Vec::new()).expect("parameters");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            let pem = params.self_signed(&key).expect("a certificate").pem();
            (Issuer::new(params, key), pem)
        };
        let (issuer, own) = authority();
        let trusted = if is_trusted { own } else { authority().1 };
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), trusted).expect("a file");
        let params = CertificateParams::new(vec!["elsewhere.example".to_owned()]).expect("parameters");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        let ca_file = Some(Pem::File(file.path().to_owned()));
        let settings = TlsSettings { ca_file, any_name, ..TlsSettings::default() };
        let (verifier, _) = Verifier::new(&settings, &ring::default_provider()).expect("a verifier");
        let name = ServerName::try_from("db.example").expect("a name");
        verifier.verify_server_cert(certificate.der(), &[], &name, &[], UnixTime::now()).map(drop)
    }

    #[test]
    fn without_the_name_the_authority_is_still_verified() {
        assert_eq!(verify_other_host(true, true), Ok(()));
        assert!(matches!(
            verify_other_host(false, true),
            Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. }))
        ));
        assert!(matches!(
            verify_other_host(true, false),
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature))
        ));
    }
}
