//! Faults of the lock: of the store, of the network, of clocks, of dlock's own processes.
//!
//! What holds in every case: no two guarded trees are alive at once, a later grant's fencing token is larger,
//! dlock ends, and its exit status is of the right class.

mod files;
mod hung_files;
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
pub(crate) mod shim;

#[cfg(feature = "redis")]
mod acquisition;
#[cfg(feature = "redis")]
mod clocks;
#[cfg(feature = "redis")]
mod connections;
#[cfg(feature = "redis")]
mod fixture;
#[cfg(feature = "redis")]
mod freezer;
#[cfg(feature = "redis")]
mod late_replies;
#[cfg(feature = "redis")]
mod loss;
#[cfg(feature = "redis")]
mod memory;
#[cfg(feature = "redis")]
mod network;
#[cfg(feature = "redis")]
mod outage;
#[cfg(feature = "redis")]
mod permissions;
#[cfg(feature = "redis")]
mod pressure;
#[cfg(feature = "redis")]
mod release;
#[cfg(feature = "redis")]
mod server_clock;
#[cfg(feature = "redis")]
mod server_states;
#[cfg(feature = "redis")]
mod suspension;
#[cfg(feature = "redis")]
mod timing;
#[cfg(feature = "redis")]
mod traffic;
