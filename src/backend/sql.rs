//! What the stores that speak SQL have in common: a table with one row per lock, which is its ledger, and the client
//! that compares and swaps it by its version. They differ in their statements, their notifications, and the lock of a
//! session that may be the gate in front of the row: see [`Client`].
//!
//! What always holds: a row is changed only if it has the version that was decided on.

mod own;
mod recipe;
mod row;
mod store;

pub use self::recipe::Recipe;
pub use self::row::{COLUMNS, LEASE_DIGITS, Row, TABLE, Taken, Values, create_table, lease_key, now, seen};
pub use self::store::{Client, RowStore, SessionLock};
