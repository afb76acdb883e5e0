//! Who we are to a server that wants a certificate of ours, and what it thinks of it. In TLS 1.3 it says so when the session
//! has long begun, or closes the connection before anybody could hear it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{AlertDescription, Error, SignatureScheme};

use super::TlsSettings;
use crate::backend::StoreError;

/// What we show a server of ourselves in one session.
#[derive(Clone, Debug)]
pub(in super::super) struct Identity {
    /// Our certificate.
    file: Option<PathBuf>,
    /// The server has asked for one, and we had none.
    missed: Arc<AtomicBool>,
}

impl Identity {
    pub(super) fn new(settings: &TlsSettings) -> Identity {
        Identity { file: settings.cert_file.clone(), missed: Arc::default() }
    }

    /// Shows nothing, and notices that it was asked to.
    pub(super) fn unknown(&self) -> Arc<dyn ResolvesClientCert> {
        Arc::new(Unknown(self.missed.clone()))
    }

    /// What a failure means if it is about our certificate. 77: it is about who we are, and trying again does not help.
    pub(in super::super) fn refusal(&self, error: &io::Error) -> Option<StoreError> {
        use AlertDescription as Alert;
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        let Error::AlertReceived(alert) = error else { return None };
        let is_about_us = match alert {
            Alert::CertificateRequired => true,
            // What OpenSSL says in TLS 1.2 to one who shows none.
            Alert::HandshakeFailure => self.has_missed(),
            // It knows an authority of this name that has another key.
            Alert::DecryptError => self.file.is_some(),
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied => true,
            _ => false,
        };
        is_about_us.then(|| {
            StoreError::Denied(match &self.file {
                None => format!("TLS: {WANTED} ({alert:?})"),
                Some(file) => {
                    format!("TLS: the server does not accept our certificate {} ({alert:?})", file.display())
                }
            })
        })
    }

    /// What it means that the server has closed the connection before it said anything.
    pub(in super::super) fn silence(&self) -> Option<StoreError> {
        self.has_missed()
            .then(|| StoreError::unanswered(format!("the server closed the connection: {WANTED}, it seems")))
    }

    fn has_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }
}

const WANTED: &str = "the server wants a certificate of ours, cert_file= and key_file=";

/// One who has no certificate.
#[derive(Debug)]
struct Unknown(Arc<AtomicBool>);

impl ResolvesClientCert for Unknown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }

    // Else nobody would ask.
    fn has_certs(&self) -> bool {
        true
    }
}
