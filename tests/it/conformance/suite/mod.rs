//! The checks.

pub mod dropped;
pub mod exclusion;
pub mod fencing;
pub mod holder;
pub mod names;
pub mod ownership;
