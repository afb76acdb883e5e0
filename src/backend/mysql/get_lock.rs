//! `recipe=get_lock`: a lock of `GET_LOCK`, as other programs take it. It has one holder and ends with its session; the
//! queue, the fencing counter and the history are those of its row.
//!
//! A lock of `GET_LOCK` belongs to the server, not to a database, and is not replicated
//! (<https://dev.mysql.com/doc/refman/8.4/en/locking-functions.html>).

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::client::{Client, IDLE_LIMIT, READ_ONLY, still_primary};
use super::packet::malformed;
use super::proxy;
use super::reply::{Failure, QueryResult, Row, number, text};
use super::table::literal;
use crate::backend::ledger::{GateMode, Occupant, Purpose};
use crate::backend::sql::SessionLock;
use crate::backend::{StoreError, io_text};
use crate::hex;
use crate::lock::{Claim, Holder, LockName};

/// The longest name that MySQL accepts, in characters, ...
const LONGEST: usize = 64;
/// ... and the longest one that MariaDB accepts, in bytes.
const LONGEST_BYTES: usize = 192;
/// The last character that MySQL accepts in a name.
const LAST_CHARACTER: char = '\u{FFFF}';
/// What the digest of another name begins with.
const DIGEST: &str = "dlock-sha256-";
/// The length of the digest in bytes.
const DIGEST_BYTES: usize = 20;

/// The gates that a client has passed.
#[derive(Default)]
pub(super) struct Gates {
    passages: Vec<Passage>,
}

struct Passage {
    name: LockName,
    token: String,
    /// The connection that the server has shown.
    id: u64,
    /// The session that it ends with.
    session: u64,
    /// The gate was left by a request whose reply may be lost.
    is_left: bool,
}

impl Passage {
    /// Returns whether its session is the one that the client has.
    fn is_of(&self, client: &Client) -> bool {
        client.is_connected() && self.session == client.session
    }
}

/// Returns the name of a lock for `GET_LOCK`. It is the name itself if every server can have it; then other programs can
/// take the same lock. Another name is replaced with a digest.
///
/// # Errors
/// The server ignores the case of names, and the name has another one than the server uses: the lock would be that of
/// another name.
fn user_lock(name: &str, ignores_case: bool) -> Result<String, StoreError> {
    let is_usable = name.chars().count() <= LONGEST
        && name.len() <= LONGEST_BYTES
        && name.chars().all(|character| character <= LAST_CHARACTER)
        && !name.starts_with(DIGEST);
    if !is_usable {
        let digest = Sha256::digest(name);
        return Ok(format!("{DIGEST}{}", hex::encode(&digest[..DIGEST_BYTES])));
    }
    let lower = name.to_lowercase();
    match ignores_case && lower != name {
        true => Err(StoreError::Config(format!(
            "MySQL ignores the case of the names of GET_LOCK: use the name '{lower}', which is the same lock there"
        ))),
        false => Ok(name.to_owned()),
    }
}

/// The longest `wait_timeout`, in seconds.
const LONGEST_IDLE: u64 = 31_536_000;

/// Returns the time in seconds after which the server ends a session without requests: never before a lease of this
/// length has ended.
fn idle_limit(ttl: Duration) -> u64 {
    ttl.as_millis().div_ceil(1000).clamp(1, u128::from(LONGEST_IDLE)).try_into().unwrap_or(LONGEST_IDLE)
}

impl Client {
    /// Returns the name of a lock as an argument of `GET_LOCK`. Connects if need be: it depends on the server.
    pub(super) async fn user_lock(&mut self, name: &LockName) -> Result<String, StoreError> {
        self.connect().await?;
        let name = format!("{}{name}", self.location.prefix);
        let name = user_lock(&name, !self.is_mariadb())?;
        Ok(format!("_utf8mb4 {}", literal(name)))
    }

