//! Memcached: the recipe of `add`, so that dlock and other clients that take a lock with `add` exclude each other under
//! the same key. The item is the hold, and its expiry is the lease: with no clock for anything else there is one
//! exclusive holder, and no queue, history or fencing token.
//!
//! A server forgets items when it is full or restarts. Its locks are for efficiency only.

mod client;
mod doctor;
mod hold;
mod inspect;
mod location;
mod reply;
mod store;

pub use self::location::Location;
