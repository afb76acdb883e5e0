//! What the error numbers of MySQL and MariaDB mean for a lock (<https://dev.mysql.com/doc/mysql-errors/en/>,
//! <https://mariadb.com/docs/server/reference/error-codes>).

use super::packet::ServerError;
use super::reply::{Failure, QueryResult};
use crate::backend::StoreError;
use crate::backend::sql::TABLE;
use crate::secret;

const HANDSHAKE: u16 = 1043;
const DISK_FULL: u16 = 1021;
const TOO_MANY_CONNECTIONS: u16 = 1040;
const NO_ACCESS_TO_DATABASE: u16 = 1044;
const ACCESS_DENIED: u16 = 1045;
/// The session has not selected a database.
pub(super) const NO_DATABASE: u16 = 1046;
const UNKNOWN_DATABASE: u16 = 1049;
const SHUTDOWN: u16 = 1053;
const BAD_FIELD: u16 = 1054;
const KILLED: u16 = 1927;
const TABLE_FULL: u16 = 1114;
/// Another client has inserted the row.
pub(super) const DUPLICATE: u16 = 1062;
const HOST_BLOCKED: u16 = 1129;
pub(super) const DUPLICATE_COLUMN: u16 = 1060;
const HOST_NOT_ALLOWED: u16 = 1130;
const TABLE_ACCESS_DENIED: u16 = 1142;
const COLUMN_ACCESS_DENIED: u16 = 1143;
pub(super) const NO_TABLE: u16 = 1146;
const ABORTED_CONNECTION: u16 = 1152;
const TOO_MANY_USER_CONNECTIONS: u16 = 1203;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// The statement was rolled back in favor of another one, which does not matter to it.
pub(super) const DEADLOCK: u16 = 1213;
const USER_LIMIT: u16 = 1226;
const MISSING_PRIVILEGE: u16 = 1227;
const NOT_SUPPORTED: u16 = 1235;
const OPTION_PREVENTS: u16 = 1290;
const INTERRUPTED: u16 = 1317;
const BINLOG_UNSAFE: u16 = 1665;
const READ_ONLY_TRANSACTION: u16 = 1792;
const READ_ONLY_MODE: u16 = 1836;
const ACCOUNT_LOCKED: u16 = 3118;
const MUST_CHANGE_PASSWORD: [u16; 2] = [1820, 1862];
const STATEMENT_TIMEOUT: u16 = 1969;
const QUERY_TIMEOUT: u16 = 3024;
const CLIENT_TIMED_OUT: u16 = 4031;
const CANNOT_AUTHENTICATE: u16 = 1698;
const SECURE_TRANSPORT_REQUIRED: u16 = 3159;

impl Failure {
    /// Returns whether the server has reported one of these errors.
    pub(super) fn is(&self, codes: &[u16]) -> bool {
        matches!(self, Failure::Server(error) if codes.contains(&error.code))
    }
}

/// Returns the text if the user may not use the table, or the database.
pub(super) fn missing_right(failure: &Failure) -> Option<String> {
    let is_missing = failure.is(&[NO_ACCESS_TO_DATABASE, TABLE_ACCESS_DENIED, COLUMN_ACCESS_DENIED]);
    match failure {
        Failure::Server(error) if is_missing => Some(meaning(error).to_string()),
        _ => None,
    }
}

/// Returns whether the table has other columns, or its columns another type.
pub(super) fn is_table_different(failure: &Failure) -> bool {
    const TRUNCATED: u16 = 1265;
    const OUT_OF_RANGE: u16 = 1264;
    const TOO_LONG: u16 = 1406;
    const NOT_UPDATABLE: u16 = 1288;
    const NO_DEFAULT: u16 = 1364;
    const INCORRECT_VALUE: u16 = 1366;
    failure.is(&[BAD_FIELD, TRUNCATED, OUT_OF_RANGE, TOO_LONG, NOT_UPDATABLE, NO_DEFAULT, INCORRECT_VALUE])
}

