//! The verification of a server, and the credentials of the client.

use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::ServerName;

use crate::backend::url::UrlError;
use crate::backend::{StoreError, io_text};
use crate::input;
use crate::secret;

/// Longer than any password: access tokens of cloud providers have a few thousand bytes.
const LONGEST_PASSWORD: u64 = 16 << 10;

/// The password of the client.
#[derive(Clone)]
pub(super) enum Password {
    /// No password.
    None,
    /// A literal password.
    Text(String),
    /// Read again for every connection, so that it can be changed while a lock is held.
    File(PathBuf),
}

impl Password {
    /// The file that contains the password.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Password::File(path) => Some(path),
            Password::None | Password::Text(_) => None,
        }
    }

    /// Returns the current password.
    ///
    /// # Errors
    /// The file cannot be read, or has more than one line.
    pub(super) fn read(&self) -> Result<Option<String>, StoreError> {
        let password = self.current()?;
        // From now on it is sent, and may appear in replies.
        if let Some(password) = &password {
            secret::keep(password);
        }
        Ok(password)
    }

    fn current(&self) -> Result<Option<String>, StoreError> {
        match self {
            Password::None => Ok(None),
            Password::Text(password) => Ok(Some(password.clone())),
            Password::File(path) => {
                let wrong =
                    |why: &str| StoreError::Config(format!("password file {}: {why}", path.display()));
                let bytes = input::read(path, LONGEST_PASSWORD).map_err(|error| wrong(&io_text(&error)))?;
                let text = String::from_utf8(bytes).map_err(|_| wrong("not valid UTF-8"))?;
                let line = text.strip_suffix('\n').unwrap_or(&text);
                // Without this check any file could be sent to the server by a user who can set its path.
                match line.contains(['\n', '\r', '\0']) {
                    true => Err(wrong(
                        "more than one line, and a password is one (with one line feed at its end)",
                    )),
                    false => Ok(Some(line.to_owned())),
                }
            }
        }
    }
}

/// The verification of the server, and the client certificate. The default verifies against the system's certificate
/// authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The client certificate.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// The name to expect instead of the host's.
    pub server_name: Option<String>,
    /// Do not verify the server.
    pub insecure: bool,
}

impl TlsSettings {
    /// Checks the files as far as possible without contacting a server.
    pub(super) fn check(&self) -> Result<(), UrlError> {
        let files =
            [("ca_file", &self.ca_file), ("cert_file", &self.cert_file), ("key_file", &self.key_file)];
        if self.cert_file.is_some() != self.key_file.is_some() {
            let single = if self.cert_file.is_some() { "cert_file" } else { "key_file" };
            return Err(UrlError::new("cert_file= and key_file= go together").about(single));
        }
        for (name, file) in files {
            if let Some(file) = file
                && let Err(error) = input::open(file)
            {
                let text = format!("{}: {}", file.display(), io_text(&error));
                return Err(UrlError::new(text).about(name));
            }
        }
        Ok(())
    }

    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), UrlError> {
        let file = || match value.starts_with('/') {
            true => Ok(Some(PathBuf::from(value))),
            false => Err(UrlError::new(format!("{name}= takes an absolute path"))),
        };
        match name {
            "ca_file" => self.ca_file = file()?,
            "cert_file" => self.cert_file = file()?,
            "key_file" => self.key_file = file()?,
            "server_name" if ServerName::try_from(value).is_err() => {
                return Err(UrlError::new(format!(
                    "server_name='{value}' cannot be the name of a TLS server"
                )));
            }
            "server_name" => self.server_name = Some(value.to_owned()),
            _ => match value {
                "" | "1" | "true" => self.insecure = true,
                "0" | "false" => self.insecure = false,
                _ => return Err(UrlError::new(format!("insecure= is true or false, not '{value}'"))),
            },
        }
        Ok(())
    }
}
