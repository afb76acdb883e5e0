//! What is special to PostgreSQL.

mod abandoned;
mod advisory;
mod doctor;
mod errors;
mod faults;
mod hostile_server;
mod planted;
mod policy;
mod search_path;
pub mod shedlock;
mod tls;
mod waiters;
