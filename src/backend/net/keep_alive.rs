//! How long a connection outlives its peer.

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

/// Seconds without a packet after which the kernel probes a connection, ...
const PROBE_AFTER: u32 = 5;
/// ... seconds between two probes, ...
const PROBE_EVERY: u32 = 2;
/// ... how many of them may go unanswered, ...
const PROBES: u32 = 3;
/// ... and for how many milliseconds any data may stay unacknowledged.
const UNANSWERED_MS: u32 = 10_000;

/// Makes the kernel detect within some seconds that the peer is gone silently, for example when a NAT drops an idle
/// connection: a waiter would not be notified that it is its turn (tcp(7)).
pub fn start(tcp: &TcpStream) {
    // On a system that rejects any of these options it is detected later.
    let _ = setsockopt(tcp, sockopt::KeepAlive, &true);
    let _ = setsockopt(tcp, sockopt::TcpKeepIdle, &PROBE_AFTER);
    let _ = setsockopt(tcp, sockopt::TcpKeepInterval, &PROBE_EVERY);
    let _ = setsockopt(tcp, sockopt::TcpKeepCount, &PROBES);
    // Covers data that is sent as well: without it the kernel retries for a quarter of an hour.
    let _ = setsockopt(tcp, sockopt::TcpUserTimeout, &UNANSWERED_MS);
}
