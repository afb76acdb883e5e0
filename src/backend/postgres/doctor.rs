//! `dlock doctor`: checks each server, then the primary, on a scratch lock.

use tokio_postgres::types::Type;

use super::client::{Client, LOCKS};
use super::connection::Connection;
use super::errors;
use super::key::Rule;
use super::recipe::{GATE_ALONE, Recipe};
use super::store::{PostgresStore, contender};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question, remedy_of};
use crate::backend::ledger::document::DocumentStore;
use crate::backend::net::Protocol;
use crate::backend::net::reachability::{Remedies, Server, Servers};
use crate::backend::race;

const SESSION: &str = "the end of its session ends a lock: when dlock and its command have ended, or when the server has heard \
                       nothing for one --ttl (idle_session_timeout, from PostgreSQL 14 on; before, when TCP notices it)";
/// The first column names the server.
const SETTINGS: &str = "SELECT pg_catalog.current_setting('server_version'), pg_catalog.current_setting('fsync'), \
                        pg_catalog.current_setting('synchronous_commit'), pg_catalog.pg_backend_pid()::pg_catalog.text, \
                        pg_catalog.current_setting('transaction_read_only'), \
                        pg_catalog.current_setting('synchronous_standby_names'), \
                        (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication)::pg_catalog.text";

const REMEDIES: Remedies = Remedies {
    protocol: Protocol::Postgres,
    port: "check that the name and port are right, that the server runs and listens there (listen_addresses), and that no \
           firewall is in between",
    socket: "check that the server runs, and that host= is its unix_socket_directories",
    tls: "renew the server's certificate if it has expired, name its authority by sslrootcert=, or the name in the \
          certificate by server_name=; for a server without TLS use sslmode=disable",
    client_certificate: "name a certificate by sslcert= and its key by sslkey=, of an authority that the server knows \
                         (ssl_ca_file)",
    plain_text: "use sslmode=verify-full, or a tunnel",
    login: "check the role and its password (in the URL, password_file=, PGPASSWORD or ~/.pgpass), and pg_hba.conf",
    unusable: ("database", "check the name of the database in the URL"),
    unavailable: ("server", "see the error, and the log of the server"),
};

