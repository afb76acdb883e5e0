//! The location of an ensemble and the paths of its nodes, parsed from a URL without contacting a server.

use percent_encoding::percent_decode_str;

use super::connection::Connection;
use super::message::Access;
use super::recipe::Recipe;
use crate::backend::StoreError;
use crate::backend::net::{Address, COMMON, Security, distinct, list, open};
use crate::backend::options::Value::{Text, Word};
use crate::backend::options::{Options, Table, UrlOption, of_lock, words};
use crate::backend::url::{Environment, Url, UrlError, encoded};
use crate::lock::LockName;

const DEFAULT_PORT: u16 = 2181;
/// What the names of dlock's own nodes in the directory of the locks begin with.
pub(super) const RESERVED: &str = "dlock#";
/// The node that has the metadata of all locks.
pub(super) const METADATA_NODE: &str = "dlock#beside";
/// The node that is created and removed to read the clock.
const CLOCK_NODE: &str = "dlock#clock";
/// The node that has one for each lock that is frozen, for commands that list the locks. The freeze itself stands in the
/// metadata of the lock.
pub(super) const FROZEN_NODE: &str = "dlock#frozen";
/// The node that has those of nested runs.
pub(super) const INSIDE_NODE: &str = "dlock#inside";
const OWN: &[UrlOption] = &[
    of_lock("recipe", Word("curator", &words(&Recipe::ALL)), "The recipe of other programs."),
    of_lock("prefix", Text("/dlock/"), "The prefix of the path of a lock, below *ROOT*."),
];
const OPTIONS: Table = &[OWN, COMMON];

/// An ensemble that stores locks, and how to connect to it.
#[derive(Clone)]
pub struct Location {
    pub(super) servers: Vec<Address>,
    pub(super) security: Security,
    pub(super) recipe: Recipe,
    /// The node that all others are below; empty for the root. Never created.
    pub(super) chroot: String,
    /// The directory of the locks, from the root on, with a slash at its end.
    pub(super) directory: String,
    /// What the names of the nodes in the directory begin with.
    pub(super) stem: String,
    pub(super) display: String,
}

/// The paths of a lock.
pub(super) struct Paths {
    /// The parent of the entries.
    pub(super) lock: String,
    /// Its metadata.
    pub(super) metadata: String,
    /// What shows that it is frozen.
    pub(super) frozen: String,
}

impl Location {
    /// Returns the options of a URL.
    pub fn options(_: &str) -> Table {
        OPTIONS
    }

    /// `zookeeper://[user:password@]host[:port][,...][/chroot]`, `zookeepers://` for TLS.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, _: Environment<'_>) -> Result<Location, UrlError> {
        let scheme = url.scheme.as_str();
        if url.hosts.is_empty() {
            return Err(UrlError::new(format!(
                "{scheme}:// takes the servers of an ensemble, such as {scheme}://h1,h2,h3"
            )));
        }
        let servers = distinct(url.hosts.iter().map(|host| Address::of(host, DEFAULT_PORT)))?;
        let options = Options::of(url, OPTIONS)?;
        let security = Security::of_scheme(url, &options, ["zookeeper", "zookeepers"])?;
        security.credentials.check_username("digest authentication")?;
        let chroot = match url.path.trim_end_matches('/') {
            "" => String::new(),
            path => path.to_owned(),
        };
        let (directory, stem) = format!("/{}", options.get("prefix").trim_start_matches('/'))
            .rsplit_once('/')
            .map(|(directory, stem)| (format!("{chroot}{directory}/"), stem.to_owned()))
            .unwrap_or_default();
        check_path(&format!("{directory}{stem}")).map_err(|error| error.about("prefix"))?;
        let recipe = options.word("recipe", &Recipe::ALL);
        let user = security.credentials.in_url();
        let display = format!("{scheme}://{user}{}{}{}", list(&servers), encoded(&chroot), options.query());
        Ok(Location { servers, security, recipe, chroot, directory, stem, display })
    }

    pub(super) fn paths(&self, name: &LockName) -> Paths {
        let node = format!("{}{}", self.stem, encode(name));
        let directory = &self.directory;
        Paths {
            lock: format!("{directory}{node}"),
            metadata: format!("{directory}{METADATA_NODE}/{node}"),
            frozen: format!("{directory}{FROZEN_NODE}/{node}"),
        }
    }

    /// Returns the path of the node that is created to read the clock of the leader.
    pub(super) fn clock_path(&self) -> String {
        format!("{}{CLOCK_NODE}", self.directory)
    }

    /// Returns the name of the lock that has a node of this name in the directory; `None` for other nodes.
    pub(super) fn name_of(&self, node: &str) -> Option<LockName> {
        let rest = node.strip_prefix(&self.stem)?;
        let name = LockName::new(&percent_decode_str(rest).decode_utf8().ok()?).ok()?;
        (encode(&name) == rest && !node.starts_with(RESERVED)).then_some(name)
    }

    /// Who may use the nodes that are created: with a user only that one, because they contain tokens.
    fn access(&self) -> Access {
        match self.security.credentials.has_password() {
            true => Access::Creator,
            false => Access::Everyone,
        }
    }

    /// Returns what a session authenticates with; `None` without a user.
    ///
    /// # Errors
    /// The password file cannot be used.
    pub(super) fn credentials(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let password = self.security.credentials.password()?;
        let user = self.security.credentials.username().unwrap_or_default();
        Ok(password.map(|password| format!("{user}:{password}").into_bytes()))
    }

    pub(super) async fn open_connection(&self, server: usize) -> Result<Connection, StoreError> {
        let stream = open(&self.servers[server], &self.security).await?;
        Ok(Connection::new(stream, self.access()))
    }
}

/// Checks a path by the rules of ZooKeeper (`PathUtils.validatePath`).
pub(super) fn check_path(path: &str) -> Result<(), UrlError> {
    let bad = |why: &str| Err(UrlError::new(format!("{path} is not a valid ZooKeeper path: {why}")));
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').skip(1).collect();
    if path.contains("//") || parts.iter().any(|part| matches!(*part, "." | "..")) {
        return bad("it contains an empty component, '.' or '..'");
    }
    if path.chars().any(|c| c.is_control() || is_forbidden(c)) {
        return bad("it contains a character that ZooKeeper does not allow");
    }
    if parts.first() == Some(&"zookeeper") {
        return bad("/zookeeper is reserved for the server");
    }
    Ok(())
}

/// ZooKeeper checks the code units of UTF-16, and rejects surrogates.
fn is_forbidden(c: char) -> bool {
    matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{10ffff}')
}

/// Encodes a name as the name of a node, without collision.
fn encode(name: &LockName) -> String {
    let mut encoded = String::new();
    for c in name.as_str().chars() {
        match c {
            '/' | '%' => encoded.push_str(&format!("%{:02X}", c as u32)),
            c if is_forbidden(c) => {
                let mut bytes = [0; 4];
                c.encode_utf8(&mut bytes).bytes().for_each(|byte| encoded.push_str(&format!("%{byte:02X}")));
            }
            c => encoded.push(c),
        }
    }
    encoded
}
