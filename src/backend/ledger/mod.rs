//! The meaning of a lock, for every store that keeps a *ledger* of each lock: its holders, its waiters and its fencing
//! counter.
//!
//! The decisions ([`decide`], and [`administer`] for operators) are pure functions of the ledger, of what only the store
//! can [observe](Observed) and of the request. A [`Contender`] makes a [`Backend`](super::Backend) of them and of a
//! [`Store`], which only stores ledgers and observes: it decides nothing. Most stores keep a ledger in one of two shapes:
//! as one [document], or as [entries] of its contenders. Of the documents, those of stores that are asked over HTTP and show
//! the time in their replies are [dated].
//!
//! Used by the stores, except Redis, whose scripts decide the same (`tests/models/lockstep` compares both). What always
//! holds: a decision depends on its arguments alone, without a socket or a clock, so that every interleaving of small cases
//! can be explored.

pub mod administer;
mod contender;
pub mod dated;
pub mod decide;
pub mod document;
mod driver;
pub mod entries;
mod grant;
pub mod history;
mod observed;
pub mod polling;
mod queue;
mod room;
mod store;
mod success;
mod value;
mod view;
pub mod waiting;

pub use self::contender::Contender;
pub use self::document::Occupant;
pub use self::driver::busy;
pub use self::observed::{Gate, GateLifetime, GateMode, Lifetime, Now, Observed, Turns};
pub use self::store::{AnyReply, Decide, Decision, Done, EXHAUSTED, Effect, Purpose, Shape, Store, Watch};
pub use self::value::{HolderEntry, Ledger, Unreadable, WaiterEntry};
