//! The options of a URL, under the names that libpq has for them where it has the option.

use std::fmt;

use super::authentication::Methods;
use super::encryption::{SslMode, of_environment};
use super::key::Rule;
use crate::backend::net::COMMON;
use crate::backend::options::Value::{Number, Only, Text, Word};
use crate::backend::options::{self, Options, UrlOption, of_access, of_lock, synonym, words};
use crate::backend::shedlock::{self, Clock};
use crate::backend::sql::TABLE;
use crate::backend::url::{Environment, Url, UrlError};

const OWN: &[UrlOption] = &[
    of_lock("host", Text(""), "The directory of a Unix socket, in a URL without a host."),
    of_lock("port", Number("5432", "a number from 1 to 65535"), "The port of that socket."),
    of_lock("table", Text(TABLE), "The table, such as `locks` or `jobs.locks`."),
    of_lock("owner", Text(""), "A role that is trusted as the owner of the table."),
    of_lock("recipe", Word("table", &["table", "advisory", "shedlock"]), "What a lock is, besides its row."),
    of_lock("key", Word("medallion", &words(&Rule::ALL)), "How a name becomes the key of an advisory lock."),
    of_lock("prefix", Number("0", "a number"), "The number that is part of the key with `key=rails`."),
    of_lock("clock", Clock::OPTION, "The clock of the other programs with `recipe=shedlock`."),
    of_lock("zone", Text(""), "Their time zone with `clock=jvm-zone`."),
    of_lock("shedlock_table", Text(shedlock::TABLE), "The table of ShedLock, in the form of `table`."),
    of_access("sslmode", Word("prefer", &words(&SslMode::ALL)), "Whether a connection uses TLS."),
    of_access("sslrootcert", Text(""), "The same as `ca_file`, or `system` for those of the system."),
    synonym("sslcert", "cert_file"),
    synonym("sslkey", "key_file"),
    of_access("require_auth", Text(""), "The authentication methods that are allowed, as in libpq."),
    of_access(
        "channel_binding",
        Only(&["disable", "prefer"], "channel binding is not supported: use sslmode=verify-full"),
        "Without effect: dlock does not use channel binding.",
    ),
    of_access("passfile", Text(""), "The password file, instead of `PGPASSFILE` and `~/.pgpass`."),
    of_access(
        "target_session_attrs",
        Only(&["read-write", "primary"], "locks are always taken on the primary (read-write)"),
        "Without effect: locks are always taken on the primary.",
    ),
];
pub(super) const OPTIONS: options::Table = &[OWN, COMMON];

/// The longest identifier of a server that was built with its defaults.
const LONGEST_IDENTIFIER: usize = 63;

/// Returns the options of a URL, and of the environment where the URL has none.
pub(super) fn options(url: &Url, environment: Environment<'_>) -> Result<Options, UrlError> {
    let mut options = Options::of(url, OPTIONS)?;
    for (variable, name, value) in of_environment(&url.query, environment)? {
        let is_plain = options.given("host").is_some() || options.given("sslmode") == Some("disable");
        // As in libpq, TLS is for networks.
        if name.starts_with("ssl") && is_plain {
            continue;
        }
        let added = options.add(name, &value).and_then(|()| match name {
            "require_auth" => methods(&options).map(drop),
            "sslrootcert" => SslMode::of(&options).map(drop),
            _ => Ok(()),
        });
        added.map_err(|error| UrlError::new(format!("{variable}={value}: {error}")))?;
    }
    let root = options.given("sslrootcert").map(str::to_owned);
    match root.filter(|root| root != "system") {
        Some(root) => {
            options.reject(&["ca_file"], |name| options::twice(name, "sslrootcert"))?;
            options.add("ca_file", &root).map(|()| options)
        }
        None => Ok(options),
    }
}

/// Returns the methods of authentication that are allowed.
pub(super) fn methods(options: &Options) -> Result<Methods, UrlError> {
    options.parse("require_auth", Methods::parse)
}

/// The schema of a table that is named without one.
pub(super) const PUBLIC: &str = "public";

/// The name of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) schema: String,
    pub(super) name: String,
    /// The schema was given, so that a table in another one does not matter.
    pub(super) has_schema: bool,
    /// The option that names it.
    pub(super) option: &'static str,
}

impl Table {
    /// Returns the table that an option names.
    pub(super) fn of(option: &'static str, options: &Options) -> Result<Table, UrlError> {
        options.parse(option, |text| Table::parse(option, text))
    }

    fn parse(option: &'static str, text: &str) -> Result<Table, UrlError> {
        let (schema, name) = text.split_once('.').unwrap_or((PUBLIC, text));
        let is_identifier = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            is_plain && !text.is_empty() && text.len() <= LONGEST_IDENTIFIER
        };
        if !is_identifier(name) || !is_identifier(schema) {
            let text = format!("{option}= takes a name, or schema.name, of letters, digits and underscores");
            return Err(UrlError::new(text));
        }
        // A temporary table would be that of one session.
        if schema.starts_with("pg_") || schema == "information_schema" {
            let text = format!("{option}= cannot be in the schema {schema}, which belongs to the server");
            return Err(UrlError::new(text));
        }
        let (schema, has_schema) = (schema.to_owned(), text.contains('.'));
        Ok(Table { schema, name: name.to_owned(), has_schema, option })
    }

    /// Returns the name for use in statements, where no search path matters.
    pub(super) fn quoted(&self) -> String {
        format!("\"{}\".\"{}\"", self.schema, self.name)
    }
}

/// As in messages: with its schema.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}
