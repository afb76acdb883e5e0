//! The results of statements, put together from the packets of a reply.

use super::packet::{self, ERROR, LOCAL_FILE, OK, Reader, ServerError, malformed};
use crate::backend::StoreError;

/// The result of one statement.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The number of rows that the change applied to.
    Changed(u64),
    /// What was selected.
    Rows(Vec<Row>),
}

/// A row of a result; `None` is NULL.
pub(super) type Row = Vec<Option<Vec<u8>>>;

/// Why statements gave no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server has rejected one of them. Those before it were carried out, those after it were not.
    Server(ServerError),
    /// There was no reply.
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure::Store(error)
    }
}

/// The part of a reply that was read.
#[derive(Default)]
pub(super) struct Reply {
    pub(super) outcomes: Vec<Outcome>,
    part: Part,
}

/// The part of a result that comes next.
#[derive(Default)]
enum Part {
    #[default]
    Begin,
    /// The descriptions of columns, which are those that were asked for.
    Columns,
    Rows(Vec<Row>),
}

impl Reply {
    /// Adds the next packet, and returns whether more follow.
    pub(super) fn add(&mut self, packet: &[u8]) -> Result<bool, Failure> {
        if packet.first() == Some(&ERROR) {
            return Err(Failure::Server(ServerError::parse(packet)?));
        }
        let end = packet::parse_end(packet);
        match (std::mem::take(&mut self.part), end) {
            (Part::Begin, _) => match packet.first() {
                Some(&OK) => {
                    let (rows, has_more) = packet::parse_ok(packet)?;
                    self.outcomes.push(Outcome::Changed(rows));
                    return Ok(has_more);
                }
                // dlock never loads a file: a server that asks for one is after it.
                Some(&LOCAL_FILE) | None => return Err(malformed().into()),
                Some(_) => self.part = Part::Columns,
            },
            (Part::Columns, None) => self.part = Part::Columns,
            (Part::Columns, Some(_)) => self.part = Part::Rows(Vec::new()),
            (Part::Rows(rows), Some(has_more)) => {
                self.outcomes.push(Outcome::Rows(rows));
                return Ok(has_more);
            }
            (Part::Rows(mut rows), None) => {
                let (mut reader, mut row) = (Reader(packet), Row::new());
                while !reader.0.is_empty() {
                    row.push(reader.string()?.map(<[u8]>::to_vec));
                }
                rows.push(row);
                self.part = Part::Rows(rows);
            }
        }
        Ok(true)
    }
}
