//! `dlock doctor`: checks the server, and tries a scratch lock.

use super::client::Connection;
use super::store::MemcachedStore;
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question, remedy_of};
use crate::backend::net::reachability::{self, Remedies};
use crate::backend::net::{Protocol, Session};
use crate::backend::race;

const LOSS: &str =
    "by a restart, by flush_all, when the memory is full, and by everyone who can connect and deletes it";
const LEASE_CLOCK: &str = "in steps of 1s; the lock of a crashed holder is free at most one --ttl (30s unless set) and 2s \
                           after its last renewal";
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
};

impl MemcachedStore {
    /// Checks the server, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used, or the server fails during the checks.
    pub(super) async fn examine_server(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = self.location.clone();
        location.security.credentials.password()?;
        let session = Session::of(location.security.tls.as_ref(), &location.server)?;
        for finding in reachability::secret_files(&location.security) {
            diagnosis.found(finding);
        }
        let opened =
            reachability::open(&location.server, &location.security, session, &REMEDIES, diagnosis).await;
        let stream = match opened {
            Ok(stream) => stream,
            Err(finding) => {
                diagnosis.found(finding);
                return Ok(());
            }
        };
        diagnosis.begin("protocol");
        let begin = Connection::over(stream, &location);
        let begun = Protocol::Memcached.exchange(&location.server, &location.security, begin).await;
        let mut connection = match begun {
            Ok(connection) => connection,
            Err(error) => {
                diagnosis.found(refused(error));
                return Ok(());
            }
        };
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
        diagnosis.answer(Question::LeaseClock, Answer::new("server", LEASE_CLOCK));
        memory(&mut connection, diagnosis).await?;
        let request = async || connection.exchange(b"mn\r\n", 1).await.map(drop);
        diagnosis.measure_latency("requests", request).await?;
        race::try_out(|| MemcachedStore::new(location.clone()), diagnosis).await.map(drop)
    }
}

fn refused(error: StoreError) -> Finding {
    let (check, remedy) = match &error {
        StoreError::Denied(_) => {
            ("authentication", "check the username and password: in the URL or password_file=")
        }
        StoreError::OtherServer { .. } => ("protocol", remedy_of(&error)),
        StoreError::Config(_) => ("protocol", "use memcached 1.6.18 or later, itself, and without -C"),
        StoreError::Unavailable { .. } => ("protocol", "check that memcached runs, and see its log"),
    };
    Finding::refusal(check, &error, remedy)
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
