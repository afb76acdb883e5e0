//! The options of a URL, under the names that libpq has for them where it has the option.

use std::fmt;

use super::authentication::Methods;
use super::encryption::{SslMode, of_environment};
use super::gate::Recipe;
use super::key::Rule;
use crate::backend::shedlock;
use crate::backend::sql::{Choice, TABLE};
use crate::backend::url::{Environment, REQUIRE_VERIFIED_TLS, Url, UrlError};

pub(super) const OPTIONS: &[&str] = &[
    "table",
    "owner",
    "recipe",
    "key",
    "prefix",
    "clock",
    "zone",
    "shedlock_table",
    "host",
    "port",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "require_auth",
    "channel_binding",
    "passfile",
    "target_session_attrs",
    "username",
    "password_file",
    "ca_file",
    "cert_file",
    "key_file",
    "server_name",
    "insecure",
    REQUIRE_VERIFIED_TLS,
];

/// The longest identifier of a server that was built with its defaults.
const LONGEST_IDENTIFIER: usize = 63;

/// The options, apart from their meaning.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) table: Table,
    pub(super) shedlock_table: Table,
    /// A role whose tables are used, too.
    pub(super) owner: Option<String>,
    pub(super) recipe: Recipe,
    /// The directory of a Unix socket.
    pub(super) host: Option<String>,
    /// The number of the socket.
    pub(super) port: Option<u16>,
    /// `None` if it is not given.
    mode: Option<SslMode>,
    pub(super) methods: Methods,
    pub(super) pass_file: Option<String>,
    /// Those that every networked store has, under their common names.
    pub(super) security: Vec<(&'static str, String)>,
}

impl Options {
    /// Reads the options of a URL, and of the environment where the URL has none.
    pub(super) fn of(url: &Url, environment: Environment<'_>) -> Result<Options, UrlError> {
        let mut options = Options {
            table: Table::named("table", TABLE),
            shedlock_table: Table::named("shedlock_table", shedlock::TABLE),
            owner: None,
            recipe: Recipe::default(),
            host: None,
            port: None,
            mode: None,
            methods: Methods::default(),
            pass_file: None,
            security: Vec::new(),
        };
        let (mut choice, mut key, mut prefix) = (Choice::default(), None, None);
        for (name, value) in &url.query {
            match name.as_str() {
                "recipe" => choice.recipe = Some(value),
                "key" => key = Some(value.as_str()),
                "prefix" => prefix = Some(value.as_str()),
                "clock" => choice.clock = Some(value),
                "zone" => choice.zone = Some(value),
                _ => options.set(&url.scheme, name, value).map_err(|error| error.about(name))?,
            }
        }
        let of_session = [("key", key), ("prefix", prefix)];
        options.recipe = Recipe::of(&choice, "advisory", &of_session, || Rule::of(key, prefix))?;
        let is_named = options.shedlock_table != Table::named("shedlock_table", shedlock::TABLE);
        if is_named && !matches!(options.recipe, Recipe::ShedLock(_)) {
            return Err(UrlError::new("shedlock_table= is for recipe=shedlock").about("shedlock_table"));
        }
        options.set_from(environment, url)?;
        options.settle()?;
        Ok(options)
    }

    /// Sets what the environment sets, and the URL does not.
    fn set_from(&mut self, environment: Environment<'_>, url: &Url) -> Result<(), UrlError> {
        for (variable, name, value) in of_environment(&url.query, environment)? {
            let is_of_tls = name.starts_with("ssl");
            // As in libpq, TLS is for networks.
            if is_of_tls && (self.host.is_some() || self.mode == Some(SslMode::Disable)) {
                continue;
            }
            self.set(&url.scheme, name, &value)
                .map_err(|error| UrlError::new(format!("{variable}={value}: {error}")))?;
        }
        Ok(())
    }

    /// Makes the mode what the other options imply, as libpq does.
    fn settle(&mut self) -> Result<(), UrlError> {
        let has = |wanted: &str| self.security.iter().any(|(name, _)| *name == wanted);
        if self.mode == Some(SslMode::Require) && has("ca_file") && !has("insecure") {
            self.mode = Some(SslMode::VerifyCa);
        }
        if self.mode.is_none() && has("insecure") {
            self.mode = Some(SslMode::Require);
        }
        let unused = ["ca_file", "server_name"].into_iter().find(|name| has(name));
        match unused.filter(|_| self.mode() == SslMode::Prefer) {
            Some(name) => {
                let text = format!("'{name}' needs a server that is verified: add sslmode=verify-full");
                Err(UrlError::new(text).about(name))
            }
            None => Ok(()),
        }
    }

    /// Returns the mode, by default that of libpq.
    pub(super) fn mode(&self) -> SslMode {
        self.mode.unwrap_or_default()
    }

    fn set(&mut self, scheme: &str, name: &str, value: &str) -> Result<(), UrlError> {
        let common = match name {
            "sslrootcert" => "ca_file",
            "sslcert" => "cert_file",
            "sslkey" => "key_file",
            name => name,
        };
        match name {
            "table" => self.table = Table::parse("table", value)?,
            "shedlock_table" => self.shedlock_table = Table::parse("shedlock_table", value)?,
            "owner" if value.is_empty() => return Err(UrlError::new("owner= takes the name of a role")),
            "owner" => self.owner = Some(value.to_owned()),
            "host" => self.host = Some(value.to_owned()),
            "port" => {
                let port = value.parse().ok().filter(|port| *port != 0);
                self.port = Some(port.ok_or_else(|| UrlError::new("port= is a number from 1 to 65535"))?);
            }
            "passfile" => self.pass_file = Some(value.to_owned()),
            "sslmode" => self.mode = Some(SslMode::parse(value)?),
            "sslrootcert" if value == "system" => match self.mode {
                None | Some(SslMode::VerifyFull) => self.mode = Some(SslMode::VerifyFull),
                Some(_) => return Err(UrlError::new("sslrootcert=system needs sslmode=verify-full")),
            },
            "require_auth" => self.methods = Methods::parse(value)?,
            "channel_binding" if ["disable", "prefer"].contains(&value) => {}
            "channel_binding" => {
                return Err(UrlError::new("channel binding is not supported: use sslmode=verify-full"));
            }
            "target_session_attrs" if ["read-write", "primary"].contains(&value) => {}
            "target_session_attrs" => {
                return Err(UrlError::new("locks are always taken on the primary (read-write)"));
            }
            _ => match OPTIONS.iter().find(|known| **known == common) {
                Some(known) => self.security.push((known, value.to_owned())),
                None => return Err(UrlError::unknown_option(name, scheme, OPTIONS)),
            },
        }
        Ok(())
    }
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
    /// Returns a table in the default schema.
    fn named(option: &'static str, name: &str) -> Table {
        Table { schema: PUBLIC.to_owned(), name: name.to_owned(), has_schema: false, option }
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

    /// Returns the option of a URL, unless it is the default.
    pub(super) fn in_url(&self, default: &str) -> Option<String> {
        let Table { schema, name, has_schema, option } = self;
        match has_schema {
            true => Some(format!("{option}={schema}.{name}")),
            false => (name != default).then(|| format!("{option}={name}")),
        }
    }
}

/// As in messages: with its schema.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}
