//! PostgreSQL: a table with one row per lock, which every change compares and swaps by its version. Leases end by the
//! clock of the server.
//!
//! What is not contended takes one statement. A waiter is notified with LISTEN and NOTIFY on the only connection that a
//! run has; behind a pooler, which takes notifications for itself, it polls. No statement on the table needs a session:
//! nothing is prepared, and no transaction lasts longer than a statement.

mod advisory;
mod authentication;
mod cancellation;
mod client;
mod connection;
mod doctor;
mod encryption;
mod errors;
mod gate;
mod greeting;
mod inspection;
mod key;
mod location;
mod meter;
mod options;
mod pass_file;
mod policy;
mod pooler;
mod shedlock;
mod statements;
mod store;

pub use self::location::Location;
