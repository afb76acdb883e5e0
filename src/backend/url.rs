//! The syntax of backend URLs, independent of the store.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::secret::HIDDEN;

/// The parts of a URL, percent-decoded except for the hosts.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// In lower case, without the colon.
    pub scheme: String,
    /// Before the `@`.
    pub username: Option<String>,
    /// Between the first `:` and the `@`.
    pub password: Option<String>,
    /// `host`, `host:port`, `[v6]:port`, in the order given; empty without an authority.
    pub hosts: Vec<Host>,
    /// From the slash on; empty without a slash.
    pub path: String,
    /// The options, in the order given.
    pub query: Vec<(String, String)>,
}

/// One host of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Name or address, without brackets.
    pub name: String,
    /// The port, if one was given.
    pub port: Option<u16>,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]", self.name)?
        } else {
            f.write_str(&self.name)?
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// The option that refuses a server unless it has to prove its identity.
pub const REQUIRE_VERIFIED_TLS: &str = "require_verified_tls";

/// The reason why a URL is rejected. The text never repeats the URL itself, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct UrlError {
    text: String,
    option: Option<String>,
}

impl UrlError {
    /// Creates an error with a text of one line.
    pub fn new(text: impl Into<String>) -> UrlError {
        UrlError { text: text.into(), option: None }
    }

    /// The query has an option that the store does not have.
    pub fn unknown_option(name: &str, scheme: &str, known: &[&str]) -> UrlError {
        let known = known.join(", ");
        UrlError::new(format!("unknown option '{name}' for {scheme}:// (known: {known})"))
    }

    /// The value of an option is not what it has to be.
    pub fn value(option: &str, expected: &str, value: &str) -> UrlError {
        UrlError::new(format!("{option}= is {expected}, not '{value}'"))
    }

    /// The value of an option is none of these words.
    pub fn word(option: &str, words: &[&str], value: &str) -> UrlError {
        let (last, others) = words.split_last().unwrap_or((&"", &[]));
        UrlError::value(option, &format!("{} or {last}", others.join(", ")), value)
    }

    /// Returns the same error, marked as concerning this option of the query.
    pub fn about(self, option: &str) -> UrlError {
        UrlError { option: Some(option.to_owned()), ..self }
    }

    /// Returns the option of the query that the error concerns, if any: a caller that composed the query from other
    /// settings can then name the setting.
    pub fn option(&self) -> Option<&str> {
        self.option.as_deref()
    }
}

