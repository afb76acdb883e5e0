//! The table of ShedLock on PostgreSQL.

use super::client::{Client, SHEDLOCK};
use super::errors;
use crate::backend::StoreError;
use crate::backend::shedlock::{Database, Dialect, Row, missing, other_shape};

impl Client {
    fn no_shedlock(&self) -> StoreError {
        StoreError::Config(missing(Dialect::Postgres, &self.location.shedlock_table.to_string()))
    }
}

impl Database for Client {
    const DIALECT: Dialect = Dialect::Postgres;

    fn table(&self) -> String {
        self.location.shedlock_table.quoted()
    }

    async fn columns(&mut self) -> Result<Vec<Row>, StoreError> {
        self.connect().await?;
        if self.found(SHEDLOCK).is_none() {
            self.look().await?;
        }
        let found = self.found(SHEDLOCK).ok_or_else(|| self.no_shedlock())?;
        Ok(found.columns.iter().map(|column| column.clone().map(Some).to_vec()).collect())
    }

    async fn create_table(&mut self) -> Result<(), StoreError> {
        let statement = Self::DIALECT.create_table(&self.location.shedlock_table.quoted());
        self.create(&statement).await
    }

    async fn run(&mut self, sql: &str) -> Result<Vec<Row>, StoreError> {
        let Some(result) = self.on_table(SHEDLOCK, None, sql, &[]).await? else {
            return Err(self.no_shedlock());
        };
        match result {
            Ok(rows) => {
                let texts = rows.iter().map(|row| (0..row.len()).map(|column| row.try_get(column)).collect());
                texts.collect::<Result<Vec<Row>, _>>().map_err(|error| self.meaning(&error))
            }
            Err(error) => Err(match errors::is_other_shape(&error) {
                Some(found) => {
                    let table = self.location.shedlock_table.to_string();
                    StoreError::Config(other_shape(Self::DIALECT, &table, &found))
                }
                None => self.meaning(&error),
            }),
        }
    }
}
