//! The lease: how long a grant is good for, getting one, and keeping it. Knows stores only through their trait, and
//! nothing of the command.

pub mod acquire;
pub mod acquire_all;
pub mod keeper;
pub mod validity;
pub mod wakeup;

use std::time::Duration;

/// Word that somebody has touched the lock is followed up no sooner than about so long after the last answer.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// A random share of a duration, for pauses between attempts ("full jitter"): those who were turned away together do
/// not come back together.
fn jitter(most: Duration) -> Duration {
    let mut bytes = [0u8; 4];
    // Without a random source everybody waits the whole time, which is slower and still right.
    match getrandom::fill(&mut bytes) {
        Ok(()) => most.mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)),
        Err(_) => most,
    }
}
