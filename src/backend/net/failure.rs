//! What the end of a connection means, and other failures of it.

use std::error::Error;
use std::io;

use crate::backend::{StoreError, io_text};

/// What is said of a connection that the server has closed.
pub const CLOSED: &str = "the server closed the connection";

/// Returns the I/O error among the causes of the error of a client library, if there is one.
pub fn io_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        cause = error.source();
    }
    None
}

/// Returns the error for a connection that has ended, or failed, before a reply.
pub fn broken(error: &io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => closed(),
        _ => StoreError::unanswered(io_text(error)),
    }
}

/// Returns the error for a connection that the server has closed before a reply.
pub fn closed() -> StoreError {
    StoreError::unanswered(CLOSED)
}

/// Returns the error for bytes that the server has sent without a request.
pub fn unrequested() -> StoreError {
    StoreError::unanswered("the server sent more than was requested")
}