/// Returns the value of an environment variable: the source of secrets and defaults besides the URL.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Url {
    /// Parses a backend URL.
    ///
    /// # Errors
    /// It does not have the form `scheme:[//[user[:password]@]host[:port][,...]][/path][?option=value[&...]]`.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let bad = |what: &str| UrlError::new(what);
        if text.is_empty() {
            return Err(bad("it is empty: name a URL or an alias"));
        }
        if text.chars().any(|c| c.is_control() || c == ' ') {
            return Err(bad("a backend URL may not contain spaces or control characters"));
        }
        let (scheme, rest) =
            text.split_once(':').ok_or_else(|| bad("a backend URL begins with a scheme and a colon"))?;
        let scheme_char = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(scheme_char) {
            return Err(bad("a backend URL begins with a scheme and a colon"));
        }
        if rest.contains('#') {
            return Err(bad("a backend URL has no fragment: write # as %23"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let (user, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
        if hosts.contains('@') || path.contains('@') || query.contains('@') {
            // Most likely a password that contains one of these characters: nothing of this URL may be repeated.
            return Err(bad(
                "an @ after the host: percent-encode / ? # and @ in a password, and @ elsewhere as %40",
            ));
        }
        let (username, password) =
            match user.map(|user| user.split_once(':').map_or((user, None), |(u, p)| (u, Some(p)))) {
                None => (None, None),
                Some((username, password)) => (Some(decode(username)?), password.map(decode).transpose()?),
            };
        Ok(Url {
            scheme: scheme.to_ascii_lowercase(),
            username: username.filter(|name| !name.is_empty()),
            password,
            hosts: if hosts.is_empty() {
                vec![]
            } else {
                hosts.split(',').map(host).collect::<Result<_, _>>()?
            },
            path: decode(path)?,
            query: options(query)?,
        })
    }
}

/// Returns whether an option of this name, known to a store or not, may have a secret value.
fn is_secret(option: &str) -> bool {
    let option = option.to_ascii_lowercase();
    ["pass", "pwd", "secret"].iter().any(|word| option.contains(word)) && !option.ends_with("file")
}

/// Returns whether a backend URL, well-formed or not, may contain a password.
pub fn has_password(text: &str) -> bool {
    match Url::parse(text) {
        Ok(url) => url.password.is_some() || url.query.iter().any(|(name, _)| is_secret(name)),
        Err(_) => text.contains('@') || text.split_once('?').is_some_and(|(_, query)| is_secret(query)),
    }
}

/// Returns a backend URL as it was written, with `***` for its password and for the value of each option that is not
/// `known`: a misspelt or unsupported one may be a secret. Of a malformed URL, returns only the scheme if it may
/// contain either.
pub fn redacted(text: &str, known: &[&str]) -> String {
    let scheme = text.split(':').next().unwrap_or_default();
    let (head, query) = text.split_once('?').map_or((text, None), |(head, query)| (head, Some(query)));
    if Url::parse(text).is_err() {
        let is_harmless = query.is_none() && !has_password(text);
        return if is_harmless { text.to_owned() } else { format!("{scheme}:{HIDDEN}") };
    }
    // In a well-formed URL there is no @ after the host.
    let mut shown = match head.split_once("//").and_then(|(_, rest)| rest.rsplit_once('@')) {
        Some((user, hosts)) if user.contains(':') => {
            format!("{scheme}://{}:{HIDDEN}@{hosts}", user.split(':').next().unwrap_or_default())
        }
        _ => head.to_owned(),
    };
    if let Some(query) = query {
        let option = |option: &str| {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let plain = decode(name).unwrap_or_default();
            match known.contains(&plain.as_str()) && !is_secret(&plain) {
                true => option.to_owned(),
                // The secret itself, without an option name.
                false if value.is_empty() => HIDDEN.to_owned(),
                false => format!("{name}={HIDDEN}"),
            }
        };
        shown = format!("{shown}?{}", query.split('&').map(option).collect::<Vec<_>>().join("&"));
    }
    shown
}

fn options(query: &str) -> Result<Vec<(String, String)>, UrlError> {
    let mut options: Vec<(String, String)> = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let name = decode(name)?;
        if options.iter().any(|(seen, _)| *seen == name) {
            return Err(UrlError::new(format!("the option '{name}' is given twice")));
        }
        options.push((name, decode(value)?));
    }
    Ok(options)
}

fn host(text: &str) -> Result<Host, UrlError> {
    let bad = || match text.starts_with(':') {
        true => UrlError::new("a host is missing before a colon"),
        false => UrlError::new(format!("'{text}' is not a host or host:port")),
    };
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(bad)?;
            if name.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(bad());
            }
            (name, port.strip_prefix(':').map(Some).or(port.is_empty().then_some(None)).ok_or_else(bad)?)
        }
        None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
    };
    let allowed = |c: char| c.is_alphanumeric() || "-._:".contains(c);
    if name.is_empty() || !name.chars().all(allowed) || (name.contains(':') && !text.starts_with('[')) {
        return Err(bad());
    }
    let port = match port {
        None => None,
        // Not repeated: in `redis://default:secret` without an @ it is a password.
        Some(port) => Some(port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(|| {
            UrlError::new("the port after a host must be from 1 to 65535 (a password ends with an @)")
        })?),
    };
    Ok(Host { name: name.to_owned(), port })
}

fn decode(text: &str) -> Result<String, UrlError> {
    let bytes = text.as_bytes();
    let escapes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    for (at, _) in escapes {
        if !bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
            return Err(UrlError::new("a % in a backend URL is followed by two hex digits; write % as %25"));
        }
    }
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| UrlError::new("a backend URL must decode to UTF-8"))?;
    if decoded.contains('\0') {
        return Err(UrlError::new("a backend URL may not contain %00"));
    }
    Ok(decoded.into_owned())
}

