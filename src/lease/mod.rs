//! The lease of a lock: its validity, its acquisition, its renewal. Knows stores only through their trait, and nothing
//! about the command.

pub mod acquire;
pub mod acquire_all;
pub mod keeper;
pub mod validity;
pub mod wakeup;

use std::time::Duration;

/// After a notification of a change, the next request is sent no sooner than about this long after the last reply.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Returns a random part of a duration, for pauses between attempts ("full jitter"): clients that failed together do
/// not return together.
fn jitter(most: Duration) -> Duration {
    let mut bytes = [0u8; 4];
    // Without a random source every client waits the full time, which is slower but still correct.
    match getrandom::fill(&mut bytes) {
        Ok(()) => most.mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)),
        Err(_) => most,
    }
}
