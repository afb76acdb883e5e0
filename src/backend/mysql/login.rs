//! The login of a connection.

use super::authentication::{Method, Privacy, full};
use super::connection::Connection;
use super::errors;
use super::location::Location;
use super::packet::{self, END, ERROR, Greeting, MORE_DATA, OK, Reader, ServerError, malformed};
use crate::backend::StoreError;

impl Connection {
    /// Proves who the user is.
    ///
    /// # Errors
    /// The server rejects the user, or speaks another protocol.
    pub(super) async fn log_in(&mut self, greeting: Greeting, location: &Location) -> Result<(), StoreError> {
        let credentials = &location.security.credentials;
        let password = credentials.password()?.unwrap_or_default();
        // The method that is named first may be that of other users: the server then asks to switch.
        let mut method = Method::of(&greeting.method).unwrap_or(Method::Native);
        let mut answer = method.begin(&password, &greeting.nonce, self.privacy).unwrap_or_default();
        let mut login = packet::capabilities(self.has_tls);
        login.extend(credentials.username().unwrap_or_default().as_bytes());
        login.push(0);
        login.push(u8::try_from(answer.len()).unwrap_or_default());
        login.append(&mut answer);
        login.extend(location.login_database().as_bytes());
        login.push(0);
        login.extend(method.name().as_bytes());
        login.push(0);
        self.send(&login).await?;
        loop {
            let reply = self.packet().await?;
            let answer = match reply.split_first() {
                Some((&OK, _)) => return Ok(()),
                Some((&ERROR, _)) => return Err(errors::meaning(&ServerError::parse(&reply)?)),
                Some((&END, switch)) if !switch.is_empty() => {
                    let mut reader = Reader(switch);
                    method = Method::of(&String::from_utf8_lossy(reader.terminated()))?;
                    let nonce = reader.0.strip_suffix(&[0]).unwrap_or(reader.0);
                    method.begin(&password, nonce, self.privacy)?
                }
                // It knows a digest of the password, which fits.
                Some((&MORE_DATA, [3])) => continue,
                Some((&MORE_DATA, [4])) if method == Method::CachingSha2 => {
                    let answer = full(&password, self.privacy)?;
                    if self.privacy == Privacy::Encrypted && !password.is_empty() {
                        location.security.note_exposure();
                    }
                    answer
                }
                _ => return Err(malformed()),
            };
            self.send(&answer).await?;
        }
    }
}
