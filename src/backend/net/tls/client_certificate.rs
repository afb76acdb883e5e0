//! The client certificate, and errors about it. In TLS 1.3 a server may reject it long after the session has started,
//! or close the connection before the client can read why.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_rustls::rustls::client::{ResolvesClientCert, WantsClientCert};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{AlertDescription, ClientConfig, ConfigBuilder, Error, SignatureScheme};

use super::verifier::expired;
use super::{Pem, TlsSettings, Words, certificates, date, unusable};
use crate::backend::StoreError;
use crate::backend::net::failure::CLOSED;

/// The client certificate of one session.
#[derive(Debug)]
pub(in super::super) struct Identity {
    /// The certificate.
    certificate: Option<Pem>,
    words: Words,
    /// The server has requested a certificate, and there was none.
    requested: Arc<AtomicBool>,
}

impl Identity {
    /// Completes the configuration of a session with the client certificate, or with none.
    ///
    /// # Errors
    /// A file cannot be used, or the certificate has expired.
    pub(super) fn present(
        settings: &TlsSettings,
        builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    ) -> Result<(ClientConfig, Identity), StoreError> {
        let identity = Identity {
            certificate: settings.cert_file.clone(),
            words: settings.words,
            requested: Arc::default(),
        };
        let (Some(cert), Some(key)) = (&settings.cert_file, &settings.key_file) else {
            let resolver = Arc::new(NoCertificate(identity.requested.clone()));
            return Ok((builder.with_client_cert_resolver(resolver), identity));
        };
        let chain = certificates(cert)?;
        if let Some(end) = chain.first().and_then(expired) {
            return Err(unusable(cert, &format!("the certificate expired on {}: renew it", date(end))));
        }
        let secret = PrivateKeyDer::from_pem_slice(&key.read()?).map_err(|error| match error {
            pem::Error::NoItemsFound => unusable(key, &"no unencrypted private key in it"),
            error => unusable(key, &error),
        })?;
        let config = builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                unusable(key, &format!("this key does not fit the certificate {cert}"))
            }
            error => unusable(cert, &error),
        })?;
        Ok((config, identity))
    }

    /// Returns the error if the failure is about the client certificate. 77: it is about the client's identity, and a
    /// retry does not help.
    pub(in super::super) fn refusal(&self, error: &io::Error) -> Option<StoreError> {
        use AlertDescription as Alert;
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        let Error::AlertReceived(alert) = error else { return None };
        let is_about_client = match alert {
            Alert::CertificateRequired => true,
            // The alert of OpenSSL in TLS 1.2 if the client presents none.
            Alert::HandshakeFailure => self.was_requested(),
            // The server has an authority of this name with another key.
            Alert::DecryptError => self.certificate.is_some(),
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied => true,
            _ => false,
        };
        is_about_client.then(|| {
            StoreError::Denied(match &self.certificate {
                None => format!("TLS: {} ({alert:?})", self.required()),
                Some(pem) => format!("TLS: the server does not accept our certificate {pem} ({alert:?})"),
            })
        })
    }

    /// Returns the error if the server closed the connection before it sent anything.
    pub(in super::super) fn closed_early(&self) -> Option<StoreError> {
        self.was_requested()
            .then(|| StoreError::unanswered(format!("{CLOSED}: {}, it seems", self.required())))
    }

    fn required(&self) -> String {
        format!("the server requires a client certificate, {}", self.words.certificate)
    }

    fn was_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }
}

/// A client without a certificate.
#[derive(Debug)]
struct NoCertificate(Arc<AtomicBool>);

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }

    // Otherwise `resolve` would not be called.
    fn has_certs(&self) -> bool {
        true
    }
}
