//! The options of a URL, under the names that libpq has for them where it has the option.

use std::fmt;

use super::gate::{Choice, Recipe};
use crate::backend::sql::TABLE;
use crate::backend::url::{Url, UrlError};

pub(super) const OPTIONS: &[&str] = &[
    "table",
    "recipe",
    "key",
    "prefix",
    "clock",
    "zone",
    "host",
    "port",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "passfile",
    "target_session_attrs",
    "username",
    "password_file",
    "ca_file",
    "cert_file",
    "key_file",
    "server_name",
    "insecure",
];

/// The longest identifier of a server that was built with its defaults.
const LONGEST_IDENTIFIER: usize = 63;

/// The options, apart from their meaning.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) table: Table,
    pub(super) recipe: Recipe,
    /// The directory of a Unix socket.
    pub(super) host: Option<String>,
    /// The number of the socket.
    pub(super) port: Option<u16>,
    pub(super) tls: bool,
    pub(super) pass_file: Option<String>,
    /// Those that every networked store has, under their common names.
    pub(super) security: Vec<(&'static str, String)>,
}

impl Options {
    /// Reads the options of a URL.
    pub(super) fn of(url: &Url) -> Result<Options, UrlError> {
        let table = Table { schema: None, name: TABLE.to_owned() };
        let mut options = Options {
            table,
            recipe: Recipe::default(),
            host: None,
            port: None,
            tls: false,
            pass_file: None,
            security: Vec::new(),
        };
        let mut choice = Choice::default();
        for (name, value) in &url.query {
            match name.as_str() {
                "recipe" => choice.recipe = Some(value),
                "key" => choice.key = Some(value),
                "prefix" => choice.prefix = Some(value),
                "clock" => choice.clock = Some(value),
                "zone" => choice.zone = Some(value),
                _ => options.set(&url.scheme, name, value).map_err(|error| error.about(name))?,
            }
        }
        options.recipe = Recipe::of(&choice)?;
        Ok(options)
    }

    fn set(&mut self, scheme: &str, name: &str, value: &str) -> Result<(), UrlError> {
        let common = match name {
            "sslrootcert" => "ca_file",
            "sslcert" => "cert_file",
            "sslkey" => "key_file",
            name => name,
        };
        match name {
            "table" => self.table = Table::parse(value)?,
            "host" => self.host = Some(value.to_owned()),
            "port" => {
                let port = value.parse().ok().filter(|port| *port != 0);
                self.port = Some(port.ok_or_else(|| UrlError::new("port= is a number from 1 to 65535"))?);
            }
            "passfile" => self.pass_file = Some(value.to_owned()),
            "sslmode" => self.set_tls(value)?,
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

    fn set_tls(&mut self, mode: &str) -> Result<(), UrlError> {
        self.tls = match mode {
            "disable" => false,
            "verify-full" => true,
            "require" => {
                self.security.push(("insecure", "true".to_owned()));
                true
            }
            "verify-ca" => {
                let text = "use sslmode=verify-full, with server_name= for the name in the certificate";
                return Err(UrlError::new(text));
            }
            "allow" | "prefer" => {
                let text =
                    format!("sslmode={mode} may fall back to no encryption: use verify-full or disable");
                return Err(UrlError::new(text));
            }
            _ => return Err(UrlError::new("sslmode= is disable, require or verify-full")),
        };
        Ok(())
    }
}

/// The name of a table.
#[derive(Debug)]
pub(super) struct Table {
    schema: Option<String>,
    name: String,
}

impl Table {
    fn parse(text: &str) -> Result<Table, UrlError> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        let is_identifier = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            is_plain && !text.is_empty() && text.len() <= LONGEST_IDENTIFIER
        };
        match is_identifier(name) && schema.is_none_or(is_identifier) {
            true => Ok(Table { schema: schema.map(str::to_owned), name: name.to_owned() }),
            false => {
                let text = "table= takes a name, or schema.name, of letters, digits and underscores";
                Err(UrlError::new(text))
            }
        }
    }

    /// Returns the name for use in statements.
    pub(super) fn quoted(&self) -> String {
        let schema = self.schema.as_ref().map(|schema| format!("\"{schema}\".")).unwrap_or_default();
        format!("{schema}\"{}\"", self.name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{schema}.")?;
        }
        f.write_str(&self.name)
    }
}
