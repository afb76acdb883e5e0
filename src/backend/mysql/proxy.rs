//! Proxies that share the connections of the server among their clients, such as ProxySQL. With such a proxy, a lock of a
//! session does not belong to one client.

use super::connection::Connection;
use super::location::Location;
use super::packet::malformed;
use super::reply::{Failure, QueryResult, number};
use super::table::literal;
use crate::backend::StoreError;
use crate::random;

/// The error for such a proxy.
pub(super) fn shares_connections() -> StoreError {
    StoreError::Config(
        "a proxy shares the connections of the server among its clients, so that a lock of GET_LOCK is not that of one \
         client: name the server itself, or use recipe=table"
            .into(),
    )
}

/// Checks that a connection through a proxy, which has this id at the server, stays the same one. The id alone does not
/// prove that: a pool may return the same connection while it serves no other client. So another client uses one in a
/// transaction meanwhile, and then tries to take what this one holds.
///
/// # Errors
/// The proxy shares connections, or one cannot be used.
pub(super) async fn check(
    connection: &mut Connection,
    id: u64,
    location: &Location,
) -> Result<(), StoreError> {
    let scratch = format!("_utf8mb4 {}", literal(format!("dlock-proxy-{}", random::id())));
    let (take, leave) = (format!("GET_LOCK({scratch}, 0)"), format!("RELEASE_LOCK({scratch})"));
    let mut other = Connection::open(location).await?;
    let others = ask(&mut other, "START TRANSACTION; ", "1").await?.0;
    if others == Some(id) || ask(connection, "", "1").await?.0 != Some(id) {
        return Err(shares_connections());
    }
    let mine = ask(connection, "", &take).await?;
    // From here on, the connection that it has used is the last one of the pool.
    let try_it = format!("IF(IS_USED_LOCK({scratch}) <=> CONNECTION_ID(), 1, {take})");
    let theirs = ask(&mut other, "COMMIT; ", &try_it).await?;
    let left = ask(connection, "", &leave).await?;
    match (mine, theirs.1, left) == ((Some(id), Some(1)), Some(0), (Some(id), Some(1))) {
        true => Ok(()),
        false => Err(shares_connections()),
    }
}

/// Returns the id of the connection of the server that evaluates an expression, and the value.
async fn ask(
    connection: &mut Connection,
    before: &str,
    expression: &str,
) -> Result<(Option<u64>, Option<u64>), StoreError> {
    // With another column, so that no proxy answers in place of the server.
    let results = connection.query(&format!("{before}SELECT CONNECTION_ID(), {expression}")).await;
    let results = results.map_err(|failure: Failure| StoreError::from(failure))?;
    let Some(QueryResult::Rows(rows)) = results.last() else { return Err(malformed()) };
    let row = rows.first().ok_or_else(malformed)?;
    Ok((number(row, 0), number(row, 1)))
}
