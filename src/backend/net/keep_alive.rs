//! How long a connection outlives its peer.

use std::os::fd::BorrowedFd;
use std::time::Duration;

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
/// The option that limits the pause between two retransmissions in milliseconds (Linux 6.15, `linux/tcp.h`), ...
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// ... and the shortest limit that it accepts.
const RETRANSMIT_EVERY_MS: u32 = 1000;

#[derive(Clone, Copy)]
struct LongestRetransmission;

nix::setsockopt_impl!(
    LongestRetransmission,
    libc::IPPROTO_TCP,
    TCP_RTO_MAX_MS,
    u32,
    sockopt::SetStruct<'_, u32>
);

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

/// Makes a connection live as long as a lease of this length whose session is a lock: a shorter outage ends the session
/// of no holder. Probes are sent often enough to notice a silent server in time. Zero undoes that.
pub fn outlast(socket: BorrowedFd<'_>, ttl: Duration) {
    // It applies to probes as well, whatever their number (tcp(7)). A Unix socket rejects these options, and needs none.
    let _ = setsockopt(&socket, sockopt::TcpUserTimeout, &unanswered_ms(ttl));
    // Otherwise the pauses double, so that an outage lasts up to twice as long for the connection as for the network.
    let _ = setsockopt(&socket, LongestRetransmission, &RETRANSMIT_EVERY_MS);
}

fn unanswered_ms(ttl: Duration) -> u32 {
    // The kernel takes it as a signed number.
    i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX).cast_unsigned().max(UNANSWERED_MS)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::getsockopt;

    use super::*;

    #[test]
    fn a_connection_that_is_a_lock_outlasts_its_lease() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
            let tcp = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a peer");
            let limit = || getsockopt(&tcp, sockopt::TcpUserTimeout).expect("an option");
            start(&tcp);
            assert_eq!(limit(), 10_000);
            for (ttl, expected) in [(60, 60_000), (3, 10_000), (10_000_000, 0x7fff_ffff), (0, 10_000)] {
                outlast(tcp.as_fd(), Duration::from_secs(ttl));
                assert_eq!(limit(), expected, "{ttl}");
            }
        });
    }
}
