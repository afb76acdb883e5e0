//! Waiting for a lock: order, expiry, crashes, refusals.

mod any;
pub mod min_hold_hosts;
pub mod queue;
pub mod refusal;

/// A client of the library that waits for a busy lock, and reports nothing.
pub struct Patient;

impl dlock::lease::acquire::Observer for Patient {}
