//! ZooKeeper: what the conformance suite does not cover.

mod doctor;
mod errors;
mod lost_replies;
mod sessions;
