//! MySQL and MariaDB: a table with a row for each lock, which is its ledger ([`document`](super::ledger::document)).
//!
//! The protocol is spoken here: over the connections of [`net`](super::net), whose TLS, addresses and limits are those of
//! every other store. It is the text form of it, in which a request has several statements.
//!
//! With a recipe, a lock of another kind is the [gate] in front of the rows.

mod authentication;
mod client;
mod connection;
mod doctor;
mod errors;
mod gate;
mod get_lock;
mod location;
mod login;
mod option_file;
mod packet;
mod policy;
mod proxy;
mod reply;
mod shedlock;
mod stand_in;
mod store;
mod table;
mod waiting;

pub use self::location::Location;
