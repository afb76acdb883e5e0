//! The username and the password of the client.

use std::path::{Path, PathBuf};

use crate::backend::options::Options;
use crate::backend::url::{Url, UrlError, encoded_username};
use crate::backend::{StoreError, io_text};
use crate::{input, secret};

/// Longer than any password: access tokens of cloud providers have a few thousand bytes.
const LONGEST_PASSWORD: u64 = 16 << 10;

/// The username and the password of the client, each optional.
#[derive(Clone, Default)]
pub struct Credentials {
    username: Option<String>,
    password: Option<Password>,
}

#[derive(Clone)]
enum Password {
    /// A literal password.
    Text(String),
    /// Read again for every connection, so that it can be changed while a lock is held.
    File(PathBuf),
}

impl Credentials {
    /// Returns the credentials of a URL: the user in its options, or else the one before its `@`; the password after that one, or
    /// else the one in a file.
    pub(super) fn of(url: &Url, options: &Options) -> Credentials {
        let Credentials { username, password } = Credentials::named(options, "username", "password_file");
        Credentials {
            username: username.or_else(|| url.username.clone()),
            password: url.password.clone().map(Password::Text).or(password),
        }
    }

    /// Returns the credentials in these two options of a URL.
    pub fn named(options: &Options, username: &str, password_file: &str) -> Credentials {
        Credentials {
            username: options.given(username).map(str::to_owned),
            password: options.path(password_file).map(Password::File),
        }
    }

    /// Returns the username as in a URL: before an `@`, or nothing.
    pub fn in_url(&self) -> String {
        self.username.as_ref().map(|user| format!("{}@", encoded_username(user))).unwrap_or_default()
    }

    /// Checks that a password has a username; `store` is what requires both.
    ///
    /// # Errors
    /// It has none.
    pub fn check_username(&self, store: &str) -> Result<(), UrlError> {
        match self.password.is_some() && self.username.is_none() {
            true => Err(UrlError::new(format!(
                "a password without a username: {store} requires both, add username="
            ))),
            false => Ok(()),
        }
    }

    /// Sets the username.
    pub fn set_username(&mut self, username: &str) {
        self.username = Some(username.to_owned());
    }

    /// Sets the password, unless there is one already.
    pub fn set_default_password(&mut self, password: Option<String>) {
        self.password = self.password.take().or(password.map(Password::Text));
    }

    /// Returns the username.
    pub fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    /// Returns whether there is a password.
    pub fn has_password(&self) -> bool {
        self.password.is_some()
    }

    /// Returns the file that contains the password.
    pub fn password_file(&self) -> Option<&Path> {
        match &self.password {
            Some(Password::File(path)) => Some(path),
            Some(Password::Text(_)) | None => None,
        }
    }

    /// Returns the current password. From then on it is a known `secret`.
    ///
    /// # Errors
    /// The file cannot be read, or has more than one line.
    pub fn password(&self) -> Result<Option<String>, StoreError> {
        let password = match &self.password {
            None => return Ok(None),
            Some(Password::Text(password)) => password.clone(),
            Some(Password::File(path)) => read(path)?,
        };
        // From now on it is sent, and may appear in replies.
        secret::keep(&password);
        Ok(Some(password))
    }
}

fn read(path: &Path) -> Result<String, StoreError> {
    let wrong = |why: &str| StoreError::Config(format!("password file {}: {why}", path.display()));
    let bytes = input::read(path, LONGEST_PASSWORD).map_err(|error| wrong(&io_text(&error)))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("not valid UTF-8"))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    // Without this check any file could be sent to the server by a user who can set its path.
    match line.contains(['\n', '\r', '\0']) {
        true => Err(wrong("more than one line, and a password is one (with one line feed at its end)")),
        false => Ok(line.to_owned()),
    }
}