/// Returns whether the server ends the connection after this error.
pub(super) fn ends_connection(error: &ServerError) -> bool {
    [SHUTDOWN, KILLED, ABORTED_CONNECTION, CLIENT_TIMED_OUT].contains(&error.code)
}

/// Returns the meaning of an error in reply to a login or to statements.
pub(super) fn meaning(error: &ServerError) -> StoreError {
    let text = described(error);
    // A statement that is rejected changes nothing, but one before it in the same request may have.
    match error.code {
        TOO_MANY_CONNECTIONS | TOO_MANY_USER_CONNECTIONS | USER_LIMIT => {
            StoreError::transient(format!("too many connections ({text})"), false)
        }
        DEADLOCK | LOCK_WAIT_TIMEOUT => StoreError::transient(text, true),
        SHUTDOWN => StoreError::unanswered("the server shuts down"),
        KILLED | ABORTED_CONNECTION | INTERRUPTED | CLIENT_TIMED_OUT | STATEMENT_TIMEOUT | QUERY_TIMEOUT => {
            StoreError::unanswered(format!("the server has ended the request ({text})"))
        }
        DISK_FULL | TABLE_FULL => StoreError::unanswered(format!("no space is left ({text})")),
        OPTION_PREVENTS | READ_ONLY_TRANSACTION | READ_ONLY_MODE => read_only(),
        HOST_BLOCKED => StoreError::unreachable(format!("{text}: run FLUSH HOSTS on the server")),
        HOST_NOT_ALLOWED | ACCOUNT_LOCKED => StoreError::Denied(text),
        ACCESS_DENIED | CANNOT_AUTHENTICATE => StoreError::Denied(format!(
            "the server rejected the user or the password ({text}): see password_file=, MYSQL_PWD and ~/.my.cnf"
        )),
        code if MUST_CHANGE_PASSWORD.contains(&code) => StoreError::Denied(text),
        SECURE_TRANSPORT_REQUIRED => {
            StoreError::Config(format!("the server requires TLS: use ssl_mode=required ({text})"))
        }
        NO_ACCESS_TO_DATABASE | TABLE_ACCESS_DENIED | COLUMN_ACCESS_DENIED | MISSING_PRIVILEGE => {
            StoreError::Denied(format!("a right is missing ({text}): see dlock doctor --policy"))
        }
        UNKNOWN_DATABASE | NO_DATABASE => {
            StoreError::Config(format!("{text}: create it, or change the URL"))
        }
        NO_TABLE => {
            StoreError::Config(format!("{text}: create it with dlock doctor --init, see dlock doctor --policy"))
        }
        NOT_SUPPORTED => StoreError::Config(format!("the server cannot do that ({text})")),
        BINLOG_UNSAFE => StoreError::Config(
            "the server has binlog_format=STATEMENT, with which InnoDB cannot use READ COMMITTED: set it to MIXED or ROW"
                .into(),
        ),
        HANDSHAKE => StoreError::unreachable(text),
        _ => StoreError::unanswered(text),
    }
}

/// Returns the result of statements, with what it means that the table has other columns.
pub(super) fn checked(result: Result<Vec<QueryResult>, Failure>) -> Result<Vec<QueryResult>, Failure> {
    result.map_err(|failure| match is_table_different(&failure) {
        false => failure,
        true => {
            let text = StoreError::from(failure);
            let text =
                format!("{TABLE} is not a table of dlock's ({text}): rename it, or use another database");
            StoreError::Config(text).into()
        }
    })
}

/// A replica, or a server in maintenance. A failover ends it.
pub(super) fn read_only() -> StoreError {
    StoreError::unreachable("the server is read-only: name the primary, not a replica")
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> StoreError {
        match failure {
            Failure::Server(error) => meaning(&error),
            Failure::Store(error) => error,
        }
    }
}

/// The server's text, which is not trusted, without our secrets; it is escaped when it is printed.
pub(super) fn described(error: &ServerError) -> String {
    let text: String = secret::scrubbed(&error.text).chars().take(200).collect();
    match text.is_empty() {
        true => format!("error {}", error.code),
        false => format!("error {}: {text}", error.code),
    }
}
