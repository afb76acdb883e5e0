//! The stores: one conformance suite for all, and what is special to each.

pub mod conformance;
pub mod file;
pub mod foreign_clients;
#[cfg(feature = "redis")]
pub mod redis;
pub mod rigs;
