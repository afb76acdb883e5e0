//! The location of a table and the keys of its locks, parsed from a URL without contacting the store.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::backend::net::COMMON;
use crate::backend::net::aws::{ENDPOINT, PROFILE, Place, Service};
use crate::backend::options::Value::{Text, Word};
use crate::backend::options::{Options, Table, UrlOption, of_lock, words};
use crate::backend::url::{Environment, Url, UrlError};
use crate::lock::LockName;

/// What is encoded in the name of a lock: what separates it from the prefix, and marks an encoded character. A name then takes
/// 600 bytes at most, ...
const ENCODED: &AsciiSet = &CONTROLS.add(b'/').add(b'%');
/// ... and a key has 2,048.
const LONGEST_PREFIX: usize = 1024;
/// What follows the name in the key of the ledger beside an item of AWS's lock client: no encoded name ends so.
const BESIDE: &str = "%dlock";
/// The length of the name of a table.
const TABLE_NAME: std::ops::RangeInclusive<usize> = 3..=255;
/// The service, the variable of its endpoint, and what is in it.
const SERVICE: (&str, &str, &str) = ("dynamodb", "AWS_ENDPOINT_URL_DYNAMODB", "table");
const OWN: &[UrlOption] = &[
    ENDPOINT,
    of_lock(
        "region",
        Text(""),
        "The region of the table. A global table that replicates asynchronously needs it in the URL.",
    ),
    of_lock(
        "recipe",
        Word("dlock", &words(&Recipe::ALL)),
        "`lock-client` for the locks of AWS's lock client for Java.",
    ),
    PROFILE,
];
const OPTIONS: Table = &[OWN, COMMON];

/// What a lock is, besides its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// Nothing.
    Dlock,
    /// An item of AWS's lock client for Java.
    LockClient,
}

impl Recipe {
    /// The recipes, as in a URL.
    const ALL: [(&'static str, Recipe); 2] = [("dlock", Recipe::Dlock), ("lock-client", Recipe::LockClient)];
}

/// A table, and how to connect to it.
#[derive(Clone)]
pub struct Location {
    pub(super) place: Place,
    pub(super) recipe: Recipe,
    /// The URL says which region is meant.
    pub(super) names_region: bool,
}

impl Location {
    /// Returns the options of a URL.
    pub fn options(_: &str) -> Table {
        OPTIONS
    }

    /// Parses `dynamodb://[key-id:secret-key@]table[/prefix]`.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value; or the profile cannot be read.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let mut options = Options::of(url, OPTIONS)?;
        let table = Place::name_in(url, SERVICE)?;
        let allowed = |character: char| character.is_ascii_alphanumeric() || "_.-".contains(character);
        if !table.chars().all(allowed) || !TABLE_NAME.contains(&table.len()) {
            return Err(UrlError::new("the name of a table has 3 to 255 letters, digits, _, - or ."));
        }
        let recipe = options.word("recipe", &Recipe::ALL);
        let names_region = options.given("region").is_some_and(|region| !region.is_empty());
        let service = Service::of(&mut options, environment, SERVICE)?;
        let place = Place::of(service, table, url, &mut options, environment)?;
        if place.prefix.trim_end_matches('/').len() > LONGEST_PREFIX {
            return Err(UrlError::new(format!("the prefix is longer than {LONGEST_PREFIX} bytes")));
        }
        Ok(Location { place, recipe, names_region })
    }

    /// Returns the key of a lock, for other programs too.
    pub(super) fn lock_key(&self, name: &LockName) -> String {
        format!("{}{}", self.place.prefix, utf8_percent_encode(name.as_str(), ENCODED))
    }

    fn suffix(&self) -> &'static str {
        match self.recipe {
            Recipe::Dlock => "",
            Recipe::LockClient => BESIDE,
        }
    }

    /// Returns the key of the ledger of a lock.
    pub(super) fn key(&self, name: &LockName) -> String {
        self.lock_key(name) + self.suffix()
    }

    /// Returns the name of the lock that this is the key of the ledger of; `None` if it is no such key.
    pub(super) fn name_of(&self, key: &str) -> Option<LockName> {
        let encoded = key.strip_prefix(&self.place.prefix)?.strip_suffix(self.suffix())?;
        let name = LockName::new(&percent_decode_str(encoded).decode_utf8().ok()?).ok()?;
        (self.key(&name) == key).then_some(name)
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
    fn the_server_follows_from_region_and_endpoint() {
        let there = ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000");
        for (url, variable, shown, host) in [
            (
                "dynamodb://Locks_1?region=eu-west-1",
                ("", ""),
                "dynamodb://Locks_1?region=eu-west-1",
                "dynamodb.eu-west-1.amazonaws.com",
            ),
            (
                "dynamodb://abc/p/",
                ("AWS_REGION", "cn-north-1"),
                "dynamodb://abc/p",
                "dynamodb.cn-north-1.amazonaws.com.cn",
            ),
            ("dynamodb://abc", there, "dynamodb://abc?endpoint=http://127.0.0.1:9000", "127.0.0.1:9000"),
            (
                "dynamodb://abc?recipe=dlock",
                ("AWS_ENDPOINT_URL_DYNAMODB", "http://h"),
                "dynamodb://abc?endpoint=http://h",
                "h",
            ),
            (
                "dynamodb://abc?region=x&recipe=lock-client",
                ("", ""),
                "dynamodb://abc?region=x&recipe=lock-client",
                "dynamodb.x.amazonaws.com",
            ),
        ] {
            let location = parse(url, &[variable]).expect(url);
            assert_eq!(
                (location.place.display.as_str(), location.place.host.as_str()),
                (shown, host),
                "{url}"
            );
        }
        for url in [
            "dynamodb://abc",
            "dynamodb:",
            "dynamodb://ab?region=x",
            "dynamodb://täble?region=x",
            "dynamodb://abc:1?region=x",
            "dynamodb://abc,def?region=x",
            "dynamodb://abc?region=x&recipe=other",
            "dynamodb://abc?endpoint=http://h/path",
        ] {
            assert!(parse(url, &[]).is_err(), "{url}");
        }
    }

    #[test]
    fn the_names_of_locks_are_read_from_their_keys() {
        let location = parse("dynamodb://abc/p?region=x", &[]).expect("a location");
        for (name, key) in [("nightly", "p/nightly"), ("a/b %", "p/a%2Fb %25"), ("é", "p/%C3%A9")] {
            let name = LockName::new(name).expect("a name");
            assert_eq!(location.key(&name), key);
            assert_eq!(location.name_of(key), Some(name));
        }
        for key in ["nightly", "p/a/b", "p/%61", "p/", "p/nightly%dlock"] {
            assert_eq!(location.name_of(key), None, "{key}");
        }
        let location = parse("dynamodb://abc?region=x&recipe=lock-client", &[]).expect("a location");
        let name = LockName::new("a/b").expect("a name");
        assert_eq!(
            (location.lock_key(&name).as_str(), location.key(&name).as_str()),
            ("a%2Fb", "a%2Fb%dlock")
        );
        assert_eq!(location.name_of("a%2Fb%dlock"), Some(name));
        assert_eq!(location.name_of("a%2Fb"), None);
    }
}
