//! The options of a URL.

use std::path::PathBuf;

use super::Location;
use super::security::{Password, TlsSettings};
use super::topology::database_of;
use crate::backend::redis::recipe::Recipe;
use crate::backend::url::UrlError;

/// The options of a URL; the first two apply to sentinels only.
const OPTIONS: &[&str] = &[
    "sentinel_username",
    "sentinel_password_file",
    "recipe",
    "prefix",
    "db",
    "username",
    "password_file",
    "wait_replicas",
    "protocol",
    "ca_file",
    "cert_file",
    "key_file",
    "server_name",
    "insecure",
];

/// Returns the options of a URL of this scheme.
pub(in crate::backend) fn options(scheme: &str) -> &'static [&'static str] {
    if scheme.ends_with("-sentinel") { OPTIONS } else { &OPTIONS[2..] }
}

impl Location {
    /// Applies one option of the URL.
    pub(super) fn set(
        &mut self,
        scheme: &str,
        tls: &mut Option<TlsSettings>,
        name: &str,
        value: &str,
    ) -> Result<(), UrlError> {
        let bad = |text: String| Err(UrlError::new(text));
        let known = options(scheme);
        match name {
            _ if !known.contains(&name) => {
                return bad(format!("unknown option '{name}' for {scheme}:// (known: {})", known.join(", ")));
            }
            // The default depends on the recipe.
            "prefix" => {}
            "recipe" => self.recipe = Recipe::named(value)?,
            "db" => self.database = database_of(value)?,
            "username" => self.username = Some(value.to_owned()),
            "password_file" if value.starts_with('/') => self.password = Password::File(PathBuf::from(value)),
            "sentinel_username" => self.sentinel_username = Some(value.to_owned()),
            "sentinel_password_file" if value.starts_with('/') => {
                self.sentinel_password = Password::File(PathBuf::from(value));
            }
            "password_file" | "sentinel_password_file" => {
                return bad(format!("{name}= takes an absolute path"));
            }
            "wait_replicas" => match value.parse() {
                Ok(count) => self.wait_replicas = count,
                Err(_) => return bad(format!("wait_replicas= is a number of replicas, not '{value}'")),
            },
            "protocol" => match value {
                "2" | "resp2" => self.resp3 = false,
                "3" | "resp3" => self.resp3 = true,
                _ => return bad(format!("protocol= is resp2 or resp3, not '{value}'")),
            },
            "ca_file" | "cert_file" | "key_file" | "server_name" | "insecure" => match tls {
                None if scheme.ends_with("+unix") => {
                    return bad(format!("'{name}' needs TLS, which a Unix socket does not use"));
                }
                None => {
                    let secure = scheme.replacen("redis", "rediss", 1).replacen("valkey", "valkeys", 1);
                    let secure = secure.replace("redlock", "redlocks");
                    return bad(format!("'{name}' needs TLS: use {secure}:// instead of {scheme}://"));
                }
                Some(tls) => tls.set(name, value)?,
            },
            _ => {}
        }
        Ok(())
    }
}
