//! The table of ShedLock on PostgreSQL.

use super::client::Client;
use super::errors;
use crate::backend::StoreError;
use crate::backend::shedlock::{Database, Dialect, Row, missing, other_shape};

impl Database for Client {
    const DIALECT: Dialect = Dialect::Postgres;

    async fn run(&mut self, sql: &str) -> Result<Vec<Row>, StoreError> {
        match self.query(sql, &[]).await? {
            Ok(rows) => {
                let texts = rows.iter().map(|row| (0..row.len()).map(|column| row.try_get(column)).collect());
                texts.collect::<Result<Vec<Row>, _>>().map_err(|error| self.meaning(&error))
            }
            Err(error) if errors::is_without_table(&error) => Err(StoreError::Config(missing(Self::DIALECT))),
            Err(error) => Err(match errors::is_other_shape(&error) {
                Some(found) => StoreError::Config(other_shape(Self::DIALECT, &found)),
                None => self.meaning(&error),
            }),
        }
    }
}
