//! The lease of a lock: its validity, its acquisition, its renewal. Knows stores only through their trait, and nothing
//! about the command.
//!
//! Called by `commands`. What always holds: validity is counted from before a request was sent, so that dlock gives a lease
//! up before the store does.

pub mod acquire;
pub mod acquire_all;
pub mod acquire_any;
mod attempts;
pub mod keeper;
mod patience;
pub mod validity;

use std::time::Duration;

/// After a notification of a change, the next request is sent no sooner than about this long after the last reply.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
