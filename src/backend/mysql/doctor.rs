//! `dlock doctor`: checks the server, the table, and a scratch lock.

use std::net::SocketAddr;
use std::slice::from_ref;

use super::connection::Connection;
use super::errors;
use super::get_lock::who_holds;
use super::location::{Encryption, Location};
use super::reply::{Failure, number};
use super::store::{MysqlStore, contender};
use super::table::literal;
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question, one_ttl, remedy_of};
use crate::backend::net::Protocol;
use crate::backend::net::reachability::{self, Remedies, Server, Servers};
use crate::backend::race;
use crate::backend::sql::{COLUMNS, TABLE};

const VERIFY: &str =
    "use ssl_mode=verify_ca with ca_file=, the authority of the server (MySQL: ca.pem in its data directory)";

const REMEDIES: Remedies = Remedies {
    protocol: Protocol::MySql,
    port: "check that the name and port are right, that the server runs and listens there (bind_address), and that no \
           firewall is in between",
    socket: "check that the server runs, and that this is its socket",
    tls: "renew the server's certificate if it has expired, name its authority by ca_file=, or the name in the \
          certificate by server_name=",
    client_certificate: "name a certificate by cert_file= and its key by key_file=, of an authority that the server knows \
                         (ssl_ca)",
    plain_text: "configure TLS on the server, and use ssl_mode=verify_identity, or use a tunnel",
    login: "check the user and password: in the URL, password_file=, MYSQL_PWD or ~/.my.cnf",
    unusable: ("protocol", "change the URL, or the configuration of the server"),
    unavailable: ("protocol", "check that the server runs, and see its log"),
};

