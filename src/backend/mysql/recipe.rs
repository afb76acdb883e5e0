//! The recipes: what a lock is, besides its row in the table.

use crate::backend::sql;

/// `GET_LOCK`: a lock that ends with the session, see [`get_lock`](super::get_lock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GetLock;

/// What excludes others.
pub(super) type Recipe = sql::Recipe<GetLock>;
