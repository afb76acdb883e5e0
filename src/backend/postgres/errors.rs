//! The meaning of PostgreSQL's errors: decided on their SQLSTATE (PostgreSQL manual, appendix A).

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::backend::{StoreError, io_text, net};
use crate::secret;

/// Returns whether the table does not exist.
pub(super) fn is_without_table(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::UNDEFINED_TABLE))
}

/// Returns whether another client has created the table meanwhile: with IF NOT EXISTS as well, one of two clients fails,
/// on the table, on the type of its rows, or on their entry in a catalog.
pub(super) fn is_created_already(error: &Error) -> bool {
    let codes = [&SqlState::DUPLICATE_TABLE, &SqlState::DUPLICATE_OBJECT, &SqlState::UNIQUE_VIOLATION];
    error.code().is_some_and(|code| codes.contains(&code))
}

/// Returns whether another client has changed the row first. A role may have another default than READ COMMITTED.
pub(super) fn is_conflict(error: &Error) -> bool {
    matches!(error.code(), Some(&(SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED)))
}

/// Returns the server's text if a statement does not fit the table that it names.
pub(super) fn is_other_shape(error: &Error) -> Option<String> {
    let db = error.as_db_error()?;
    let is_shape = ["22", "23", "42"].contains(&&db.code().code()[..2]);
    (is_shape && *db.code() != SqlState::INSUFFICIENT_PRIVILEGE).then(|| described(db))
}

/// Returns whether the connection has ended. The severity is read from the field that is not translated.
pub(super) fn is_disconnected(error: &Error) -> bool {
    let is_ended = |error: &DbError| error.parsed_severity() != Some(Severity::Error);
    error.is_closed() || error.as_db_error().is_none_or(is_ended)
}

/// Returns whether the server does not know the role, or has no entry in pg_hba.conf for it on such a connection.
pub(super) fn is_without_entry(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION))
}

/// Returns whether the server cannot change anything.
pub(super) fn is_read_only(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION))
}

/// Returns whether the role may not do this, or has no schema to do it in.
pub(super) fn is_without_right(error: &Error) -> bool {
    matches!(error.code(), Some(&(SqlState::INSUFFICIENT_PRIVILEGE | SqlState::INVALID_SCHEMA_NAME)))
}

/// Returns the error of a statement that failed.
pub(super) fn meaning(error: &Error, table: &str) -> StoreError {
    let Some(db) = error.as_db_error() else { return lost(error) };
    let text = described(db);
    let (code, class) = (db.code(), &db.code().code()[..2]);
    let other_shape = || {
        StoreError::Config(format!(
            "the table {table} is not one of dlock ({text}): name another one with table=, or see dlock doctor --policy"
        ))
    };
    match *code {
        SqlState::TOO_MANY_CONNECTIONS | SqlState::CANNOT_CONNECT_NOW => StoreError::transient(text, false),
        SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::IDLE_SESSION_TIMEOUT
        | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => StoreError::transient(text, true),
        SqlState::READ_ONLY_SQL_TRANSACTION => StoreError::unreachable(read_only(&text)),
        SqlState::QUERY_CANCELED | SqlState::LOCK_NOT_AVAILABLE => StoreError::unreachable(text),
        SqlState::INVALID_CATALOG_NAME => StoreError::Config(text),
        SqlState::INSUFFICIENT_PRIVILEGE => {
            StoreError::Denied(format!("a right is missing ({text}): see dlock doctor --policy"))
        }
        SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME => StoreError::Config(format!(
            "the table {table} cannot be created ({text}): see dlock doctor --policy"
        )),
        // The table lacks a column, or has another type or a constraint: it was not created by dlock.
        _ if class == "42" || class == "23" || class == "22" => other_shape(),
        _ if class == "28" => StoreError::Denied(text),
        _ if class == "40" => StoreError::transient(text, false),
        // Not enough disk space or memory: nothing was stored.
        _ if class == "53" => StoreError::unreachable(text),
        _ => StoreError::unanswered(text),
    }
}

/// Returns the error of a connection that could not be opened.
pub(super) fn refused(error: &Error, has_password: bool) -> StoreError {
    let Some(db) = error.as_db_error() else {
        return match net::io_cause(error) {
            Some(broken) => StoreError::unreachable(io_text(broken)),
            // Such as one that is about to stop.
            None if error.is_closed() => StoreError::transient(net::CLOSED, false),
            None if !has_password => StoreError::Denied(
                "the server requires a password: add it to the URL, as password_file=, as PGPASSWORD, or to ~/.pgpass"
                    .into(),
            ),
            None => StoreError::unreachable(error.to_string()),
        };
    };
    match *db.code() {
        SqlState::PROTOCOL_VIOLATION => refused_by_pooler(db.message(), described(db)),
        _ => match meaning(error, "") {
            StoreError::Unavailable { reason, outlook, .. } => {
                StoreError::Unavailable { reason, outlook, maybe_applied: false }
            }
            other => other,
        },
    }
}

/// Returns the error of a pooler that refuses a login. PgBouncer has one SQLSTATE for all that it says itself, so that only
/// its text distinguishes a fault of its configuration from a server that is down, or from too many clients
/// (pgbouncer/src/client.c).
fn refused_by_pooler(message: &str, described: String) -> StoreError {
    const CONFIGURATION: [&str; 8] = [
        "no such database",
        "no such user",
        "authentication database",
        "bouncer config error",
        "ssl required",
        "unsupported options startup parameter",
        "unsupported startup parameter",
        "username too long",
    ];
    const DENIED: [&str; 4] =
        ["authentication failed", "auth failed", "login rejected", "empty password returned by client"];
    let message = message.to_lowercase();
    if CONFIGURATION.iter().any(|text| message.starts_with(text)) {
        return StoreError::Config(described);
    }
    match DENIED.iter().any(|text| message.ends_with(text)) {
        true => StoreError::Denied(described),
        false => StoreError::unreachable(described),
    }
}

/// Returns what to say of a server that cannot store anything.
pub(super) fn read_only(text: &str) -> String {
    format!("the server is read-only ({text}): locks are taken on the primary")
}

/// No reply came.
fn lost(error: &Error) -> StoreError {
    match net::io_cause(error) {
        Some(broken) => net::broken(broken),
        None if error.is_closed() => net::closed(),
        None => StoreError::unanswered(error.to_string()),
    }
}

/// The server's text, which is not trusted, without our secrets; it is escaped when it is printed.
pub(super) fn described(error: &DbError) -> String {
    secret::scrubbed(error.message()).chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pooler_that_is_configured_wrongly_is_told_from_a_server_that_is_down() {
        let refused = |text: &str| refused_by_pooler(text, text.to_owned());
        for text in ["no such database: nothing", "No such user: web", "bouncer config error", "SSL required"]
        {
            assert_eq!(refused(text), StoreError::Config(text.into()));
        }
        for text in ["Auth failed", "password authentication failed", "\"trust\" authentication failed"] {
            assert_eq!(refused(text), StoreError::Denied(text.into()));
        }
        for text in [
            "client_login_timeout (server down)",
            "no more connections allowed (max_client_conn)",
            "server login has been failing, try again later (server_login_retry)",
            "server login has been failing, cached error: no such user (server_login_retry)",
            "query_wait_timeout",
        ] {
            assert_eq!(refused(text), StoreError::unreachable(text));
        }
    }
}
