//! The SQL of the servers.

use super::TABLE;
use crate::backend::StoreError;
use crate::hex;

/// Selects the names and the types of the columns, and whether names are unique.
const MYSQL_COLUMNS: &str = "SELECT LOWER(column_name), column_type, IF(column_key IN ('PRI', 'UNI'), 'true', 'false') FROM \
                             information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'shedlock'";

/// How a server writes what SQL does not say in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL
    Postgres,
    /// MySQL and MariaDB
    Mysql,
}

impl Dialect {
    /// Returns the statement that creates the table, as the manual of ShedLock does. Names are compared as bytes.
    pub fn create_table(self, table: &str) -> String {
        match self {
            Dialect::Postgres => {
                format!(
                    "CREATE TABLE IF NOT EXISTS {table} (name varchar(64) NOT NULL PRIMARY KEY, lock_until timestamp NOT NULL, \
                 locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)"
                )
            }
            Dialect::Mysql => {
                format!(
                    "CREATE TABLE IF NOT EXISTS {table} (name varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL \
                 PRIMARY KEY, lock_until timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_at timestamp(3) NOT NULL \
                 DEFAULT CURRENT_TIMESTAMP(3), locked_by varchar(255) NOT NULL) ENGINE = InnoDB"
                )
            }
        }
    }

    /// Returns the server's clock in UTC, as `usingDbTime()` reads it, in whole milliseconds. It stands still during a
    /// statement, which may wait for a row: a lease is never longer than its holder counts it, from the sending.
    pub(super) fn now(self) -> &'static str {
        match self {
            Dialect::Postgres => {
                "pg_catalog.date_trunc('milliseconds', pg_catalog.timezone('utc', CURRENT_TIMESTAMP))"
            }
            Dialect::Mysql => "UTC_TIMESTAMP(3)",
        }
    }

    pub(super) fn plus(self, time: &str, milliseconds: u128) -> String {
        match self {
            Dialect::Postgres => {
                format!("({time} OPERATOR(pg_catalog.+) interval '{milliseconds} milliseconds')")
            }
            Dialect::Mysql => format!("TIMESTAMPADD(MICROSECOND, {milliseconds} * 1000, {time})"),
        }
    }

    /// Returns the milliseconds between two times.
    pub(super) fn between(self, from: &str, to: &str) -> String {
        match self {
            Dialect::Postgres => format!(
                "(EXTRACT(epoch FROM {to} OPERATOR(pg_catalog.-) {from}) OPERATOR(pg_catalog.*) \
                 1000)::bigint::pg_catalog.text"
            ),
            Dialect::Mysql => format!("TIMESTAMPDIFF(MICROSECOND, {from}, {to}) DIV 1000"),
        }
    }

    /// Returns a text as a literal, which means the same in every mode of the server.
    pub(super) fn literal(self, text: &str) -> String {
        let digits = hex::encode(text.as_bytes());
        match self {
            Dialect::Postgres => {
                format!("pg_catalog.convert_from(pg_catalog.decode('{digits}', 'hex'), 'UTF8')")
            }
            Dialect::Mysql => format!("_utf8mb4 x'{digits}'"),
        }
    }

    /// Returns a time that the server has shown as text.
    pub(super) fn time(self, text: &str) -> String {
        let kind = match self {
            Dialect::Postgres => "timestamp",
            Dialect::Mysql => "datetime(6)",
        };
        format!("CAST({} AS {kind})", self.literal(text))
    }

    /// Returns an operator or a function of the server itself: a search path may begin with the schema of a stranger.
    /// Operators in this form bind equally strongly.
    pub(super) fn operator(self, symbol: &str) -> String {
        match self {
            Dialect::Postgres => format!("OPERATOR(pg_catalog.{symbol})"),
            Dialect::Mysql => symbol.to_owned(),
        }
    }

    pub(super) fn function(self, name: &str) -> String {
        match self {
            Dialect::Postgres => format!("pg_catalog.{name}"),
            Dialect::Mysql => name.to_owned(),
        }
    }

    /// Returns the end of a statement whose changed rows are to be counted.
    pub(super) fn returning(self) -> &'static str {
        match self {
            Dialect::Postgres => " RETURNING ''",
            Dialect::Mysql => "",
        }
    }
}

/// A row of a result.
pub type Row = Vec<Option<String>>;

/// A server with the table.
pub trait Database {
    /// How it writes SQL.
    const DIALECT: Dialect;

    /// Returns the table, as statements name it.
    fn table(&self) -> String {
        TABLE.to_owned()
    }

    /// Returns the names and the types of the columns of the table, and whether names are unique; nothing without a table.
    ///
    /// # Errors
    /// It failed.
    fn columns(&mut self) -> impl Future<Output = Result<Vec<Row>, StoreError>> {
        self.run(MYSQL_COLUMNS)
    }

    /// Creates the table, unless it exists.
    ///
    /// # Errors
    /// It failed.
    fn create_table(&mut self) -> impl Future<Output = Result<(), StoreError>> {
        let statement = Self::DIALECT.create_table(&self.table());
        async move { self.run(&statement).await.map(drop) }
    }

    /// Runs statements. Returns the rows of the last one: for one that changes rows, as many as were changed.
    ///
    /// # Errors
    /// It failed.
    fn run(&mut self, sql: &str) -> impl Future<Output = Result<Vec<Row>, StoreError>>;
}

/// Returns what to say of a database without the table.
pub fn missing(dialect: Dialect, table: &str) -> String {
    format!(
        "there is no table {table}, or no right to it: name the database that the other programs use, or create the \
         table, with dlock doctor --init or with {}",
        dialect.create_table(table)
    )
}

/// Returns what to say of another table.
pub fn other_shape(dialect: Dialect, table: &str, found: &str) -> String {
    format!(
        "the table {table} is not one of ShedLock ({found}): compare it with {}",
        dialect.create_table(table)
    )
}
