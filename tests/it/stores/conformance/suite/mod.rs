//! The checks.

pub mod admin;
pub mod cancellation;
pub mod exclusion;
pub mod fencing;
pub mod holder;
pub mod loss;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod lost_gate;
pub mod min_hold;
pub mod names;
pub mod nesting;
pub mod nesting_refused;
pub mod once_per;
pub mod ownership;
pub mod queue;
pub mod queue_of_runs;
pub mod queue_positions;
pub mod revocation;
pub mod several_locks;
pub mod sharing;
pub mod slots;
