//! dlock runs a command under a distributed lock, and no command outlives its lock.

pub mod backend;
pub mod child;
pub mod clock;
pub mod exit;
pub mod lease;
pub mod lock;
pub mod readiness;
