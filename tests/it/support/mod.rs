//! The base of the tests: the binary behind a builder, processes seen through /proc, a terminal,
//! servers, and the faults that can be injected between dlock and a server.

// Each topic uses only a part of this.
#![allow(dead_code)]

pub mod admission;
pub mod cluster;
pub mod consul;
pub mod daemon;
pub mod dlock;
pub mod doctor;
pub mod dynamodb;
pub mod etcd;
pub mod fake;
pub mod flight;
pub mod fuzzer;
pub mod group;
pub mod http_proxy;
pub mod inherited_lock;
pub mod installation;
pub mod java_lock_client;
pub mod kubernetes;
pub mod mariadb;
pub mod masters;
pub mod memcached;
pub mod monitor;
pub mod multiplexer;
pub mod namespace;
pub mod peak;
pub mod pgbouncer;
pub mod place;
pub mod pool;
pub mod postgres;
pub mod probe;
pub mod process;
pub mod proxy;
pub mod psql;
pub mod pty;
pub mod push_filter;
pub mod race_timing;
pub mod redis;
pub mod resp;
pub mod running;
pub mod s3;
pub mod sentinels;
pub mod server;
pub mod sockets;
pub mod stalls;
pub mod store;
pub mod tls;
pub mod trace;
pub mod versions;
pub mod wait;
pub mod web;
pub mod zookeeper;

/// Time limit for an event that must happen, on a slow and busy machine.
///
/// No event is *expected* to take this long: it limits the run time of a failing test.
pub const SOON: std::time::Duration = std::time::Duration::from_secs(30);