impl MysqlStore {
    /// Checks the server, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used, or the server has stopped to respond.
    pub(super) async fn examine_server(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = self.client.location.clone();
        // The configured files are read first: the server is not contacted if they cannot be used.
        let password = location.security.credentials.password()?.filter(|password| !password.is_empty());
        let (addresses, security) = (from_ref(&location.address), &location.security);
        let servers = Servers { addresses, security, remedies: &REMEDIES, fewer: "" };
        let log_in = async |mut server: Server<'_>| {
            let (socket, peer) = server.reach().await?;
            let begin = Connection::over(socket, server.session.take(), &location);
            let connection = server.log_in("authentication", begin).await;
            if security.take_exposure() {
                diagnosis.found(exposed());
            }
            Ok((connection?, peer))
        };
        let Some((_, (connection, peer))) = servers.log_in(diagnosis, log_in).await?.pop() else {
            return Ok(());
        };
        encryption(&connection, &location, peer, password.is_some(), diagnosis);
        let user = location.security.credentials.username();
        let user = user.map_or("no user".to_owned(), |user| format!("user {user}"));
        diagnosis.found(Finding::ok("authentication", user));
        diagnosis.begin("primary");
        let thread = connection.thread;
        if let Err(error) = self.client.begin(connection).await {
            let (check, remedy) = match error {
                StoreError::Unavailable { .. } => ("primary", "name the primary"),
                _ if self.client.stand_in.is_some() => (
                    "table",
                    "find out who has created it, drop it, and run what dlock doctor --policy prints",
                ),
                _ => ("version", "use another server"),
            };
            diagnosis.found(Finding::refusal(check, &error, remedy));
            return Ok(());
        }
        diagnosis.found(Finding::ok("version", self.client.version().to_owned()));
        diagnosis.found(Finding::one_server());
        self.cluster(diagnosis);
        self.administrator(diagnosis).await?;
        if !self.table(diagnosis).await? {
            return Ok(());
        }
        self.durability(diagnosis).await?;
        self.path(thread, diagnosis);
        match &mut self.shedlock {
            Some(shedlock) => {
                if !shedlock.gate.examine(&mut self.client, diagnosis).await? {
                    return Ok(());
                }
            }
            None => diagnosis.answer(Question::LeaseClock, self.lease_clock()),
        }
        self.latency(diagnosis).await?;
        let name = race::try_out(|| contender(location.clone()), diagnosis).await?;
        if let Some(shedlock) = &self.shedlock {
            let _ = shedlock.gate.forget(&mut self.client, &name).await;
        }
        if self.client.denied.is_some() {
            return Ok(());
        }
        let key = literal(location.key(&name));
        // Only a user who may delete can remove it. It is free in any case.
        let _ = self.client.query(&format!("DELETE FROM {TABLE} WHERE name = {key}")).await;
        Ok(())
    }

    /// Returns whose clock ends a lease.
    fn lease_clock(&self) -> Answer {
        if !self.client.has_user_lock() {
            return Answer::lease_of_server("1us");
        }
        let clock =
            "the server's, in steps of 1s; the lock of a crashed holder is free when its connection ends";
        Answer::new("server", format!("{clock}, {} after its last renewal", one_ttl()))
    }

    fn cluster(&self, diagnosis: &Diagnosis) {
        diagnosis.found(match self.client.cluster {
            None => Finding::ok("primary", "it accepts writes, and is the only one that does"),
            Some(cluster) => Finding::warning(
                "primary",
                format!("it belongs to {} (single_writer=yes)", cluster.name),
                "two commands may run under the same lock at the same time: the locks are for efficiency only",
                "use a server outside of the cluster for locks that protect data",
            ),
        });
    }

    /// Checks whether the user could write to a server that has become a replica.
    async fn administrator(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        diagnosis.begin("rights");
        let sql = "SELECT DISTINCT privilege_type FROM information_schema.user_privileges WHERE privilege_type IN ('SUPER', \
                   'READ_ONLY ADMIN', 'READ ONLY ADMIN', 'CONNECTION_ADMIN') AND grantee = CONCAT('''', LEFT(CURRENT_USER(), \
                   CHAR_LENGTH(CURRENT_USER()) - CHAR_LENGTH(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)) - 1), '''@''', \
                   SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''') ORDER BY 1";
        let rows = self.client.rows(sql).await?;
        let rights = rows.iter().filter_map(|row| row.first()?.as_deref());
        let rights: Vec<_> = rights.map(String::from_utf8_lossy).collect();
        diagnosis.found(match rights.as_slice() {
            [] => Finding::ok("rights", "the user cannot write to a read-only server"),
            rights => Finding::warning(
                "rights",
                format!("the user may write to a read-only server ({})", rights.join(", ")),
                "it has the rights of an administrator, which whoever reads its password has too",
                "use a user with only the rights that dlock doctor --policy prints",
            ),
        });
        Ok(())
    }

    /// Checks the table, and returns whether it can be used.
    async fn table(&mut self, diagnosis: &Diagnosis) -> Result<bool, StoreError> {
        diagnosis.begin("table");
        if let Some(why) = self.client.why_no_ledgers() {
            diagnosis.found(without_table(why, diagnosis));
            return Ok(true);
        }
        let sql = format!(
            "SELECT name, ends_at, calls, {COLUMNS} FROM {TABLE} LIMIT 0; UPDATE {TABLE} SET version = version WHERE FALSE; \
             INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE FALSE"
        );
        let checked = match self.client.query(&sql).await {
            Err(failure) if failure.is(&[errors::NO_TABLE]) => {
                // A user without the right to create the table is refused this, which is in error for the others.
                let not_created = format!("CREATE TABLE {TABLE} (name int, name int)");
                match self.client.query(&not_created).await {
                    Err(failure) if failure.is(&[errors::DUPLICATE_COLUMN]) && !diagnosis.creates() => {
                        diagnosis.found(Finding::missing_table(&TABLE));
                        return Ok(false);
                    }
                    // Without the right this only reports that.
                    _ => self.client.create_table().await.map_err(Failure::from),
                }
            }
            _ => self.client.on_locks(&sql).await.map(drop),
        };
        if let Err(error) = checked {
            if let Some(why) = self.client.why_no_ledgers() {
                diagnosis.found(without_table(why, diagnosis));
                return Ok(true);
            }
            let error = StoreError::from(error);
            let remedy = match error {
                StoreError::Config(_) => "rename that table, or use another database",
                StoreError::Denied(_) => "run what dlock doctor --policy prints",
                _ => remedy_of(&error),
            };
            diagnosis.found(Finding::refusal("table", &error, remedy));
            return Ok(false);
        }
        let engine = format!(
            "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{TABLE}'"
        );
        let rows = self.client.rows(&engine).await?;
        let engine = rows.first().and_then(|row| row.first()?.as_deref());
        diagnosis.found(match engine.is_some_and(|engine| engine.eq_ignore_ascii_case(b"InnoDB")) {
            true => Finding::ok("table", format!("{TABLE}, stored by InnoDB")),
            false => Finding::warning(
                "table",
                format!("{TABLE} is not stored by InnoDB"),
                "locks may be lost when the server crashes",
                format!("ALTER TABLE {TABLE} ENGINE = InnoDB"),
            ),
        });
        Ok(true)
    }

    async fn durability(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        if self.client.has_user_lock() {
            let why = "with its session: when the server is restarted, when a replica takes over, or when the connection is \
                       cut or killed; the command is stopped then, but another may have begun";
            diagnosis.answer(Question::Loss, Answer::new("yes", why));
            return Ok(());
        }
        diagnosis.begin("durability");
        let sql = "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog";
        let rows = self.client.rows(sql).await?;
        let value = |column| number(rows.first()?, column);
        let (flush, has_log, sync) = (value(0), value(1) == Some(1), value(2));
        let wrong = match flush {
            Some(1) if has_log && sync != Some(1) => {
                Some(format!("sync_binlog is {}", sync.unwrap_or_default()))
            }
            Some(1) => None,
            flush => Some(format!("innodb_flush_log_at_trx_commit is {}", flush.unwrap_or_default())),
        };
        let cluster = self.client.cluster.map(|cluster| format!("a commit to {} can be lost", cluster.name));
        let answer = match (&wrong, cluster) {
            (_, Some(why)) => Answer::new("yes", why),
            (Some(wrong), None) => Answer::new("yes", format!("by a crash of the server's host: {wrong}")),
            (None, None) => {
                let replication =
                    "replication is asynchronous, also with a semi-synchronous replica that is late";
                let replicas = if has_log { self.replicas().await } else { Some(0) };
                Answer::loss_of_row(replicas, replication)
            }
        };
        diagnosis.answer(Question::Loss, answer);
        diagnosis.found(match wrong {
            None => Finding::ok("durability", "a commit is on the disk when it is acknowledged"),
            Some(wrong) => Finding::warning(
                "durability",
                wrong,
                "a crash of the server's host may lose the locks of the last second",
                "set innodb_flush_log_at_trx_commit=1 and sync_binlog=1",
            ),
        });
        Ok(())
    }

    /// Returns how many replicas are connected. MySQL tells only users with REPLICATION SLAVE.
    async fn replicas(&mut self) -> Option<u64> {
        match self.client.is_mariadb() {
            true => {
                number(self.client.rows("SHOW GLOBAL STATUS LIKE 'Slaves_connected'").await.ok()?.first()?, 1)
            }
            false => self.client.rows("SHOW REPLICAS").await.ok().map(|rows| rows.len() as u64),
        }
    }

    /// Answers whether a proxy has greeted in place of the server, which calls the connection something else then. The
    /// table works through it, whatever connection of the server it uses for a statement, as long as that is one to the
    /// primary.
    fn path(&self, thread: u32, diagnosis: &Diagnosis) {
        diagnosis.answer(
            Question::OneServer,
            match self.client.id == u64::from(thread) {
                false if self.client.has_user_lock() => Answer::new(
                    "no",
                    "a proxy keeps a connection to a server for each client: it must choose the same server for all",
                ),
                true => Answer::new("yes", "the connection is one to the server itself"),
                false => Answer::new(
                    "no",
                    "a proxy distributes statements: it must send all of them to the primary",
                ),
            },
        );
    }

    async fn latency(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let sql = match self.client.denied {
            None => format!("SELECT version FROM {TABLE} WHERE name = x''"),
            Some(_) => who_holds("'dlock'"),
        };
        diagnosis.measure_latency("reads", async || Ok(self.client.query(&sql).await.map(drop)?)).await
    }
}

