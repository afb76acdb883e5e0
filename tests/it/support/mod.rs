//! The base of the tests: the binary behind a builder, processes seen through /proc, a terminal,
//! servers, and the faults that can be injected between dlock and a server.

// Each topic uses only a part of this.
#![allow(dead_code)]

#[cfg(feature = "redis")]
pub mod cluster;
#[cfg(feature = "net")]
pub mod daemon;
pub mod dlock;
pub mod doctor;
#[cfg(feature = "net")]
pub mod etcd;
#[cfg(feature = "redis")]
pub mod fake;
#[cfg(feature = "redis")]
pub mod flight;
#[cfg(feature = "net")]
pub mod fuzzer;
#[cfg(feature = "redis")]
pub mod group;
pub mod inherited_lock;
#[cfg(feature = "net")]
pub mod installation;
#[cfg(feature = "mysql")]
pub mod mariadb;
#[cfg(feature = "redis")]
pub mod masters;
#[cfg(feature = "memcached")]
pub mod memcached;
#[cfg(feature = "redis")]
pub mod monitor;
#[cfg(feature = "mysql")]
pub mod multiplexer;
#[cfg(feature = "net")]
pub mod namespace;
#[cfg(feature = "net")]
pub mod peak;
#[cfg(feature = "net")]
pub mod pgbouncer;
pub mod place;
#[cfg(feature = "net")]
pub mod pool;
#[cfg(feature = "net")]
pub mod postgres;
pub mod probe;
pub mod process;
#[cfg(feature = "redis")]
pub mod proxy;
#[cfg(feature = "postgres")]
pub mod psql;
pub mod pty;
#[cfg(feature = "redis")]
pub mod push_filter;
pub mod race_timing;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod resp;
pub mod running;
#[cfg(feature = "redis")]
pub mod sentinels;
#[cfg(feature = "net")]
pub mod server;
pub mod store;
#[cfg(feature = "net")]
pub mod tls;
pub mod trace;
#[cfg(feature = "redis")]
pub mod versions;
pub mod wait;
#[cfg(feature = "net")]
pub mod zookeeper;

/// Time limit for an event that must happen, on a slow and busy machine.
///
/// No event is *expected* to take this long: it limits the run time of a failing test.
pub const SOON: std::time::Duration = std::time::Duration::from_secs(30);
