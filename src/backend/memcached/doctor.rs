//! `dlock doctor`: checks the server, and tries a scratch lock.

use std::slice::from_ref;

use super::client::Connection;
use super::reply::Line;
use super::store::{MemcachedStore, contender};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question, one_ttl};
use crate::backend::net::Protocol;
use crate::backend::net::reachability::{Remedies, Server, Servers};
use crate::backend::race;

const LOSS: &str =
    "by a restart, by flush_all, when the memory is full, and by everyone who can connect and deletes it";
const REMEDIES: Remedies = Remedies {
    protocol: Protocol::Memcached,
    port: "check that the name and port are right, that memcached runs and listens there (-l, -p), and that no firewall is \
           in between",
    socket: "",
    tls: "renew the server's certificate if it has expired, name its authority by ca_file=, or the name in the certificate \
          by server_name=; for a server without TLS use memcached://",
    client_certificate: "name a certificate by cert_file= and its key by key_file=, of an authority that the server knows \
                         (ssl_ca_cert)",
    plain_text: "use memcacheds://, or a tunnel",
    login: "check the username and password: in the URL or password_file=",
    unusable: ("protocol", "use memcached 1.6.18 or later, itself, and without -C"),
    unavailable: ("protocol", "check that memcached runs, and see its log"),
};

impl MemcachedStore {
    /// Checks the server, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used, or the server fails during the checks.
    pub(super) async fn examine_server(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = self.location.clone();
        location.security.credentials.password()?;
        let (addresses, security) = (from_ref(&location.server), &location.security);
        let servers = Servers { addresses, security, remedies: &REMEDIES, fewer: "" };
        let log_in = async |mut server: Server<'_>| {
            let stream = server.open().await?;
            server.log_in("protocol", Connection::over(stream, &location)).await
        };
        let Some((_, mut connection)) = servers.log_in(diagnosis, log_in).await?.pop() else { return Ok(()) };
        diagnosis.found(Finding::ok("protocol", "meta commands with CAS"));
        diagnosis.found(Finding::warning(
            "efficiency",
            "Memcached may forget a lock at any time",
            "then a command runs twice at the same time, and there is no fencing token that could tell them apart",
            "use these locks only where that costs time and nothing else, or use another store",
        ));
        diagnosis.found(Finding::one_server());
        diagnosis.answer(Question::Loss, Answer::new("yes", LOSS));
        let found = "dlock uses the one server that the URL names, over one connection";
        diagnosis.answer(Question::OneServer, Answer::new("yes", found));
        let ttl = one_ttl();
        let clock = format!(
            "in steps of 1s; the lock of a crashed holder is free {ttl} and 2s after its last renewal"
        );
        diagnosis.answer(Question::LeaseClock, Answer::new("server", clock));
        memory(&mut connection, diagnosis).await?;
        let request = async || match connection.exchange("mn\r\n", 1).await?.pop() {
            Some(failed @ Line::Error(..)) => Err(failed.into_error()),
            _ => Ok(()),
        };
        diagnosis.measure_latency("requests", request).await?;
        race::try_out(|| contender(location.clone()), diagnosis).await.map(drop)
    }
}

/// Reports the version, and whether items have been evicted.
async fn memory(connection: &mut Connection, diagnosis: &Diagnosis) -> Result<(), StoreError> {
    diagnosis.begin("memory");
    let figures = connection.figures("stats").await?;
    let figure = |name: &str| {
        figures.iter().find(|(known, _)| known == name).map_or("unknown", |(_, figure)| figure.as_str())
    };
    diagnosis.found(Finding::ok("version", format!("memcached {}", figure("version"))));
    let evicted = figure("evictions");
    diagnosis.found(match evicted {
        "0" => Finding::ok("memory", "no item has been evicted since the server was started"),
        _ => Finding::warning(
            "memory",
            format!("items evicted since the server was started: {evicted}"),
            "locks are items, and may be among the next",
            "give the server more memory (-m), or use one for locks only",
        ),
    });
    Ok(())
}