/// Reports whether others can read the connection, or take the place of the server.
fn encryption(
    connection: &Connection,
    location: &Location,
    peer: Option<SocketAddr>,
    has_password: bool,
    diagnosis: &Diagnosis,
) {
    if connection.has_tls {
        diagnosis.found(match location.encryption {
            Encryption::Verified => {
                reachability::certificate(&location.security, connection.certificate_end())
            }
            _ => unverified(location, has_password),
        });
        return;
    }
    if location.encryption == Encryption::Preferred && peer.is_some() && has_password {
        diagnosis.found(unverified(location, true));
    }
    let mut security = location.security.clone();
    security.tls = None;
    if let Some(finding) = reachability::plain_text(&security, peer, &REMEDIES) {
        diagnosis.found(finding);
    }
}

/// Returns the finding for a server that need not prove its identity.
fn unverified(location: &Location, has_password: bool) -> Finding {
    let consequence = match has_password {
        true => {
            "a man in the middle can take the lock, and gets the password itself if he asks for it over TLS"
        }
        false => "a man in the middle can take the lock",
    };
    Finding::warning(
        "tls",
        format!("the server's certificate is not checked ({})", location.unverified_by()),
        consequence,
        VERIFY,
    )
}

/// Returns the finding for a password that was sent to such a server.
fn exposed() -> Finding {
    Finding::warning(
        "password",
        "the server asked for the password itself, and got it over TLS that is not verified",
        "whoever answered has the password, if it is not the server",
        VERIFY,
    )
}

/// Returns the finding for a user that cannot have the table, which is a problem if it was to be created.
fn without_table(why: String, diagnosis: &Diagnosis) -> Finding {
    let consequence = "locks are exclusive only, and have no fencing tokens";
    let remedy = "run what dlock doctor --policy prints";
    match diagnosis.creates() {
        true => Finding::problem("table", why, consequence, remedy),
        false => Finding::warning("table", why, consequence, remedy),
    }
}
