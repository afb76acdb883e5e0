//! The promises of every store.
//!
//! A check is a plain async function over a [`rig::Rig`]. A list turns each (store x check) into a separate
//! test, such as `conformance::file::a_stale_owner_cannot_release`. A new store adds a rig, a new promise adds one
//! function and one line to [`list`]: to `trait_checks` if it needs no more than the traits, so that the ledgers in memory
//! must keep it too. [`tiers`] says which checks run on which form of a store.

pub mod client;
pub mod crowds;
mod disturbance;
mod gates;
mod list;
mod memory;
mod polled;
pub mod rig;
mod selections;
mod servers;
mod suite;
mod tiers;

mod cluster;
mod consul;
mod dynamodb;
mod etcd;
mod file;
mod kubernetes;
mod lock_client;
mod mariadb_get_lock;
mod memcached;
mod mysql;
mod postgres;
mod postgres_advisory;
mod redis;
mod redisson;
mod redlock;
mod s3;
mod sentinel;
mod shedlock;
mod tls;
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

use polled::polled;
use selections::{disturbed, disturbed_by_a_failover};
