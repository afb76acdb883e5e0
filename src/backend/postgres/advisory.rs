//! `recipe=advisory`: a session-level advisory lock as the gate in front of the row.
//!
//! A client never waits inside a statement, whose snapshot would hold up `CREATE INDEX CONCURRENTLY` and VACUUM, but tries
//! (`pg_try_advisory_lock`). The lock ends with the session. The server ends a session that has been idle, or does not
//! acknowledge anything, for as long as a lease: never before the command of the holder has ended.

use std::collections::HashMap;
use std::time::Duration;

use tokio_postgres::types::Type;

use super::client::Client;
use super::key::Key;
use super::recipe::Recipe;
use crate::backend::StoreError;
use crate::backend::ledger::{GateMode, Occupant, Purpose};
use crate::backend::sql::SessionLock;
use crate::lock::{Claim, Holder, LockName};

/// How often it is checked whether a session has ended, and the pause between two checks.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// The advisory locks that the sessions of one client hold.
#[derive(Default)]
pub(super) struct Advisory {
    passages: Vec<Passage>,
    /// The keys that the server has computed.
    keys: HashMap<LockName, Key>,
}

/// An advisory lock of this client.
struct Passage {
    token: String,
    key: Key,
    mode: GateMode,
    ttl: Duration,
    /// The connection that has it; `None` if it is known to have lost it.
    connection: Option<u64>,
    /// The process of its session.
    process: i32,
    /// The request to unlock it was sent.
    is_ending: bool,
}

impl Passage {
    fn identity(&self) -> (u64, u64) {
        (u64::try_from(self.process).unwrap_or_default(), 0)
    }
}

/// Returns an expression that takes a lock in `first`, and keeps it in `then`; true if it did.
fn take(key: Key, first: GateMode, then: GateMode) -> String {
    let key = key.arguments();
    match (first, then) {
        (GateMode::Exclusive, GateMode::Shared) => format!(
            "CASE WHEN pg_catalog.pg_try_advisory_lock({key}) THEN CASE WHEN \
             pg_catalog.pg_try_advisory_lock_shared({key}) THEN pg_catalog.pg_advisory_unlock({key}) ELSE NOT \
             pg_catalog.pg_advisory_unlock({key}) END ELSE false END"
        ),
        (GateMode::Exclusive, GateMode::Exclusive) => format!("pg_catalog.pg_try_advisory_lock({key})"),
        (GateMode::Shared, _) => format!("pg_catalog.pg_try_advisory_lock_shared({key})"),
    }
}

/// Returns a query for the number of settings that it has set for the rest of the session, if the condition holds. A
/// setting that the server does not have is left out.
fn set(settings: &[(&str, u128)], condition: &str) -> String {
    let values: Vec<String> = settings.iter().map(|(name, value)| format!("('{name}', '{value}')")).collect();
    format!(
        "SELECT pg_catalog.count(pg_catalog.set_config(name, value, false)) FROM (VALUES {}) AS settings(name, value) WHERE \
         {condition} AND pg_catalog.current_setting(name, true) IS NOT NULL",
        values.join(", ")
    )
}

