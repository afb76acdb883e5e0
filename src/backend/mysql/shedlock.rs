//! The table of ShedLock on MySQL and MariaDB.

use super::client::{Client, READ_ONLY, still_primary};
use super::errors;
use super::reply::{QueryResult, text};
use crate::backend::StoreError;
use crate::backend::shedlock::{Database, Dialect, Row, TABLE, missing, other_shape};

impl Database for Client {
    const DIALECT: Dialect = Dialect::Mysql;

    async fn run(&mut self, sql: &str) -> Result<Vec<Row>, StoreError> {
        let results = self.query(&format!("{sql}; {READ_ONLY}")).await.and_then(|mut results| {
            still_primary(&mut results)?;
            Ok(results)
        });
        match results {
            Ok(mut results) => Ok(match results.pop() {
                Some(QueryResult::Rows(rows)) => {
                    rows.iter().map(|row| (0..row.len()).map(|column| text(row, column)).collect()).collect()
                }
                Some(QueryResult::Changed(rows)) => (0..rows).map(|_| Row::new()).collect(),
                None => Vec::new(),
            }),
            Err(failure) if failure.is(&[errors::NO_TABLE]) => {
                Err(StoreError::Config(missing(Self::DIALECT, TABLE)))
            }
            Err(failure) if errors::is_table_different(&failure) => {
                let found = StoreError::from(failure).to_string();
                Err(StoreError::Config(other_shape(Self::DIALECT, TABLE, &found)))
            }
            Err(failure) => Err(failure.into()),
        }
    }
}
