//! `dlock doctor` for an ensemble: checks each server, then a session and a scratch lock.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::client::Client;
use super::heartbeats::lease_of;
use super::location::METADATA_NODE;
use super::message::Request;
use super::store::{ADMIN_SESSION, ZooKeeperStore};
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question, no_lock, version_of};
use crate::backend::ledger::Contender;
use crate::backend::net::reachability::{Remedies, Server, Servers};
use crate::backend::net::{Address, BoundedStream, Protocol};
use crate::backend::race;
use crate::backend::{StoreError, io_text};
use crate::duration::show;
use crate::exit::FailureKind;
use crate::lock::{DEFAULT_TTL, LockName};

const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);
/// The longest reply to `srvr` that is read.
const LONGEST_STATUS: usize = 4096;
/// The replies to `srvr`: the status, that there is no quorum, and that the server may not reveal it.
const REPLIES: [&str; 3] = [VERSION, NOT_SERVING, "is not in the whitelist"];
const VERSION: &str = "Zookeeper version";
const NOT_SERVING: &str = "not currently serving requests";

const REMEDIES: Remedies = Remedies {
    protocol: Protocol::ZooKeeper,
    port: "check that the name and port are right, that the server runs and listens there (clientPort, \
           clientPortAddress), and that no firewall is in between",
    socket: "",
    tls: "renew the server's certificate if it has expired, name its authority by ca_file=, or the name in the certificate \
          by server_name=; for a port without TLS use zookeeper://",
    client_certificate: "name a certificate by cert_file= and its key by key_file=, of an authority that the server knows \
                         (ssl.trustStore.location)",
    plain_text: "use zookeepers://, or a tunnel",
    login: "",
    unusable: ("", ""),
    unavailable: ("server", "use the client port of a ZooKeeper server"),
};

impl ZooKeeperStore {
    /// Checks the ensemble, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used.
    pub(super) async fn examine_ensemble(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = self.location().clone();
        // The configured files are read first: no server is contacted if they cannot be used.
        location.credentials()?;
        let servers = Servers {
            addresses: &location.servers,
            security: &location.security,
            remedies: &REMEDIES,
            fewer: "one fewer server may fail before locks can no longer be taken or kept",
        };
        let servers = servers.log_in(diagnosis, status).await?;
        if servers.is_empty() {
            return Ok(());
        }
        for (address, status) in &servers {
            diagnosis.found(server(address, status));
        }
        if servers.iter().any(|(_, status)| status.as_ref().is_some_and(|status| is_alone(status))) {
            diagnosis.found(Finding::one_server());
        }
        let Some(longest) = self.sessions(diagnosis).await? else { return Ok(()) };
        let missing = self.examine_directories(diagnosis).await?;
        self.latency(longest, diagnosis).await?;
        diagnosis.answer(
            Question::Loss,
            Answer::new(
                "no",
                "only if its node is removed by hand, or a majority of the servers loses its disks",
            ),
        );
        let found = "a session uses one server, and moves to another if that fails; nodes are read only after the server \
                     has caught up with the leader";
        diagnosis.answer(Question::OneServer, Answer::new("yes", found));
        let client = || Contender::new(ZooKeeperStore::new(location.clone()));
        let name = race::try_out(client, diagnosis).await?;
        self.forget(&name, &missing).await
    }

    /// Finds out how long sessions may last. Returns the longest lease, if there can be a session.
    async fn sessions(&mut self, diagnosis: &Diagnosis) -> Result<Option<Duration>, StoreError> {
        diagnosis.begin("session");
        let mut bounds = [Duration::ZERO; 2];
        for (bound, ttl) in bounds.iter_mut().zip([Duration::from_millis(1), LONGEST_TTL]) {
            let mut client = Client::new(self.location().clone());
            match client.open(ttl).await {
                Ok(()) => *bound = client.timeout().map_or(Duration::ZERO, lease_of),
                // The shortest one is too short for a lock, and none is requested.
                Err(StoreError::Config(_)) if ttl < LONGEST_TTL => *bound = lease_of(Duration::from_secs(1)),
                Err(error) => {
                    let remedy = "check the log of the server, its minSessionTimeout and maxSessionTimeout";
                    diagnosis.found(Finding::refusal("session", &error, remedy));
                    return Ok(None);
                }
            }
        }
        let [shortest, longest] = bounds;
        let found = format!("for a --ttl from {} to {}", show(shortest), show(longest));
        diagnosis.found(match longest < DEFAULT_TTL {
            false => Finding::ok("session", found),
            true => Finding::warning(
                "session",
                found,
                format!(
                    "a longer --ttl is shortened to {}: less time to survive a failure of the servers",
                    show(longest)
                ),
                "raise maxSessionTimeout (20 times tickTime unless set)",
            ),
        });
        let clock = format!(
            "the leader's, in steps of its tickTime; the lock of a crashed holder is free at most one and a half --ttl ({} \
             unless set, here from {} to {}) and one tick after its last request; a crashed waiter ahead adds the rest of \
             its own session",
            show(DEFAULT_TTL),
            show(shortest),
            show(longest)
        );
        diagnosis.answer(Question::LeaseClock, Answer::new("server", clock));
        Ok(Some(longest))
    }

