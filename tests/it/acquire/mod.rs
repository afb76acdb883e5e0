//! Waiting for a lock: order, expiry, crashes, refusals.

pub mod min_hold_hosts;
pub mod queue;
pub mod refusal;
