//! MySQL and MariaDB: a table with a row for each lock, which is its ledger ([`document`](super::ledger::document)).
//!
//! The protocol is spoken here: over the connections of [`net`](super::net), whose TLS, addresses and limits are those of
//! every other store. It is the text form of it, in which a request has several statements.

mod authentication;
mod client;
mod connection;
mod doctor;
mod errors;
mod location;
mod option_file;
mod packet;
mod policy;
mod reply;
mod store;
mod table;

pub use self::location::Location;