/// Returns the settings of a session whose lock is to end `ttl` after its last sign of life, and not sooner. A role may
/// have others. Each is rounded up; without `idle_session_timeout` (PostgreSQL 14), TCP notices a dead client.
fn settings(ttl: Duration) -> [(&'static str, u128); 7] {
    /// The longest times that the server accepts, in milliseconds, and Linux, in seconds (`man 7 tcp`).
    const LONGEST: (u128, u128) = (i32::MAX as u128, 32_767);
    let millis = (ttl.as_micros().div_ceil(1000) + 1).min(LONGEST.0);
    let idle = millis.div_ceil(1000).min(LONGEST.1);
    let interval = millis.div_ceil(3000).min(LONGEST.1);
    [
        ("idle_session_timeout", millis),
        ("tcp_user_timeout", millis),
        ("tcp_keepalives_idle", idle),
        ("tcp_keepalives_interval", interval),
        ("tcp_keepalives_count", 3),
        ("statement_timeout", 0),
        ("transaction_timeout", 0),
    ]
}

impl Advisory {
    async fn key(&mut self, client: &mut Client, name: &LockName) -> Result<Key, StoreError> {
        let Recipe::Session(rule) = client.location.recipe else {
            return Err(StoreError::Config("no advisory locks".into()));
        };
        if let Some(key) = rule.key(name).map_err(|error| StoreError::Config(error.to_string()))? {
            return Ok(key);
        }
        if let Some(key) = self.keys.get(name) {
            return Ok(*key);
        }
        let statement = "SELECT pg_catalog.hashtext($1)::bigint";
        let hash = client.value(statement, &[(&name.as_str(), Type::TEXT)]).await?;
        let key = Key::Number(hash.unwrap_or_default());
        self.keys.insert(name.clone(), key);
        Ok(key)
    }

    fn passage(&self, claim: &Claim) -> Option<&Passage> {
        self.passages.iter().find(|passage| passage.token == claim.token.reveal())
    }

    async fn occupants(
        &mut self,
        client: &mut Client,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Vec<Occupant>, StoreError> {
        let key = self.key(client, name).await?;
        let statement = format!(
            "SELECT pg_catalog.pg_backend_pid(), lock.pid, mode OPERATOR(pg_catalog.=) 'ExclusiveLock', \
             usename::pg_catalog.text, application_name, EXTRACT(epoch FROM pg_catalog.clock_timestamp() \
             OPERATOR(pg_catalog.-) backend_start)::bigint FROM pg_catalog.pg_locks AS lock LEFT JOIN \
             pg_catalog.pg_stat_activity AS client ON client.pid OPERATOR(pg_catalog.=) lock.pid WHERE (locktype \
             OPERATOR(pg_catalog.=) 'advisory') AND granted AND (database OPERATOR(pg_catalog.=) (SELECT oid FROM \
             pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())) AND {}",
            key.condition()
        );
        let rows = client.rows(&statement, &[]).await?;
        let (mut occupants, mut kept) = (Vec::new(), Vec::new());
        for row in &rows {
            let fields = || -> Result<_, tokio_postgres::Error> {
                let whose: (i32, i32) = (row.try_get(0)?, row.try_get(1)?);
                let text = |column| row.try_get::<_, Option<String>>(column);
                Ok((whose, row.try_get::<_, bool>(2)?, text(3)?, text(4)?, row.try_get::<_, Option<i64>>(5)?))
            };
            let ((this, process), is_exclusive, role, application, connected) =
                fields().map_err(|error| client.meaning(&error))?;
            let mode = if is_exclusive { GateMode::Exclusive } else { GateMode::Shared };
            if this == process {
                kept.push((process, mode));
            }
            let mut words = vec![format!("server process {process}")];
            words.extend(role.map(|role| format!("role {role}")));
            words.extend(application.filter(|name| !name.is_empty()));
            words.extend(connected.map(|seconds| format!("connected for {seconds}s")));
            let holder = Holder { hint: Some(words.join(", ")), ..Holder::default() };
            let identity = u64::try_from(process).ok().map(|process| (process, 0));
            occupants.push(Occupant { identity, mode, holder });
        }
        if let Purpose::Renew(claim) | Purpose::Release(claim) = purpose {
            let is_its = |one: &&mut Passage| one.token == claim.token.reveal();
            let passage = self.passages.iter_mut().find(is_its);
            if let Some(lost) = passage.filter(|one| !kept.contains(&(one.process, one.mode))) {
                lost.connection = None;
            }
        }
        Ok(occupants)
    }
}

impl SessionLock<Client> for Advisory {
    /// For the release that is repeated, also a lock that the first one may have left.
    fn passed(&self, client: &Client, purpose: &Purpose) -> Option<(u64, u64)> {
        let (connection, is_release) = (client.connection(), matches!(purpose, Purpose::Release(_)));
        let is_kept = |one: &&Passage| {
            is_release && one.is_ending || connection.is_some() && one.connection == connection
        };
        self.passage(purpose.claim()?).filter(is_kept).map(Passage::identity)
    }

    fn is_lost(&self, client: &Client) -> bool {
        let connection = client.connection();
        self.passages.iter().any(|one| connection.is_none() || one.connection != connection)
    }

    fn has_ended(&self, client: &Client, purpose: &Purpose) -> bool {
        match purpose {
            Purpose::Renew(claim) | Purpose::Release(claim) => {
                self.passage(claim).is_some() && self.passed(client, purpose).is_none()
            }
            _ => false,
        }
    }

    async fn observe(
        &mut self,
        client: &mut Client,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Vec<Occupant>, StoreError> {
        if matches!(purpose, Purpose::Claim(_)) {
            // While there is time: a waiter that is called has to be quick.
            client.own_session().await?;
        }
        let lost = purpose.claim().filter(|_| self.has_ended(client, purpose));
        let lost = lost.and_then(|claim| self.passage(claim)).map(Passage::identity);
        for _ in 0..TRIES {
            let occupants = self.occupants(client, name, purpose).await?;
            if lost.is_none() || occupants.iter().all(|one| one.identity != lost) {
                return Ok(occupants);
            }
            // The server reports the end of a session before it releases the locks of the session: until then, the lock
            // seems to be held by it.
            tokio::time::sleep(PAUSE).await;
        }
        self.occupants(client, name, purpose).await
    }

    async fn pass(&mut self, client: &mut Client, claim: &Claim, mode: GateMode) -> Result<bool, StoreError> {
        let key = self.key(client, &claim.name).await?;
        let own = client.own_session().await?;
        let kept_in = GateMode::of(claim.mode);
        let token = claim.token.reveal();
        self.passages.retain(|one| one.connection == Some(own) && one.token != token);
        // The server lets a session take its own lock again.
        let mut ours = self.passages.iter().filter(|one| one.key == key);
        if ours.any(|one| mode == GateMode::Exclusive || one.mode == GateMode::Exclusive) {
            return Ok(false);
        }
        let ttl = self.passages.iter().map(|one| one.ttl).fold(claim.ttl, Duration::max);
        let statement = format!(
            "WITH gate AS MATERIALIZED (SELECT {} AS is_taken) SELECT pg_catalog.pg_backend_pid(), is_taken, ({}) FROM gate",
            take(key, mode, kept_in),
            set(&settings(ttl), "is_taken")
        );
        let (process, is_taken) = verdict(client, &statement).await?;
        if client.connection() != Some(own) {
            // It has been taken in another session, about which nothing is known.
            client.close();
            return Err(StoreError::unanswered("the connection was lost"));
        }
        if is_taken {
            self.passages.push(Passage {
                token: token.to_owned(),
                key,
                mode: kept_in,
                ttl,
                connection: Some(own),
                process,
                is_ending: false,
            });
            client.keep(Some(ttl));
        }
        Ok(is_taken)
    }

    async fn leave(&mut self, client: &mut Client, claim: &Claim) -> Result<bool, StoreError> {
        let connection = client.connection();
        let is_its = |one: &Passage| one.token == claim.token.reveal();
        let Some(place) = self.passages.iter().position(is_its) else { return Ok(false) };
        let passage = &mut self.passages[place];
        let was_ending = std::mem::replace(&mut passage.is_ending, true);
        let was_kept = if connection.is_some() && passage.connection == connection {
            let unlock = match passage.mode {
                GateMode::Exclusive => "pg_catalog.pg_advisory_unlock",
                GateMode::Shared => "pg_catalog.pg_advisory_unlock_shared",
            };
            let key = passage.key.arguments();
            let is_last = self.passages.len() == 1;
            let idle = set(&[("idle_session_timeout", 0)], &is_last.to_string());
            let (_, was_kept) =
                verdict(client, &format!("SELECT pg_catalog.pg_backend_pid(), {unlock}({key}), ({idle})"))
                    .await?;
            was_kept
        } else {
            false
        };
        self.passages.remove(place);
        let lease = self.passages.iter().map(|one| one.ttl).max();
        let connection = client.connection();
        let is_its = |one: &Passage| connection.is_some() && one.connection == connection;
        client.keep(lease.filter(|_| self.passages.iter().any(is_its)));
        // The reply to an earlier request may have been lost.
        Ok(was_kept || was_ending)
    }
}

/// Runs a statement, and returns the process that has served it and whether it has succeeded.
async fn verdict(client: &mut Client, statement: &str) -> Result<(i32, bool), StoreError> {
    let rows = client.rows(statement, &[]).await?;
    let row = rows.first().ok_or_else(|| StoreError::unanswered("the server returned no row"))?;
    let verdict = || Ok((row.try_get(0)?, row.try_get(1)?));
    verdict().map_err(|error| client.meaning(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_waits_for_at_least_a_lease() {
        for ttl in [Duration::from_millis(100), Duration::from_micros(2_000_001), Duration::from_secs(30)] {
            let set: HashMap<_, _> = settings(ttl).into_iter().collect();
            for (name, unit) in
                [("idle_session_timeout", 1), ("tcp_user_timeout", 1), ("tcp_keepalives_idle", 1000)]
            {
                let time = Duration::from_millis(u64::try_from(set[name] * unit).expect("a time"));
                assert!(ttl < time && time <= ttl + Duration::from_millis(1002), "{name}: {time:?}");
            }
        }
        let longest: HashMap<_, _> = settings(Duration::MAX).into_iter().collect();
        assert_eq!(
            (longest["idle_session_timeout"], longest["tcp_keepalives_idle"]),
            (2_147_483_647, 32_767)
        );
    }
}
