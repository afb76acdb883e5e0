//! The location of a bucket and the keys of its locks, parsed from a URL without contacting the store.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::backend::net::COMMON;
use crate::backend::net::aws::{ENDPOINT, PROFILE, Place, Service, encoded};
use crate::backend::options::Value::{Either, Text};
use crate::backend::options::{Options, Table, UrlOption, of_access, of_lock};
use crate::backend::url::{Environment, Url, UrlError};
use crate::hex;
use crate::lock::LockName;

/// What the key of a lock ends with.
const SUFFIX: &str = ".dlock";
/// What is encoded in the name of a lock: what separates parts of a key, marks an encoded character, or has a meaning for
/// servers that keep objects as files, or for some client of S3.
const ENCODED: &AsciiSet = &CONTROLS
    .add(b'/')
    .add(b'%')
    .add(b'\\')
    .add(b' ')
    .add(b'?')
    .add(b'#')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'&');
/// The longest part of a key: that of a file name on servers that keep objects as files.
const LONGEST: usize = 240;
/// What a name that is too long begins with; `=` occurs in no digest, and the name is in the ledger.
const DIGEST: &str = "%sha256=";
/// The service, the variable of its endpoint, and what is in it.
const SERVICE: (&str, &str, &str) = ("s3", "AWS_ENDPOINT_URL_S3", "bucket");
const OWN: &[UrlOption] = &[
    ENDPOINT,
    of_lock("region", Text(""), "The region of the bucket."),
    of_access(
        "path_style",
        Either,
        "Whether requests name the bucket in their path, not in the host; yes by default with an endpoint, or for a bucket with \
         a dot.",
    ),
    PROFILE,
];
const OPTIONS: Table = &[OWN, COMMON];

/// A bucket, and how to connect to it.
#[derive(Clone)]
pub struct Location {
    pub(super) place: Place,
    /// What the path of each request begins with.
    pub(super) base: String,
}

impl Location {
    /// Returns the options of a URL.
    pub fn options(_: &str) -> Table {
        OPTIONS
    }

    /// Parses `s3://[key-id:secret-key@]bucket[/prefix]`.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value; or the profile cannot be read.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let mut options = Options::of(url, OPTIONS)?;
        let bucket = Place::name_in(url, SERVICE)?;
        let mut service = Service::of(&mut options, environment, SERVICE)?;
        let is_path_style = options.switch("path_style").unwrap_or(!service.is_aws || bucket.contains('.'));
        if !is_path_style {
            service.server.host.name = format!("{bucket}.{}", service.server.host.name);
        }
        let base = if is_path_style { format!("/{}", encoded(&bucket)) } else { String::new() };
        let place = Place::of(service, bucket, url, &mut options, environment)?;
        // Clients and servers resolve them in paths, each in its own way.
        let mut parts = place.prefix.trim_end_matches('/').split('/');
        if !place.prefix.is_empty() && parts.any(|part| ["", ".", ".."].contains(&part)) {
            return Err(UrlError::new("a part of the prefix may not be empty, . or .."));
        }
        Ok(Location { place, base })
    }

    /// Returns the key of a lock.
    pub(super) fn key(&self, name: &LockName) -> String {
        let mut encoded = utf8_percent_encode(name.as_str(), ENCODED).to_string();
        if encoded.len() > LONGEST {
            encoded = format!("{DIGEST}{}", hex::encode(&Sha256::digest(name.as_str())));
        }
        format!("{}{encoded}{SUFFIX}", self.place.prefix)
    }

    /// Returns whether the key of a lock contains its name.
    pub(super) fn contains_name(&self, name: &LockName) -> bool {
        !self.key(name)[self.place.prefix.len()..].starts_with(DIGEST)
    }

    /// Returns the name of the lock that this is the key of: `Err` if only its ledger contains it; `None` if it is no such key.
    pub(super) fn name_of(&self, key: &str) -> Option<Result<LockName, ()>> {
        let encoded = key.strip_prefix(&self.place.prefix)?.strip_suffix(SUFFIX)?;
        if encoded.starts_with(DIGEST) {
            return Some(Err(()));
        }
        let name = LockName::new(&percent_decode_str(encoded).decode_utf8().ok()?).ok()?;
        (self.key(&name) == key).then_some(Ok(name))
    }

    /// Returns the path of an object in requests.
    pub(super) fn path(&self, key: &str) -> String {
        let parts: Vec<String> = key.split('/').map(encoded).collect();
        format!("{}/{}", self.base, parts.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, variables: &[(&str, &str)]) -> Result<Location, UrlError> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Location::from_url(&Url::parse(url).expect("a URL"), &variable)
    }

    #[test]
    fn the_server_follows_from_region_endpoint_and_style() {
        let there = ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000");
        for (url, variable, shown, host, path) in [
            (
                "s3://b?region=eu-west-1",
                ("", ""),
                "s3://b?region=eu-west-1",
                "b.s3.eu-west-1.amazonaws.com",
                "/k",
            ),
            ("s3://b/p/", ("AWS_REGION", "cn-north-1"), "s3://b/p", "b.s3.cn-north-1.amazonaws.com.cn", "/k"),
            ("s3://a.b", ("AWS_DEFAULT_REGION", "x"), "s3://a.b", "s3.x.amazonaws.com", "/a.b/k"),
            ("s3://b", there, "s3://b?endpoint=http://127.0.0.1:9000", "127.0.0.1:9000", "/b/k"),
            (
                "s3://b?region=x",
                ("AWS_ENDPOINT_URL_S3", "http://h"),
                "s3://b?endpoint=http://h&region=x",
                "h",
                "/b/k",
            ),
            ("s3://b?endpoint=https://h&path_style=no", there, "s3://b?endpoint=https://h", "b.h", "/k"),
        ] {
            let location = parse(url, &[variable]).expect(url);
            assert_eq!(
                (location.place.display.as_str(), location.place.host.as_str()),
                (shown, host),
                "{url}"
            );
            assert_eq!(location.path("k"), path, "{url}");
        }
        for url in [
            "s3://b",
            "s3:",
            "s3://b:1?region=x",
            "s3://a,b?region=x",
            "s3://b?region=x/secret",
            "s3://b?endpoint=h",
            "s3://b?endpoint=http://h/path",
            "s3://b/a/../c?region=x",
            "s3://b/a//c?region=x",
        ] {
            assert!(parse(url, &[]).is_err(), "{url}");
        }
    }

    #[test]
    fn the_names_of_locks_are_read_from_their_keys() {
        let location = parse("s3://b/p?region=x", &[]).expect("a location");
        for (name, key, path) in [
            ("nightly", "p/nightly.dlock", "/p/nightly.dlock"),
            ("a/b %", "p/a%2Fb%20%25.dlock", "/p/a%252Fb%2520%2525.dlock"),
            ("é", "p/%C3%A9.dlock", "/p/%25C3%25A9.dlock"),
        ] {
            let name = LockName::new(name).expect("a name");
            assert_eq!((location.key(&name).as_str(), location.path(key).as_str()), (key, path));
            assert_eq!(location.name_of(key), Some(Ok(name)));
        }
        let long = location.key(&LockName::new(&"/".repeat(100)).expect("a name"));
        assert!(long.len() < 100, "{long}");
        assert_eq!(location.name_of(&long), Some(Err(())));
        for key in ["p/a", "nightly.dlock", "p/a/b.dlock", "p/%61.dlock"] {
            assert_eq!(location.name_of(key), None, "{key}");
        }
    }
}
