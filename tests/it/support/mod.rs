//! What the tests stand on: the binary behind a builder, processes seen through /proc, a terminal,
//! servers, and the faults that can be put between dlock and a server.

// Each topic uses its own part of this floor.
#![allow(dead_code)]

#[cfg(feature = "redis")]
pub mod cluster;
pub mod dlock;
#[cfg(feature = "redis")]
pub mod fake;
#[cfg(feature = "redis")]
pub mod flight;
#[cfg(feature = "redis")]
pub mod group;
pub mod leash;
#[cfg(feature = "redis")]
pub mod masters;
#[cfg(feature = "redis")]
pub mod monitor;
#[cfg(feature = "redis")]
pub mod muffler;
pub mod place;
#[cfg(feature = "redis")]
pub mod pool;
pub mod probe;
pub mod process;
#[cfg(feature = "redis")]
pub mod proxy;
pub mod pty;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod resp;
pub mod running;
#[cfg(feature = "redis")]
pub mod sentinels;
#[cfg(feature = "redis")]
pub mod server;
pub mod store;
#[cfg(feature = "redis")]
pub mod tls;
#[cfg(feature = "redis")]
pub mod versions;
pub mod wait;

/// How long an event that must happen may take on a slow and busy machine.
///
/// Nothing is ever *expected* to take so long: it bounds how long a failing test runs.
pub const SOON: std::time::Duration = std::time::Duration::from_secs(30);
