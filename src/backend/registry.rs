//! The one list of stores, from which all that depends on the scheme of a backend URL is derived. The only module that
//! names the concrete stores.

use std::rc::Rc;

use super::Location;
use super::options::{self, Options, Table};
use super::url::{self, Environment, REQUIRE_VERIFIED_TLS, Url, UrlError};

/// All stores: the module, the condition under which it is part of the build, how its URLs begin, and further schemes,
/// which are not offered in messages and completions. The module is named after the cargo feature that enables it.
const STORES: &[Store] = &[
    store!(file, all(), ["file:"], []),
    store!(
        redis,
        feature = "redis",
        ["redis://", "rediss://", "redis+unix:", "redis-sentinel://", "redis-cluster://", "redlock://"],
        [
            "rediss-sentinel",
            "rediss-cluster",
            "redlocks",
            "valkey",
            "valkeys",
            "valkey+unix",
            "valkey-sentinel",
            "valkeys-sentinel",
            "valkey-cluster",
            "valkeys-cluster",
        ]
    ),
    store!(etcd, feature = "etcd", ["etcd://", "etcds://"], []),
    store!(zookeeper, feature = "zookeeper", ["zookeeper://", "zookeepers://"], []),
    store!(postgres, feature = "postgres", ["postgres://"], ["postgresql"]),
    store!(mysql, feature = "mysql", ["mysql://", "mariadb://"], []),
    store!(memcached, feature = "memcached", ["memcached://", "memcacheds://"], []),
    store!(consul, feature = "consul", ["consul://", "consuls://", "consul+unix:"], []),
    store!(s3, feature = "s3", ["s3://"], []),
    store!(dynamodb, feature = "dynamodb", ["dynamodb://"], []),
    store!(kubernetes, feature = "kubernetes", ["k8s://"], ["kubernetes"]),
];

struct Store {
    feature: &'static str,
    beginnings: &'static [&'static str],
    synonyms: &'static [&'static str],
    /// `None` if this build lacks it.
    parser: Option<Parser>,
}

struct Parser {
    /// Returns the options of a URL of this scheme.
    options: fn(&str) -> Table,
    parse: Parse,
}

/// A function that parses a backend URL.
pub type Parse = fn(&Url, Environment<'_>) -> Result<Rc<dyn Location>, UrlError>;

macro_rules! store {
    ($module:ident, $condition:meta, $beginnings:expr, $synonyms:expr) => {
        Store {
            feature: stringify!($module),
            beginnings: &$beginnings,
            synonyms: &$synonyms,
            #[cfg($condition)]
            parser: Some(Parser {
                options: super::$module::Location::options,
                parse: |url, environment| Ok(Rc::new(super::$module::Location::from_url(url, environment)?)),
            }),
            #[cfg(not($condition))]
            parser: None,
        }
    };
}
use store;

impl Store {
    fn of(scheme: &str) -> Option<&'static Store> {
        STORES.iter().find(|store| {
            store.synonyms.contains(&scheme)
                || store.beginnings.iter().any(|beginning| beginning.split(':').next() == Some(scheme))
        })
    }
}

/// Parses the backend URL of a store that is to be used; does not contact it.
///
/// # Errors
/// An unknown scheme or option, a store that this build lacks, a value that the store does not accept, or a username
/// without a password where the store needs both.
pub fn parse(url: &Url, environment: Environment<'_>) -> Result<Rc<dyn Location>, UrlError> {
    let location = parse_without_login(url, environment)?;
    location.check_login()?;
    Ok(location)
}

/// Parses a backend URL, whose username need not have a password.
///
/// # Errors
/// Those of [`parse`], but the last.
pub fn parse_without_login(url: &Url, environment: Environment<'_>) -> Result<Rc<dyn Location>, UrlError> {
    let scheme = url.scheme.as_str();
    match Store::of(scheme) {
        Some(Store { parser: Some(parser), .. }) => {
            let location = (parser.parse)(url, environment)?;
            let options = Options::of(url, (parser.options)(scheme))?;
            match location.unverified().filter(|_| options.switch(REQUIRE_VERIFIED_TLS) == Some(true)) {
                Some(how) => Err(UrlError::new(unverified(&how)).about(REQUIRE_VERIFIED_TLS)),
                None => Ok(location),
            }
        }
        Some(Store { feature, .. }) => {
            Err(UrlError::new(format!("this build has no {scheme}: build it with --features {feature}")))
        }
        None => Err(UrlError::new(format!("unknown scheme '{scheme}': known are {}", known().join(", ")))),
    }
}

/// Returns why a location is refused where servers have to prove their identity, and what makes them do so.
pub fn unverified(how: &str) -> String {
    format!("the server would not be verified ({REQUIRE_VERIFIED_TLS}): {how}")
}