    async fn latency(&mut self, longest: Duration, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        self.open(ADMIN_SESSION).await?;
        let request = async || self.exchange_one(Request::Sync { path: "/".into() }).await.map(drop);
        diagnosis.measure_latency_for(longest, "requests to the leader", request).await
    }

    /// Removes what the scratch lock has left.
    async fn forget(&mut self, name: &LockName, created: &[String]) -> Result<(), StoreError> {
        self.open(ADMIN_SESSION).await?;
        let paths = self.location().paths(name);
        let metadata = format!("{}{METADATA_NODE}", self.location().directory);
        // A directory is removed only if it is empty.
        let directories = created.iter().rev().cloned();
        let paths: Vec<String> =
            [paths.lock, paths.metadata, metadata].into_iter().chain(directories).collect();
        self.exchange_for(&paths, |path| Request::Delete { path, version: -1 }).await.map(drop)
    }
}

/// Connects to a server, and asks for its status; `None` if it does not report it.
async fn status(mut server: Server<'_>) -> Result<Option<String>, Finding> {
    let stream = server.open().await?;
    let reply = server.log_in("server", srvr(stream)).await?;
    if !REPLIES.iter().any(|known| reply.contains(known))
        && let Some(error) = Protocol::ZooKeeper.mismatch(server.address).await
    {
        return Err(REMEDIES.refusal(&error));
    }
    if reply.contains(NOT_SERVING) {
        let found = "it has no quorum and serves no requests";
        return Err(Finding::problem(
            "quorum",
            found,
            no_lock(FailureKind::Unavailable),
            "start the other servers, and see their logs",
        ));
    }
    Ok(reply.contains(VERSION).then_some(reply))
}

/// Returns the reply to `srvr`.
async fn srvr(mut stream: BoundedStream) -> Result<String, StoreError> {
    let failed = |error: io::Error| StoreError::unreachable(format!("no reply to srvr: {}", io_text(&error)));
    let mut reply = Vec::new();
    stream.send(b"srvr").await.map_err(failed)?;
    stream.refill(LONGEST_STATUS);
    stream.take(LONGEST_STATUS as u64).read_to_end(&mut reply).await.map_err(failed)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// Whether a server reports that it is the only one.
fn is_alone(status: &str) -> bool {
    status.lines().any(|line| line.trim() == "Mode: standalone")
}

/// Returns the finding about the version and the role of a server.
fn server(address: &Address, status: &Option<String>) -> Finding {
    let field = |name: &str| {
        let mut lines = status.iter().flat_map(|status| status.lines());
        lines.find_map(|line| line.strip_prefix(name)).map(str::trim)
    };
    let version = field("Zookeeper version:").and_then(|version| version.split(['-', ',']).next());
    let (Some(version), Some(mode)) = (version, field("Mode:")) else {
        return Finding::ok(
            "server",
            format!("{address}: unknown version (srvr is not in 4lw.commands.whitelist)"),
        );
    };
    let found = format!("{address}: ZooKeeper {version}, {mode}");
    if version_of(version) < (3, 5, 3) {
        let consequence = format!("it has no container nodes: {}", no_lock(FailureKind::Config));
        return Finding::problem("server", found, consequence, "upgrade to 3.5.3 or later");
    }
    match mode {
        "read-only" => Finding::warning(
            "server",
            found,
            no_lock(FailureKind::Unavailable),
            "start the other servers, and see their logs",
        ),
        _ => Finding::ok("server", found),
    }
}
