//! ZooKeeper: what the conformance suite does not cover.

mod doctor;
mod errors;
mod hostile;
mod late_replies;
mod lost_replies;
mod quorums;
mod readers;
mod sessions;
