//! The location of a PostgreSQL database, parsed from a URL without contacting a server.

use std::net::SocketAddr;
use std::path::PathBuf;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::authentication::Methods;
use super::encryption::SslMode;
use super::gate::{self, Recipe};
use super::options::{OPTIONS, Options, Table};
use super::pass_file::PassFile;
use crate::backend::StoreError;
use crate::backend::net::{self, Address, BoundedStream, Security, Session, distinct, list};
use crate::backend::shedlock;
use crate::backend::sql::TABLE;
use crate::backend::url::{Environment, Host, Url, UrlError};
use crate::name_services;

const DEFAULT_PORT: u16 = 5432;

/// The servers of a database, and how to connect to them.
#[derive(Clone)]
pub struct Location {
    pub(super) servers: Vec<Address>,
    pub(super) security: Security,
    /// The role.
    pub(super) user: String,
    pub(super) database: Option<String>,
    pub(super) table: Table,
    /// That of ShedLock.
    pub(super) shedlock_table: Table,
    /// A role whose tables are used, too.
    pub(super) owner: Option<String>,
    pub(super) recipe: Recipe,
    pub(super) mode: SslMode,
    /// How the role proves its identity.
    pub(super) methods: Methods,
    pass_file: Option<PassFile>,
    pub(super) display: String,
}

impl Location {
    /// Returns the options of a URL.
    pub fn options(_scheme: &str) -> &'static [&'static str] {
        OPTIONS
    }

    /// Parses `postgres://[user[:password]@]host[:port][,...][/database]`. Without a host, the option `host` names the
    /// directory of a Unix socket.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let options = Options::of(url, environment)?;
        let mode = options.mode();
        let other = match mode {
            SslMode::Disable => "sslmode=verify-full with postgres",
            _ => "sslmode=disable with postgres",
        };
        let mut security = Security::of(url, mode.settings(), other.to_owned());
        for (name, value) in &options.security {
            let is_known = security.set(name, value, ": add sslmode=verify-full");
            is_known.map_err(|error| error.about(name))?;
        }
        security.check()?;
        security.credentials.set_default_password(environment("PGPASSWORD"));
        let user = security.credentials.username().map(str::to_owned).or_else(login_name);
        let user = user.ok_or_else(|| UrlError::new("this user has no name: add the role to the URL"))?;
        let database = match url.path.strip_prefix('/').unwrap_or_default() {
            "" => None,
            name => Some(name.to_owned()),
        };
        let mut location = Location {
            servers: servers(url, &options)?,
            pass_file: PassFile::of(options.pass_file, environment),
            security,
            user,
            database,
            table: options.table,
            shedlock_table: options.shedlock_table,
            owner: options.owner,
            recipe: options.recipe,
            mode,
            methods: options.methods,
            display: String::new(),
        };
        location.display = location.describe(url);
        Ok(location)
    }

    /// Returns the URL without secrets and without default values.
    fn describe(&self, url: &Url) -> String {
        let user = url.username.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let database = self.database.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
        let mut options = Vec::new();
        let hosts = match self.servers.as_slice() {
            [Address::Socket(path)] => {
                options.push(format!("host={}", path.parent().unwrap_or(path).display()));
                let port = Some(socket_port(path)).filter(|port| *port != DEFAULT_PORT);
                options.extend(port.map(|port| format!("port={port}")));
                String::new()
            }
            servers => list(servers),
        };
        options.extend(self.table.in_url(TABLE));
        options.extend(self.owner.as_ref().map(|owner| format!("owner={}", encoded(owner))));
        options.extend(self.recipe.options(|rule| gate::options(*rule)));
        options.extend(self.shedlock_table.in_url(shedlock::TABLE));
        let options = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("postgres://{user}{hosts}{database}{options}")
    }

    /// Returns the location with a single server.
    pub(super) fn only(&self, server: &Address) -> Location {
        Location { servers: vec![server.clone()], ..self.clone() }
    }

    /// Connects to a server, with TLS according to `sslmode`. If the server has been connected to, `peer` is its address.
    ///
    /// # Errors
    /// It cannot be reached, or does not prove its identity.
    pub(super) async fn reach(
        &self,
        server: &Address,
        peer: Option<SocketAddr>,
    ) -> Result<BoundedStream, StoreError> {
        // The files are read before the network is used.
        let session = Session::of(self.security.tls.as_ref(), server)?;
        let host = peer.map(|peer| Host { name: peer.ip().to_string(), port: Some(peer.port()) });
        let address = host.map_or_else(|| server.clone(), Address::Tcp);
        let socket = net::connect(&address).await?;
        match net::secure(socket, session, &self.security).await {
            // Both sides have no version of TLS in common, or this is another kind of server.
            Err(_) if self.may_be_plain() => self.reach_plainly(&address).await,
            reached => reached,
        }
    }

    /// Connects to a server without TLS.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(super) async fn reach_plainly(&self, server: &Address) -> Result<BoundedStream, StoreError> {
        let mut security = self.security.clone();
        security.tls = None;
        net::open(server, &security).await
    }

    /// Returns whether a connection without TLS will do, if one with TLS cannot be had.
    pub(super) fn may_be_plain(&self) -> bool {
        self.mode == SslMode::Prefer
    }

    /// Returns whether only the server can read what is sent to it.
    pub(super) fn is_private(&self, server: &Address, stream: &BoundedStream) -> bool {
        let is_verified = self.security.tls.as_ref().is_some_and(|tls| !tls.insecure);
        matches!(server, Address::Socket(_)) || stream.is_encrypted() && is_verified
    }

    /// Returns the current password for a server.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn password(&self, server: &Address) -> Result<Option<String>, StoreError> {
        if let Some(password) = self.security.credentials.password()? {
            return Ok(Some(password));
        }
        let Some(file) = &self.pass_file else { return Ok(None) };
        let (host, port) = match server {
            Address::Tcp(host) => (host.name.clone(), host.port.unwrap_or(DEFAULT_PORT)),
            // As in libpq, also for a directory of sockets that is not the default.
            Address::Socket(path) => ("localhost".to_owned(), socket_port(path)),
        };
        file.password(&host, port, self.database.as_deref().unwrap_or(&self.user), &self.user)
    }
}

