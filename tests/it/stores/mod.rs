//! The stores: one conformance suite for all, and what is special to each.

pub mod conformance;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod file;
pub mod foreign_clients;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod gate_alone;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod host_clock;
#[cfg(any(feature = "etcd", feature = "zookeeper", feature = "postgres", feature = "mysql"))]
mod lost_replies;
#[cfg(feature = "memcached")]
pub mod memcached;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(all(
    feature = "etcd",
    feature = "memcached",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod other_protocols;
#[cfg(all(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
mod outages;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub mod partitions;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
pub mod rigs;
#[cfg(all(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
mod silent_servers;
#[cfg(all(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod slow_networks;
#[cfg(all(feature = "etcd", feature = "zookeeper"))]
mod tls;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
