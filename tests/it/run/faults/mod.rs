//! Faults of the lock: of the store, of the network, of clocks, of dlock's own processes.
//!
//! What holds in every case: no two guarded trees are alive at once, a later grant's fencing token is larger,
//! dlock ends, and its exit status is of the right class.

mod files;
mod hung_files;
pub(crate) mod shim;

mod acquisition;
mod clocks;
mod connections;
mod fixture;
mod freezer;
mod late_replies;
mod loss;
mod memory;
mod network;
mod outage;
mod permissions;
mod pressure;
mod release;
mod server_clock;
mod server_states;
mod suspension;
mod timing;
mod traffic;