    /// Returns what the server shows this user of a connection.
    async fn describe_connection(&mut self, id: u64) -> Result<String, StoreError> {
        let sql = format!("SELECT user, host FROM information_schema.processlist WHERE id = {id}");
        let rows = match self.rows(&sql).await {
            Err(Failure::Server(_)) => Vec::new(),
            rows => rows?,
        };
        let text = |column: usize| text(rows.first()?, column);
        Ok(match (text(0), text(1)) {
            (Some(user), Some(host)) => format!("connection {id} of {user}@{host}"),
            _ => format!("connection {id} of the server"),
        })
    }
}

/// Returns the statements that ask who holds a lock, and whether the server is still the primary: a lock of `GET_LOCK` can be
/// kept on a replica by every user.
pub(super) fn who_holds(user_lock: &str) -> String {
    format!("SELECT CONNECTION_ID(), IS_USED_LOCK({user_lock}); {READ_ONLY}")
}

/// Returns the answer.
///
/// # Errors
/// The server is a replica now.
pub(super) fn holder_in(results: &mut Vec<QueryResult>) -> Result<Row, StoreError> {
    still_primary(results)?;
    match results.pop() {
        Some(QueryResult::Rows(mut rows)) if rows.len() == 1 => Ok(rows.remove(0)),
        _ => Err(malformed()),
    }
}

impl Gates {
    /// Returns who is in the gate by the answer of the server. A gate that another session holds is not ours.
    ///
    /// # Errors
    /// The server could not be queried.
    pub(super) async fn occupants(
        &mut self,
        client: &mut Client,
        name: &LockName,
        purpose: &Purpose,
        answer: &Row,
    ) -> Result<Vec<Occupant>, StoreError> {
        let own = number(answer, 0).ok_or_else(malformed)?;
        let holder = number(answer, 1);
        if own != client.id || holder != Some(own) {
            self.passages.retain(|passage| passage.name != *name || passage.is_left);
        }
        let Some(holder) = holder else { return Ok(Vec::new()) };
        let hint = match purpose {
            Purpose::Operate if holder != own => Some(client.describe_connection(holder).await?),
            _ => None,
        };
        let holder = Occupant {
            identity: Some((holder, 0)),
            mode: GateMode::Exclusive,
            holder: Holder { hint, ..Holder::default() },
        };
        Ok(vec![holder])
    }
}

impl SessionLock<Client> for Gates {
    /// For the release that is repeated, also a lock that the first one may have left.
    fn passed(&self, client: &Client, purpose: &Purpose) -> Option<(u64, u64)> {
        let (token, is_release) = (purpose.claim()?.token.reveal(), matches!(purpose, Purpose::Release(_)));
        let is_kept = |passage: &&Passage| is_release && passage.is_left || passage.is_of(client);
        let mut its = self.passages.iter().filter(|passage| passage.token == token);
        its.find(is_kept).map(|passage| (passage.id, 0))
    }

    /// A client that keeps its session does not give it up with a request.
    fn is_lost(&self, client: &Client) -> bool {
        self.passages.iter().any(|passage| !passage.is_left && !passage.is_of(client))
    }

    fn has_ended(&self, client: &Client, purpose: &Purpose) -> bool {
        let (Purpose::Renew(claim) | Purpose::Release(claim)) = purpose else { return false };
        let mut its = self.passages.iter().filter(|passage| passage.token == claim.token.reveal());
        its.any(|passage| !passage.is_left && !passage.is_of(client))
    }

