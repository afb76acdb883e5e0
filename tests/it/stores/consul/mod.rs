//! Locks in Consul. What they have in common with every store is in the conformance suite.

mod agents;
mod clock;
mod consul_lock;
mod doctor;
mod errors;
mod faults;
mod leaders;
mod proxies;
mod requests;
pub mod rights;
mod semaphore;
mod sockets;
