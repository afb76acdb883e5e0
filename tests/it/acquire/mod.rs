//! Waiting for a lock: order, expiry, crashes, refusals.

mod any;
pub mod min_hold_hosts;
pub mod queue;
pub mod refusal;