/// Returns a value as it is written in a URL.
fn encoded(value: &str) -> String {
    utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()
}

/// Returns the addresses in the authority, or of the socket in a directory.
fn servers(url: &Url, options: &Options) -> Result<Vec<Address>, UrlError> {
    match options.host.as_deref() {
        None if url.hosts.is_empty() => {
            let text = "postgres:// takes a host, such as postgres://db1/app, or the directory of a Unix socket, such as \
                        postgres:///app?host=/run/postgresql";
            Err(UrlError::new(text))
        }
        None => distinct(url.hosts.iter().map(|host| Address::of(host, DEFAULT_PORT))),
        Some(_) if !url.hosts.is_empty() => {
            Err(UrlError::new("host= is for a URL without a host").about("host"))
        }
        Some(directory) if directory.starts_with('/') => {
            let port = options.port.unwrap_or(DEFAULT_PORT);
            Ok(vec![Address::Socket(PathBuf::from(directory).join(format!(".s.PGSQL.{port}")))])
        }
        Some(host) => {
            let text =
                format!("host= takes the directory of a Unix socket; write postgres://{host}/ for a host");
            Err(UrlError::new(text).about("host"))
        }
    }
}

/// Returns the port in the name of a socket.
fn socket_port(path: &std::path::Path) -> u16 {
    let port = path.extension().and_then(|port| port.to_str()).and_then(|port| port.parse().ok());
    port.unwrap_or(DEFAULT_PORT)
}

/// Returns the name of the user that runs dlock, as libpq takes it for the role.
fn login_name() -> Option<String> {
    name_services::user(nix::unistd::geteuid()).map(|user| user.name)
}
