//! The SQL of the servers.

use crate::backend::StoreError;
use crate::hex;

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
    pub fn create_table(self) -> &'static str {
        match self {
            Dialect::Postgres => {
                "CREATE TABLE IF NOT EXISTS shedlock (name varchar(64) NOT NULL PRIMARY KEY, lock_until timestamp NOT NULL, \
                 locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)"
            }
            Dialect::Mysql => {
                "CREATE TABLE IF NOT EXISTS shedlock (name varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL \
                 PRIMARY KEY, lock_until timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_at timestamp(3) NOT NULL \
                 DEFAULT CURRENT_TIMESTAMP(3), locked_by varchar(255) NOT NULL) ENGINE = InnoDB"
            }
        }
    }

    /// Returns the server's clock in UTC, as `usingDbTime()` reads it, in whole milliseconds. It stands still during a
    /// statement, which may wait for a row: a lease is never longer than its holder counts it, from the sending.
    pub(super) fn now(self) -> &'static str {
        match self {
            Dialect::Postgres => "date_trunc('milliseconds', timezone('utc', CURRENT_TIMESTAMP))",
            Dialect::Mysql => "UTC_TIMESTAMP(3)",
        }
    }

    pub(super) fn plus(self, time: &str, milliseconds: u128) -> String {
        match self {
            Dialect::Postgres => format!("{time} + interval '{milliseconds} milliseconds'"),
            Dialect::Mysql => format!("TIMESTAMPADD(MICROSECOND, {milliseconds} * 1000, {time})"),
        }
    }

    /// Returns the milliseconds between two times.
    pub(super) fn between(self, from: &str, to: &str) -> String {
        match self {
            Dialect::Postgres => format!("(extract(epoch FROM {to} - {from}) * 1000)::bigint::text"),
            Dialect::Mysql => format!("TIMESTAMPDIFF(MICROSECOND, {from}, {to}) DIV 1000"),
        }
    }

    /// Returns a text as a literal, which means the same in every mode of the server.
    pub(super) fn literal(self, text: &str) -> String {
        let digits = hex::encode(text.as_bytes());
        match self {
            Dialect::Postgres => format!("convert_from(decode('{digits}', 'hex'), 'UTF8')"),
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

    /// Returns the statement that selects the names and the types of the columns, and whether names are unique.
    pub(super) fn columns(self) -> &'static str {
        match self {
            Dialect::Postgres => {
                "SELECT attname::text, format_type(atttypid, atttypmod), EXISTS (SELECT FROM pg_index WHERE indrelid = \
                 attrelid AND indisunique AND indnkeyatts = 1 AND indkey[0] = attnum AND indpred IS NULL)::text FROM \
                 pg_attribute WHERE attrelid = to_regclass('shedlock') AND attnum > 0 AND NOT attisdropped"
            }
            Dialect::Mysql => {
                "SELECT LOWER(column_name), column_type, IF(column_key IN ('PRI', 'UNI'), 'true', 'false') FROM \
                 information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'shedlock'"
            }
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

    /// Runs statements. Returns the rows of the last one: for one that changes rows, as many as were changed.
    ///
    /// # Errors
    /// It failed.
    fn run(&mut self, sql: &str) -> impl Future<Output = Result<Vec<Row>, StoreError>>;
}

/// Returns what to say of a database without the table.
pub fn missing(dialect: Dialect) -> String {
    format!(
        "there is no table shedlock, or no right to it: name the database that the other programs use, or create the \
         table, with dlock doctor --init or with {}",
        dialect.create_table()
    )
}

/// Returns what to say of another table.
pub fn other_shape(dialect: Dialect, found: &str) -> String {
    format!("the table shedlock is not one of ShedLock ({found}): compare it with {}", dialect.create_table())
}
