//! The methods by which a client proves that it knows a password. Each is a plugin of the server.

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::backend::StoreError;

/// A method that this client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// The default of MariaDB.
    Native,
    /// The default of MySQL 8: the server may ask for the password itself afterwards.
    CachingSha2,
    /// The password itself.
    Clear,
    /// The user of the process at the other end of a Unix socket.
    Socket,
}

/// Whether a password may be sent as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Privacy {
    /// Others can read the connection.
    None,
    /// It is encrypted, but the server may be anyone.
    Encrypted,
    /// A Unix socket, or a server that has proved its identity.
    Verified,
}

impl Method {
    /// # Errors
    /// It is unknown.
    pub(super) fn of(name: &str) -> Result<Method, StoreError> {
        match name {
            "mysql_native_password" => Ok(Method::Native),
            "caching_sha2_password" => Ok(Method::CachingSha2),
            "mysql_clear_password" | "sha256_password" => Ok(Method::Clear),
            "auth_socket" | "unix_socket" => Ok(Method::Socket),
            other => Err(StoreError::Config(format!(
                "the server requires the authentication plugin '{other}' for this user, which dlock does not have: use \
                 mysql_native_password, caching_sha2_password or unix_socket"
            ))),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Method::Native => "mysql_native_password",
            Method::CachingSha2 => "caching_sha2_password",
            Method::Clear => "mysql_clear_password",
            Method::Socket => "auth_socket",
        }
    }

    /// Returns the first message of the client.
    ///
    /// # Errors
    /// The password would have to be sent to a server that has not proved its identity.
    pub(super) fn begin(self, password: &str, nonce: &[u8], privacy: Privacy) -> Result<Vec<u8>, StoreError> {
        match self {
            Method::Native | Method::CachingSha2 if password.is_empty() => Ok(Vec::new()),
            Method::Native => Ok(native(password.as_bytes(), nonce)),
            Method::CachingSha2 => Ok(caching_sha2(password.as_bytes(), nonce)),
            Method::Clear if privacy == Privacy::Verified => Ok(clear(password)),
            Method::Clear => Err(StoreError::Config(
                "the server asks for the password itself: use ssl_mode=verify_ca with ca_file=, or a Unix socket"
                    .into(),
            )),
            Method::Socket => Ok(Vec::new()),
        }
    }
}

/// Returns the password as it is sent when the server has no digest of it yet. A public key to encrypt it with is never
/// requested: without TLS, a man in the middle could send another one.
///
/// # Errors
/// Others could read it.
pub(super) fn full(password: &str, privacy: Privacy) -> Result<Vec<u8>, StoreError> {
    match privacy {
        Privacy::None => Err(StoreError::Config(
            "the server asks for the password itself (caching_sha2_password), and the connection is not encrypted: use \
             ssl_mode=verify_ca with ca_file=, or a Unix socket"
                .into(),
        )),
        Privacy::Encrypted | Privacy::Verified => Ok(clear(password)),
    }
}

fn clear(password: &str) -> Vec<u8> {
    [password.as_bytes(), &[0]].concat()
}

/// `SHA1(password) XOR SHA1(nonce + SHA1(SHA1(password)))`
fn native(password: &[u8], nonce: &[u8]) -> Vec<u8> {
    let once = Sha1::digest(password);
    let mixed = Sha1::new().chain_update(nonce).chain_update(Sha1::digest(once)).finalize();
    once.iter().zip(mixed).map(|(once, mixed)| once ^ mixed).collect()
}

/// `SHA256(password) XOR SHA256(SHA256(SHA256(password)) + nonce)`
fn caching_sha2(password: &[u8], nonce: &[u8]) -> Vec<u8> {
    let once = Sha256::digest(password);
    let mixed = Sha256::new().chain_update(Sha256::digest(once)).chain_update(nonce).finalize();
    once.iter().zip(mixed).map(|(once, mixed)| once ^ mixed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of Python's hashlib.
    #[test]
    fn passwords_are_mixed_with_the_nonce() {
        let nonce: Vec<u8> = (0..20).collect();
        let hex = |bytes: Vec<u8>| crate::hex::encode(&bytes);
        assert_eq!(hex(native(b"secret", &nonce)), "21b3ff405f32cbe4aafff291396046ea29fa3a4d");
        assert_eq!(
            hex(caching_sha2(b"secret", &nonce)),
            "6c84c617ec1f26456a02c42ed7cb02eca7d8511333f98bc9b31e5f68ce1665d5"
        );
    }

    #[test]
    fn a_password_is_sent_only_where_others_cannot_read_it() {
        assert!(full("secret", Privacy::None).is_err());
        assert_eq!(full("secret", Privacy::Encrypted).as_deref(), Ok(&b"secret\0"[..]));
        assert!(Method::Clear.begin("secret", b"", Privacy::Encrypted).is_err());
        assert_eq!(Method::Clear.begin("secret", b"", Privacy::Verified).as_deref(), Ok(&b"secret\0"[..]));
        assert_eq!(Method::CachingSha2.begin("", b"n", Privacy::None), Ok(Vec::new()));
    }
}
