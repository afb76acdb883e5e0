//! The promises of every store.
//!
//! A check is a plain async function over a [`rig::Rig`]. A list turns each (store x check) into a separate
//! test, such as `conformance::file::a_stale_owner_cannot_release`. A new store adds a rig, a new promise adds one
//! function and one line to [`list`]: to `trait_checks` if it needs no more than the traits, so that the ledgers in memory
//! must keep it too. [`tiers`] says which checks run on which form of a store.

pub mod client;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
pub mod crowds;
mod disturbance;
mod list;
mod memory;
pub mod rig;
#[cfg(feature = "net")]
mod selections;
#[cfg(feature = "redis")]
mod servers;
mod suite;
mod tiers;

#[cfg(feature = "redis")]
mod cluster;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
#[cfg(feature = "mysql")]
mod mariadb_get_lock;
#[cfg(feature = "memcached")]
mod memcached;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_advisory;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redisson;
#[cfg(feature = "redis")]
mod redlock;
#[cfg(feature = "redis")]
mod sentinel;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod shedlock;
#[cfg(feature = "redis")]
mod tls;
#[cfg(feature = "zookeeper")]
mod zookeeper;

/// The tests of one store on some topics.
macro_rules! topics {
    ($rig:path; $($topic:ident $(by $prove:ident)? { $($check:ident)+ })+) => {
        $(crate::stores::conformance::checks! { $rig; $topic $(by $prove)? { $($check)+ } })+
    };
}
use topics;

/// The tests of one store on one topic.
macro_rules! checks {
    ($rig:path; $topic:ident { $($check:ident)+ }) => {
        crate::stores::conformance::checks! { $rig; $topic by prove { $($check)+ } }
    };
    ($rig:path; $topic:ident by $prove:ident { $($check:ident)+ }) => {
        $(
            #[test]
            fn $check() {
                crate::stores::conformance::rig::$prove($rig(), crate::stores::conformance::suite::$topic::$check);
            }
        )+
    };
}
use checks;

#[cfg(feature = "net")]
use selections::{disturbed, disturbed_by_a_failover};