/// Returns a decoded part of a URL, the username excepted, as it is written there: what would end the part or have another
/// meaning in it is percent-encoded.
pub fn encoded(part: &str) -> String {
    encoded_with(part, "")
}

/// Returns a decoded username as it is written in a URL.
pub fn encoded_username(username: &str) -> String {
    encoded_with(username, ":/")
}

/// Letters of any script stay readable, which [`percent_encoding::utf8_percent_encode`] would encode.
fn encoded_with(part: &str, further: &str) -> String {
    let is_encoded = |c: char| c.is_control() || " %?#@&".contains(c) || further.contains(c);
    let mut text = String::with_capacity(part.len());
    for c in part.chars() {
        if is_encoded(c) {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
        } else {
            text.push(c);
        }
    }
    text
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({}, {:?}, {:?})", self.scheme, self.hosts, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let url = Url::parse("redis://me:s%3Aecret@[::1]:7000,h2/3?prefix=a%20b&insecure").expect("good URL");
        assert_eq!(url.scheme, "redis");
        assert_eq!(url.username.as_deref(), Some("me"));
        assert_eq!(url.password.as_deref(), Some("s:ecret"));
        assert_eq!(url.hosts.iter().map(Host::to_string).collect::<Vec<_>>(), ["[::1]:7000", "h2"]);
        assert_eq!(url.path, "/3");
        assert_eq!(url.query, [("prefix".into(), "a b".into()), ("insecure".into(), String::new())]);
        let url = Url::parse("file:").expect("good URL");
        assert_eq!((url.hosts.len(), url.path.as_str()), (0, ""));
        let url = Url::parse("file:///srv/locks?suffix=").expect("good URL");
        assert_eq!((url.hosts.len(), url.path.as_str()), (0, "/srv/locks"));
    }

    #[test]
    fn passwords_are_found_and_hidden() {
        let known = ["prefix", "password_file", "passfile", "x"];
        for (url, shown) in [
            ("redis://me:secret@h:1/2?prefix=a", "redis://me:***@h:1/2?prefix=a"),
            ("redis://:s:ecret@h,k", "redis://:***@h,k"),
            ("postgres://h/db?prefix=me&password=secret&x=1", "postgres://h/db?prefix=me&password=***&x=1"),
            ("postgres://h/db?pass%77ord=secret", "postgres://h/db?pass%77ord=***"),
            ("redis://h?sentinel_password=secret", "redis://h?sentinel_password=***"),
            ("redis://h?Passwort=secret&x", "redis://h?Passwort=***&x"),
            ("redis://me:secret@h:port", "redis:***"),
            ("redis://h:port?passwort=secret", "redis:***"),
        ] {
            assert!(has_password(url), "{url}");
            assert_eq!(redacted(url, &known), shown);
        }
        for url in [
            "redis://me@h/?password_file=/x",
            "postgres://h?passfile=/x",
            "file:",
            "file:///a//b",
            "prod",
            "nonsense:x",
        ] {
            assert!(!has_password(url), "{url}");
            assert_eq!(redacted(url, &known), url);
        }
        for (url, shown) in [
            ("redis://h?prefixx=secret&x=1", "redis://h?prefixx=***&x=1"),
            ("redis://h?secre", "redis://h?***"),
            ("redis://h:port?x=secre", "redis:***"),
        ] {
            assert_eq!(redacted(url, &known), shown);
        }
    }

    #[test]
    fn bad_urls_are_rejected_without_repeating_secrets() {
        for bad in [
            "",
            "redis",
            "://h",
            "1redis://h",
            "redis://h:0",
            "redis://h:99999",
            "redis://h:1:2",
            "redis://[::1",
            "redis://[xyz]",
            "redis://h,,k",
            "redis://h/%zz",
            "redis://h/%00",
            "redis://h/#f",
            "redis://h?a=1&a=2",
            "redis://user:secret@ho st",
            "redis://:secret@h:port",
            "redis://h/%ff",
        ] {
            let error = Url::parse(bad).expect_err(bad);
            assert!(!error.to_string().contains("secret"), "{bad}: {error}");
        }
    }
}
