//! The meaning of a lock, for every store that keeps a *ledger* of each lock: its holders, its waiters and its fencing
//! counter.
//!
//! The decisions ([`decide`]) are pure functions of the ledger, of what only the store can [observe](Observed) and of
//! the request. A [`Contender`] makes a [`Backend`](super::Backend) of them and of a [`LedgerStore`], which only stores
//! ledgers and observes: it decides nothing. Most stores keep a ledger in one of two shapes: as one [document], or as
//! [entries] of its contenders.
//!
//! Used by the stores, except Redis, whose script decides the same, and Memcached. What always holds: a decision depends
//! on its arguments alone, without a socket or a clock, so that every interleaving of small cases can be explored.

mod contender;
pub mod decide;
pub mod document;
pub mod entries;
mod grant;
mod observed;
pub mod outcomes;
mod queue;
mod room;
mod store;
mod success;
mod value;
mod view;

pub use self::contender::Contender;
pub use self::document::Occupant;
pub use self::observed::{Gate, GateLifetime, GateMode, Lifetime, Now, Observed, Turns};
pub use self::store::{Done, EXHAUSTED, Effect, LedgerStore, Purpose, Step, Watch};
pub use self::value::{HolderEntry, Ledger, Unreadable, WaiterEntry};
