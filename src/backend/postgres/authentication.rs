//! The methods of authentication that are used: only those of `require_auth`, and none that reveals the password to
//! others (PostgreSQL manual, "Database Connection Control Functions").

use crate::backend::StoreError;
use crate::backend::url::UrlError;

/// A way to prove the identity of the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// The server asks for nothing.
    None,
    /// The password itself.
    Password,
    /// A digest of the password, which protects it badly.
    Md5,
    /// Both sides prove that they know the password.
    Scram,
    /// Kerberos and others, which dlock cannot do.
    Other,
}

impl Method {
    const NAMES: [(&str, Method); 7] = [
        ("none", Method::None),
        ("password", Method::Password),
        ("md5", Method::Md5),
        ("scram-sha-256", Method::Scram),
        ("gss", Method::Other),
        ("sspi", Method::Other),
        ("oauth", Method::Other),
    ];

    /// Returns the method that a message of the server begins ("Message Formats", AuthenticationXXX); `None` for one that
    /// continues or ends it. `is_first` of a message before which there was no other one.
    pub(super) fn begun_by(code: u32, is_first: bool) -> Option<Method> {
        match code {
            0 if is_first => Some(Method::None),
            0 | 8 | 11 | 12 => None,
            3 => Some(Method::Password),
            5 => Some(Method::Md5),
            10 => Some(Method::Scram),
            _ => Some(Method::Other),
        }
    }

    fn name(self) -> &'static str {
        Method::NAMES.iter().find(|(_, method)| *method == self).map_or("", |(name, _)| name)
    }
}

/// The methods that the client accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Methods {
    /// All, unless `require_auth` is given.
    required: Option<Vec<Method>>,
}

impl Methods {
    /// Parses a list of methods, or one of methods that are excluded, each behind an exclamation mark.
    pub(super) fn parse(text: &str) -> Result<Methods, UrlError> {
        if text.is_empty() {
            return Ok(Methods::default());
        }
        let wrong = || {
            let known = Method::NAMES.map(|(name, _)| name).join(", ");
            UrlError::new(format!(
                "require_auth= takes methods ({known}), separated by commas, or each of them behind a !"
            ))
        };
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        let is_negative = names.iter().all(|name| name.starts_with('!'));
        let method = |name: &&str| {
            let name = if is_negative { &name[1..] } else { name };
            Method::NAMES
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, method)| *method)
                .ok_or_else(wrong)
        };
        let named = names.iter().map(method).collect::<Result<Vec<Method>, UrlError>>()?;
        let all = Method::NAMES.iter().map(|(_, method)| *method);
        let required = all.filter(|method| named.contains(method) != is_negative).collect();
        Ok(Methods { required: Some(required) })
    }

    /// Checks a method that the server asks for. `is_private`: only the server can read what is sent on
    /// the connection.
    ///
    /// # Errors
    /// It is not used.
    pub(super) fn check(&self, method: Method, is_private: bool) -> Result<(), StoreError> {
        if self.required.as_ref().is_some_and(|required| !required.contains(&method)) {
            let found = match method {
                Method::None => "the server does not ask for authentication".to_owned(),
                Method::Other => "the server asks for another method of authentication".to_owned(),
                method => format!("the server asks for authentication by {}", method.name()),
            };
            return Err(StoreError::Denied(format!(
                "{found}, which require_auth (PGREQUIREAUTH) excludes: add it there, or change pg_hba.conf"
            )));
        }
        match method {
            Method::Password if !is_private => Err(StoreError::Denied(CLEARTEXT.into())),
            _ => Ok(()),
        }
    }
}

const CLEARTEXT: &str = "the server asks for the password itself, which is sent only over a Unix socket or to a server that \
                         has proved its identity: use sslmode=verify-full (or verify-ca), and name its authority by \
                         sslrootcert=";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_listed_or_excluded() {
        let accepts = |text: &str| {
            let methods = Methods::parse(text).expect("methods");
            [Method::None, Method::Password, Method::Md5, Method::Scram]
                .map(|method| methods.check(method, true).is_ok())
        };
        assert_eq!(accepts(""), [true; 4]);
        assert_eq!(accepts("scram-sha-256"), [false, false, false, true]);
        assert_eq!(accepts("md5, none"), [true, false, true, false]);
        assert_eq!(accepts("!password,!none"), [false, false, true, true]);
        for text in ["scram", "!md5,password", "md5,", "!"] {
            assert!(Methods::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_password_itself_is_for_the_server_alone() {
        let methods = Methods::default();
        assert_eq!(methods.check(Method::Password, true), Ok(()));
        assert_eq!(methods.check(Method::Password, false), Err(StoreError::Denied(CLEARTEXT.into())));
        assert_eq!(methods.check(Method::Md5, false), Ok(()));
    }
}
