//! ZooKeeper: what the conformance suite does not cover.

mod doctor;
mod errors;
mod late_replies;
mod lost_replies;
mod sessions;
