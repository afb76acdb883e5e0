//! The commands that administer locks.

pub mod break_lock;
pub mod doctor;
pub mod freeze;
pub mod status;
pub mod tokens;