/// Returns the options of URLs with this scheme; `None` for a scheme that this build does not know.
pub fn options(scheme: &str) -> Option<Vec<&'static str>> {
    table(scheme).map(options::names)
}

/// Returns the table of these options.
pub fn table(scheme: &str) -> Option<Table> {
    Store::of(scheme)?.parser.as_ref().map(|parser| (parser.options)(scheme))
}

/// Whether the URLs of some store begin with this scheme.
pub fn is_scheme(text: &str) -> bool {
    Store::of(&text.to_ascii_lowercase()).is_some()
}

/// Returns the options of the URLs of all stores in this build.
pub fn all_options() -> Vec<&'static str> {
    schemes().filter_map(options).flatten().collect()
}

/// Returns a backend URL as it was written, without possible secrets: the value of an option that its store does not
/// have may be the password of a misspelt one.
pub fn redacted(text: &str) -> String {
    let scheme = text.split(':').next().unwrap_or_default().to_ascii_lowercase();
    url::redacted(text, &options(&scheme).unwrap_or_default())
}

/// Returns a word as it may be repeated: a URL without possible secrets.
pub fn repeatable(word: &str) -> String {
    if word.contains("://") { redacted(word) } else { word.to_owned() }
}

/// Returns the schemes of all stores, also of those that this build lacks.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    let beginnings = STORES.iter().flat_map(|store| store.beginnings);
    beginnings.filter_map(|beginning| beginning.split(':').next())
}

/// Returns how the URLs of the stores in this build begin.
pub fn known() -> Vec<&'static str> {
    let built = STORES.iter().filter(|store| store.parser.is_some());
    built.flat_map(|store| store.beginnings).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::options::Value;
    use crate::random::Xorshift;

    /// What the parser of options and the manual take for granted.
    #[test]
    fn the_tables_of_options_are_consistent() {
        for scheme in STORES.iter().flat_map(|store| store.synonyms).copied().chain(schemes()) {
            let Some(table) = table(scheme) else { continue };
            let names = options::names(table);
            for (index, option) in table.iter().copied().flatten().enumerate() {
                let name = option.name;
                assert!(!names[..index].contains(&name), "{scheme} has {name} twice");
                match option.value {
                    Value::Word(default, words) => assert!(words.contains(&default), "{scheme}: {name}"),
                    Value::Synonym(of) => assert!(names.contains(&of), "{scheme}: {name}"),
                    _ => assert!(option.meaning.ends_with('.'), "{scheme}: {name}"),
                }
            }
        }
    }

    /// `DLOCK_HELD` depends on it.
    #[test]
    fn a_shown_url_is_the_same_store() {
        let parsed = |url: &str| {
            let location = Url::parse(url).and_then(|url| parse_without_login(&url, &|_| None));
            location.unwrap_or_else(|error| panic!("{url}: {error}"))
        };
        const PART: &str = "a%20b%25%3F%23%40%26%C3%A9";
        for url in [
            "file:///srv/PART?suffix=PART",
            "redis://PART%3A%2F@h?prefix=PART",
            "postgres://h/PART?username=PART",
            "redis+unix:///run/PART?prefix=PART",
            "redis-sentinel://h/PART?prefix=PART",
            "etcd://PART@h?prefix=PART",
            "zookeeper://h/PART?prefix=PART",
            "postgres://PART@h/PART?owner=PART",
            "mysql://PART@h/PART?prefix=PART",
            "memcached://PART@h?prefix=PART",
            "consul://h?prefix=PART",
            "consul+unix:///run/PART?prefix=PART",
            "s3://PART@bucket/PART?endpoint=http://h",
            "dynamodb://PART@table/PART?endpoint=http://h",
            "k8s://jobs?context=PART&kubeconfig=/PART",
        ] {
            let Some((scheme, _)) = url.split_once(':') else { unreachable!("{url} has a scheme") };
            if Store::of(scheme).is_none_or(|store| store.parser.is_none()) {
                continue;
            }
            let shown = parsed(&url.replace("PART", PART)).display().to_owned();
            assert!(shown.contains("é"), "{shown}");
            assert_eq!(parsed(&shown).display(), shown);
        }
    }

    /// Bytes of all kinds, made by a fixed generator: parsing never panics, and what parses has no control characters.
    #[test]
    fn any_text_is_parsed_or_rejected() {
        let alphabet: Vec<char> =
            "redis:/@?&=#%,[]0123456789abcdefABCDEF.-_ \n\u{0}é\u{202e}\u{1F512}".chars().collect();
        let mut random = Xorshift::new();
        for _ in 0..200_000 {
            let mut text = random.text(&alphabet, 40);
            if random.below(2) == 0 {
                text.insert_str(0, "redis://");
            }
            if let Ok(url) = Url::parse(&text) {
                assert!(url.hosts.iter().all(|host| !host.name.is_empty()), "{text:?}");
                let _ = parse(&url, &|_| None);
            }
        }
    }
}
