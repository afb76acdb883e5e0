//! The username and the password of the client.

use std::path::{Path, PathBuf};

use crate::backend::url::{Url, UrlError};
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
    /// Returns the credentials before the `@` of a URL.
    pub fn of(url: &Url) -> Credentials {
        Credentials { username: url.username.clone(), password: url.password.clone().map(Password::Text) }
    }

    /// Sets the username.
    pub fn set_username(&mut self, username: &str) {
        self.username = Some(username.to_owned());
    }

    /// Sets a file that contains the password; `option` is the URL option that names it.
    ///
    /// # Errors
    /// The path is not absolute.
    pub fn set_password_file(&mut self, option: &str, path: &str) -> Result<(), UrlError> {
        self.password = Some(Password::File(super::absolute(option, path)?));
        Ok(())
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
