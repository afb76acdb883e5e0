//! etcd: what the conformance suite does not cover.

mod doctor;
mod errors;
mod faults;
mod forger;
mod hostile;
mod nested;
mod stuck_leader;
pub mod users;
