//! The results of statements, put together from the packets of a reply.

use super::packet::{self, ERROR, LOCAL_FILE, OK, Reader, ServerError, malformed, too_long};
use crate::backend::StoreError;

/// How much memory a reply may take, about: a row of one empty text has five bytes on the wire, and a hundred here.
const MOST_MEMORY: usize = 9 << 20;
/// What a value or a row takes besides its bytes: itself, and its allocation.
const EACH: usize = size_of::<Row>() + 24;
/// More than the statements of any request.
const MOST_RESULTS: usize = 100;

/// The result of one statement.
#[derive(Debug)]
pub(super) enum QueryResult {
    /// The number of rows that the change applied to.
    Changed(u64),
    /// What was selected.
    Rows(Vec<Row>),
}

/// A row of a result; `None` is NULL.
pub(super) type Row = Vec<Option<Vec<u8>>>;

/// Returns a value as text; `None` is NULL.
pub(super) fn text(row: &Row, column: usize) -> Option<String> {
    row.get(column)?.as_ref().map(|value| String::from_utf8_lossy(value).into_owned())
}

/// Returns a value that is a number.
pub(super) fn number(row: &Row, column: usize) -> Option<u64> {
    text(row, column)?.parse().ok()
}

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
    pub(super) results: Vec<QueryResult>,
    part: Part,
    memory: usize,
}

/// The part of a result that comes next.
#[derive(Default)]
enum Part {
    #[default]
    Begin,
    /// The descriptions of columns, which are those that were asked for: how many were announced, and have come.
    Columns(u64, u64),
    /// The rows, and how many values each has.
    Rows(Vec<Row>, u64),
}

impl Reply {
    /// Adds the next packet, and returns whether more follow.
    pub(super) fn add(&mut self, packet: &[u8]) -> Result<bool, Failure> {
        if packet.first() == Some(&ERROR) {
            return Err(Failure::Server(ServerError::parse(packet)?));
        }
        self.memory += EACH;
        let end = packet::parse_end(packet);
        match (std::mem::take(&mut self.part), end) {
            (Part::Begin, _) => match packet.first() {
                Some(&OK) => {
                    let (rows, has_more) = packet::parse_ok(packet)?;
                    return self.finish(QueryResult::Changed(rows), has_more);
                }
                // dlock never loads a file: a server that asks for one is after it.
                Some(&LOCAL_FILE) | None => return Err(malformed().into()),
                Some(_) => {
                    let announced = Reader(packet).number()?.ok_or_else(malformed)?;
                    self.part = Part::Columns(announced, 0);
                }
            },
            (Part::Columns(announced, come), None) => self.part = Part::Columns(announced, come + 1),
            (Part::Columns(announced, come), Some(_)) if announced == come => {
                self.part = Part::Rows(Vec::new(), announced);
            }
            (Part::Columns(..), Some(_)) => return Err(malformed().into()),
            (Part::Rows(rows, _), Some(has_more)) => {
                return self.finish(QueryResult::Rows(rows), has_more);
            }
            (Part::Rows(mut rows, columns), None) => {
                let mut reader = Reader(packet);
                let mut row =
                    Row::with_capacity(usize::try_from(columns).unwrap_or_default().min(packet.len()));
                for _ in 0..columns {
                    row.push(reader.string()?.map(<[u8]>::to_vec));
                    self.memory += EACH;
                }
                if !reader.0.is_empty() {
                    return Err(malformed().into());
                }
                self.memory += packet.len();
                rows.push(row);
                self.part = Part::Rows(rows, columns);
            }
        }
        match self.memory > MOST_MEMORY {
            true => Err(too_long().into()),
            false => Ok(true),
        }
    }

    fn finish(&mut self, result: QueryResult, has_more: bool) -> Result<bool, Failure> {
        self.results.push(result);
        match self.results.len() > MOST_RESULTS {
            true => Err(too_long().into()),
            false => Ok(has_more),
        }
    }
}