    /// A holder is identified by its connection.
    async fn observe(
        &mut self,
        client: &mut Client,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Vec<Occupant>, StoreError> {
        let sql = who_holds(&client.user_lock(name).await?);
        let answer = holder_in(&mut client.query(&sql).await?)?;
        self.occupants(client, name, purpose, &answer).await
    }

    /// The server then ends the session when it has received no request for as long as the lease
    /// lasts.
    async fn pass(&mut self, client: &mut Client, claim: &Claim, _: GateMode) -> Result<bool, StoreError> {
        let lock = client.user_lock(&claim.name).await?;
        let limit = idle_limit(claim.ttl);
        // A session may take a lock several times; what it holds already was not passed for this claim. Without the cast,
        // MySQL rejects the type of the limit (error 1232).
        let sql = format!(
            "SET @dlock_passed = IF(IS_USED_LOCK({lock}) <=> CONNECTION_ID(), 0, GET_LOCK({lock}, 0)); SET SESSION \
             wait_timeout = CAST(IF(@dlock_passed = 1, {limit}, @@SESSION.wait_timeout) AS UNSIGNED); SELECT CONNECTION_ID(), @dlock_passed"
        );
        let rows = client.rows(&sql).await?;
        let row = rows.first().ok_or_else(malformed)?;
        if number(row, 0) != Some(client.id) {
            client.disconnect();
            return Err(proxy::shares_connections());
        }
        match number(row, 1) {
            Some(1) => {}
            Some(_) => return Ok(false),
            None => {
                return Err(StoreError::unanswered(
                    "the server returned NULL from GET_LOCK: it failed there",
                ));
            }
        }
        if let Err(error) = client.keep(claim.ttl) {
            client.disconnect();
            return Err(StoreError::unreachable(format!("cannot keep the connection: {}", io_text(&error))));
        }
        self.passages.retain(|passage| passage.token != claim.token.reveal());
        self.passages.push(Passage {
            id: client.id,
            name: claim.name.clone(),
            token: claim.token.reveal().to_owned(),
            session: client.session,
            is_left: false,
        });
        Ok(true)
    }

    async fn leave(&mut self, client: &mut Client, claim: &Claim) -> Result<bool, StoreError> {
        let lock = client.user_lock(&claim.name).await?;
        let token = claim.token.reveal();
        let mut was_left = false;
        for passage in self.passages.iter_mut().filter(|passage| passage.token == token) {
            was_left = std::mem::replace(&mut passage.is_left, true);
        }
        let sql = format!(
            "SET @dlock_passed = RELEASE_LOCK({lock}); SET SESSION wait_timeout = {IDLE_LIMIT}; SELECT @dlock_passed"
        );
        let rows = client.rows(&sql).await?;
        let was_kept = rows.first().and_then(|row| number(row, 0)) == Some(1);
        self.passages.retain(|passage| passage.token != token);
        client.let_go();
        Ok(was_kept || was_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn name(text: &str) -> String {
        let name = user_lock(text, false).expect("a name");
        assert!(name.chars().count() <= LONGEST && name.len() <= LONGEST_BYTES, "{name}");
        name
    }

    #[test]
    fn a_name_that_every_server_accepts_is_used_as_it_is() {
        for text in ["nightly", "Nightly", "a b", "\u{e1}", &"x".repeat(64), &"\u{20ac}".repeat(64), "app.x"]
        {
            assert_eq!(name(text), text);
        }
    }

    #[test]
    fn another_name_is_replaced_with_a_digest_that_no_other_name_has() {
        let texts = ["x".repeat(65), "X".repeat(65), "\u{20ac}".repeat(65), "\u{1F512}".to_owned()];
        let mut names: Vec<String> = texts.iter().map(|text| name(text)).collect();
        // Not even the name that is a digest.
        names.push(name(&names[0]));
        assert!(names.iter().all(|name| name.starts_with(DIGEST)), "{names:?}");
        assert_eq!(names[0], "dlock-sha256-9537c5fdf120482f7d58d25e9ed583f52c02b4e3");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), texts.len() + 1);
    }

    #[test]
    fn a_server_that_ignores_case_has_names_in_lower_case_only() {
        assert_eq!(user_lock("nightly", true), Ok("nightly".to_owned()));
        assert_eq!(user_lock(&"X".repeat(65), true), Ok(name(&"X".repeat(65))));
        for text in ["Nightly", "\u{c9}", "\u{130}"] {
            assert!(matches!(user_lock(text, true), Err(StoreError::Config(_))), "{text}");
        }
    }

    #[test]
    fn a_session_is_idle_for_a_lease() {
        let limits = [1, 1000, 1001, 30_000].map(|ms| idle_limit(Duration::from_millis(ms)));
        assert_eq!(limits, [1, 1, 2, 30]);
        assert_eq!(idle_limit(Duration::from_secs(86_400)), 86_400);
        assert_eq!(idle_limit(Duration::MAX), LONGEST_IDLE);
    }
}
