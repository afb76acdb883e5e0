//! Evidence for the algorithms that locks depend on: each is modelled together with the failures that it tolerates, and
//! every reachable state of small configurations is visited.
//!
//! The decisions of dlock are not copied into a model: it calls the same functions. `cargo test --test models --
//! --nocapture` prints the number of states. With optimisation (`--release`) larger configurations are explored too.

// A test states what it expects by unwrapping it.
#![allow(clippy::unwrap_used)]

mod explorer;
mod fencing;
mod ledger;
mod lockstep;

#[path = "../../src/backend/redis/redlock/fencing.rs"]
mod rules;
