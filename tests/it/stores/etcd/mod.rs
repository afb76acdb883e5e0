//! etcd: what the conformance suite does not cover.

mod doctor;
mod errors;
mod faults;
mod forger;
mod hostile;
mod lost_replies;
mod stuck_leader;
mod users;