impl PostgresStore {
    /// Checks the servers, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used.
    pub(super) async fn examine_servers(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = self.client.location.clone();
        // The configured files are read first: no server is contacted if they cannot be used.
        for server in &location.servers {
            location.password(server)?;
        }
        let servers = Servers {
            addresses: &location.servers,
            security: &location.security,
            remedies: &REMEDIES,
            fewer: "one fewer server may take over when the primary fails",
        };
        let log_in = async |mut server: Server<'_>| {
            let stream = server.open().await?;
            let begin = Connection::over(stream, &location, server.address);
            let connection = server.log_in("authentication", begin).await?;
            diagnosis.found(Finding::ok("authentication", format!("role {}", location.user)));
            Ok(connection)
        };
        let usable = servers.log_in(diagnosis, log_in).await?;
        let Some((server, connection)) = usable.into_iter().next() else { return Ok(()) };
        let named = connection.process;
        self.client = Client::new(location.only(server));
        self.client.begin(connection);
        let is_usable = self.settings(named, diagnosis).await?
            && self.session(diagnosis).await?
            && self.table(diagnosis).await;
        if !is_usable {
            return Ok(());
        }
        match &mut self.shedlock {
            Some(shedlock) => {
                if !shedlock.gate.examine(&mut self.client, diagnosis).await? {
                    return Ok(());
                }
            }
            None => {
                let clock = match self.client.location.recipe.session() {
                    Some(_) => Answer::new("none", SESSION),
                    None => Answer::lease_of_server("1us"),
                };
                diagnosis.answer(Question::LeaseClock, clock);
            }
        }
        self.latency(diagnosis).await?;
        let mut primary = self.client.location.clone();
        if primary.recipe.session().is_some() {
            // The name of a temporary lock fits this rule.
            primary.recipe = Recipe::Session(Rule::default());
        }
        let name = race::try_out(|| contender(primary.clone()), diagnosis).await?;
        // Only a role that may delete can remove it. It is free in any case.
        let _ = self.client.forget(&name).await;
        if let Some(shedlock) = &self.shedlock {
            let _ = shedlock.gate.forget(&mut self.client, &name).await;
        }
        Ok(())
    }

    /// Checks the settings of the server that endanger locks. Returns whether it can store anything.
    async fn settings(&mut self, named: u32, diagnosis: &Diagnosis) -> Result<bool, StoreError> {
        diagnosis.begin("version");
        let rows = self.client.rows(SETTINGS, &[]).await?;
        let row = rows.first().ok_or_else(|| StoreError::unanswered("the server returned no row"))?;
        let text = |column: usize| row.try_get::<_, String>(column).unwrap_or_default();
        let (version, process) = (text(0), text(3));
        diagnosis.found(Finding::ok("version", format!("PostgreSQL {version}")));
        if self.client.location.servers.len() == 1 {
            diagnosis.found(Finding::one_server());
        }
        if text(4) == "on" {
            let remedy = "name the primary, or all servers of the cluster, separated by commas";
            let error = StoreError::unreachable(errors::read_only("read-only transactions"));
            diagnosis.found(Finding::refusal("primary", &error, remedy));
            return Ok(false);
        }
        let is_pooled = process != named.to_string();
        let notifications = match is_pooled {
            false => Finding::ok("notifications", "a release notifies the next waiter"),
            true => Finding::warning(
                "notifications",
                "a pooler stands between: waiters cannot be notified",
                "each waiter asks the server several times a second",
                "connect to the server itself",
            ),
        };
        diagnosis.found(notifications);
        diagnosis.answer(
            Question::OneServer,
            match is_pooled {
                false => {
                    Answer::new("yes", "each connection has a server process of its own, on the primary")
                }
                true => Answer::new(
                    "no",
                    "a pooler distributes requests; every change of a lock is one statement",
                ),
            },
        );
        let (fsync, commit) = (text(1), text(2));
        let unsafe_setting = if fsync == "off" { Some("fsync") } else { Some("synchronous_commit") };
        let unsafe_setting = unsafe_setting.filter(|_| fsync == "off" || commit == "off");
        diagnosis.found(match unsafe_setting {
            None => Finding::ok("durability", "a commit is on disk when it is acknowledged"),
            Some(setting) => Finding::warning(
                "durability",
                format!("{setting} is off"),
                "a crash of the server can lose locks that were just granted, and fencing tokens",
                format!("set {setting} to on, for the role of dlock at least"),
            ),
        });
        diagnosis.answer(
            Question::Loss,
            match unsafe_setting {
                Some(setting) => Answer::new("yes", format!("by a crash of the server: {setting} is off")),
                None if self.client.location.recipe.session().is_some() => Answer::new(
                    "yes",
                    "by the end of its session, and by every fail-over: advisory locks are not replicated",
                ),
                None if !text(5).is_empty() && commit != "local" => Answer::new(
                    "no",
                    "only if its row is removed by hand, or the primary and its synchronous standbys lose their disks",
                ),
                None => {
                    let replication = "not with synchronous replication (synchronous_standby_names)";
                    Answer::loss_of_row(text(6).parse().ok(), replication)
                }
            },
        );
        Ok(true)
    }

    /// Checks that an advisory lock would have a session of its own, and returns whether it would.
    async fn session(&mut self, diagnosis: &Diagnosis) -> Result<bool, StoreError> {
        if self.client.location.recipe.session().is_none() {
            return Ok(true);
        }
        diagnosis.begin("session");
        match self.client.own_session().await {
            Ok(_) => diagnosis.found(Finding::ok("session", "a connection has a server process of its own")),
            Err(error @ StoreError::Config(_)) => {
                let remedy = "connect to the server itself, or use recipe=table";
                diagnosis.found(Finding::refusal("session", &error, remedy));
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Checks that the table is there, and returns whether it can be used.
    async fn table(&mut self, diagnosis: &Diagnosis) -> bool {
        diagnosis.begin("table");
        if let Err(error) = self.client.look_closely(None).await {
            let remedy = "see the error, and TABLE AND RIGHTS in dlock-postgres(7)";
            diagnosis.found(Finding::refusal("table", &error, remedy));
            return false;
        }
        let mut read = self.read_table().await;
        if matches!(read, Ok(false)) {
            // Without the right this only reports that.
            read = match self.client.may_create().await {
                Ok(true) if !diagnosis.creates() => Ok(false),
                Ok(_) => self.client.create_table().await.map(|()| true),
                Err(error) => Err(error),
            };
            if matches!(read, Ok(true)) {
                read = self.client.look_closely(None).await.map(|()| true);
            }
        }
        let table = &self.client.location.table;
        let known = self.client.found(LOCKS);
        if known.is_some_and(|known| known.is_administrator) {
            let found = format!("{} can act as a superuser", self.client.location.user);
            let consequence = "code that others plant where dlock looks could run with every right";
            let remedy = "give dlock a role of its own: see dlock doctor --policy";
            diagnosis.found(Finding::warning("role", found, consequence, remedy));
        }
        let description = known.map(|known| format!(": {}", known.description)).unwrap_or_default();
        let has_gate = self.gate_lifetime().is_some();
        let is_usable = read.is_ok() || (has_gate && matches!(read, Err(StoreError::Denied(_))));
        diagnosis.found(match read {
            Ok(false) => {
                diagnosis.found(Finding::missing_table(table));
                return false;
            }
            Ok(true) => Finding::ok("table", format!("{table} exists{description}")),
            Err(error) => {
                let remedy = match error {
                    StoreError::Denied(_) => {
                        "run what dlock doctor --policy prints as the owner of the database"
                    }
                    _ => remedy_of(&error),
                };
                let consequence = format!("locks are {GATE_ALONE}");
                match is_usable {
                    false => Finding::refusal("table", &error, remedy),
                    // What was asked for was not done.
                    true if diagnosis.creates() => {
                        Finding::problem("table", error.to_string(), consequence, remedy)
                    }
                    true => Finding::warning("table", error.to_string(), consequence, remedy),
                }
            }
        });
        is_usable
    }

    /// Reads the table, and returns whether it exists.
    async fn read_table(&mut self) -> Result<bool, StoreError> {
        let (statement, name) = (self.client.statements.read.clone(), b".".as_slice());
        let read = self.client.on_table(LOCKS, None, &statement, &[(&name, Type::BYTEA)]).await?;
        match read {
            None => Ok(false),
            Some(read) => read.map(|_| true).map_err(|error| self.client.meaning(&error)),
        }
    }

    async fn latency(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let statements = self.client.statements.clone();
        let read = async || self.client.rows(&statements.read_nothing, &[]).await.map(drop);
        diagnosis.measure_latency("reads", read).await
    }
}
