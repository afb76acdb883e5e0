//! The location of a PostgreSQL database, parsed from a URL without contacting a server.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use super::authentication::Methods;
use super::encryption::SslMode;
use super::key::Rule;
use super::options::{OPTIONS, Table, methods, options};
use super::pass_file::PassFile;
use super::recipe::Recipe;
use crate::backend::StoreError;
use crate::backend::net::{self, Address, BoundedStream, Security, Session, distinct, list};
use crate::backend::options::{self, Options};
use crate::backend::url::{Environment, Host, Url, UrlError, encoded};
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
    pub fn options(_scheme: &str) -> options::Table {
        OPTIONS
    }

    /// Parses `postgres://[user[:password]@]host[:port][,...][/database]`. Without a host, the option `host` names the
    /// directory of a Unix socket.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let mut options = options(url, environment)?;
        let mode = SslMode::of(&options)?;
        let other = match mode {
            SslMode::Disable => "sslmode=verify-full with postgres",
            _ => "sslmode=disable with postgres",
        };
        let no_tls = ": add sslmode=verify-full";
        let mut security = Security::new(url, &options, mode.settings(), other.to_owned(), no_tls)?;
        security.credentials.set_default_password(environment("PGPASSWORD"));
        let user = security.credentials.username().map(str::to_owned).or_else(login_name);
        let user = user.ok_or_else(|| UrlError::new("this user has no name: add the role to the URL"))?;
        let database = url.path.strip_prefix('/').filter(|name| !name.is_empty()).map(str::to_owned);
        let owner = options.given("owner").map(str::to_owned);
        if owner.as_deref() == Some("") {
            return Err(UrlError::new("owner= takes the name of a role").about("owner"));
        }
        let recipe = Recipe::of(&mut options, "advisory", &["key", "prefix"], Rule::of)?;
        let servers = servers(url, &mut options)?;
        let hosts = match servers.as_slice() {
            [Address::Socket(_)] => String::new(),
            servers => list(servers),
        };
        let path = database.as_ref().map(|name| format!("/{}", encoded(name))).unwrap_or_default();
        let shown_user = security.credentials.in_url();
        Ok(Location {
            servers,
            security,
            user,
            table: Table::of("table", &options)?,
            shedlock_table: Table::of("shedlock_table", &options)?,
            owner,
            recipe,
            mode,
            methods: methods(&options)?,
            pass_file: PassFile::of(options.given("passfile").map(str::to_owned), environment),
            display: format!("postgres://{shown_user}{hosts}{path}{}", options.query()),
            database,
        })
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
            Address::Socket(path) => (pass_file_host(path), socket_port(path)),
        };
        file.password(&host, port, self.database.as_deref().unwrap_or(&self.user), &self.user)
    }
}

/// Returns the addresses in the authority, or of the socket in a directory.
fn servers(url: &Url, options: &mut Options) -> Result<Vec<Address>, UrlError> {
    let Some(directory) = options.given("host").map(str::to_owned) else {
        options.reject(&["port"], |_| "port= is for a URL without a host".into())?;
        if url.hosts.is_empty() {
            let text = "postgres:// takes a host, such as postgres://db1/app, or the directory of a Unix socket, such as \
                        postgres:///app?host=/run/postgresql";
            return Err(UrlError::new(text));
        }
        return distinct(url.hosts.iter().map(|host| Address::of(host, DEFAULT_PORT)));
    };
    if !url.hosts.is_empty() {
        options.reject(&["host"], |_| "host= is for a URL without a host".into())?;
    }
    if !directory.starts_with('/') {
        let text =
            format!("host= takes the directory of a Unix socket; write postgres://{directory}/ for a host");
        return Err(UrlError::new(text).about("host"));
    }
    let port: NonZeroU16 = options.number("port")?;
    let socket = PathBuf::from(directory).join(format!(".s.PGSQL.{port}"));
    // Without a slash at its end.
    options.replace("host", &socket.parent().unwrap_or(&socket).display().to_string());
    Ok(vec![Address::Socket(socket)])
}

/// Returns what stands for a socket in a password file, as in libpq: its directory, or `localhost` if the directory is the
/// default one, which depends on how libpq was built.
fn pass_file_host(socket: &Path) -> String {
    const DEFAULTS: [&str; 3] = ["/run/postgresql", "/var/run/postgresql", "/tmp"];
    let directory = socket.parent().unwrap_or(socket);
    match DEFAULTS.iter().any(|default| directory == Path::new(default)) {
        true => "localhost".to_owned(),
        false => directory.display().to_string(),
    }
}

/// Returns the port in the name of a socket.
fn socket_port(path: &Path) -> u16 {
    let port = path.extension().and_then(|port| port.to_str()).and_then(|port| port.parse().ok());
    port.unwrap_or(DEFAULT_PORT)
}

/// Returns the name of the user that runs dlock, as libpq takes it for the role.
fn login_name() -> Option<String> {
    name_services::user(nix::unistd::geteuid()).map(|user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run inside the hold connects as the same role: it takes the URL from `DLOCK_HELD`.
    #[test]
    fn a_role_in_an_option_is_shown() {
        let display = |url: &str| {
            let location = Url::parse(url).and_then(|url| Location::from_url(&url, &|_| None));
            location.unwrap_or_else(|error| panic!("{url}: {error}")).display
        };
        for url in ["postgres://db/app?username=a%20b", "postgres://other@db/app?username=a%20b"] {
            let shown = display(url);
            assert_eq!(shown, "postgres://a%20b@db:5432/app");
            assert_eq!(display(&shown), shown);
        }
    }

    #[test]
    fn a_socket_stands_in_a_password_file_as_libpq_names_it() {
        for (directory, host) in [
            ("/run/postgresql", "localhost"),
            ("/var/run/postgresql/", "localhost"),
            ("/tmp", "localhost"),
            ("/srv/db", "/srv/db"),
            ("/tmp/db/", "/tmp/db"),
        ] {
            let url = format!("postgres:///app?host={directory}");
            let location = Url::parse(&url).and_then(|url| Location::from_url(&url, &|_| None));
            let location = location.unwrap_or_else(|error| panic!("{url}: {error}"));
            let Address::Socket(socket) = &location.servers[0] else { panic!("{url}") };
            assert_eq!(pass_file_host(socket), host);
        }
    }
}
