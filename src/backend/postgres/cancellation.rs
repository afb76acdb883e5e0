//! Cancels a statement whose reply is no longer awaited: it would keep waiting for its lock at the server and occupy its
//! connection, while further attempts add more.
//!
//! If a change waits for a standby, it becomes visible as soon as its statement is cancelled, although it may be lost with
//! the primary. dlock does not rely on it: a claim that finds its own hold extends it, and waits for the standby again.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::location::Location;
use crate::backend::net::Address;

/// How long a cancellation may take. PgBouncer 1.18 ends with a fatal error if its client disconnects before that.
const WITHIN: Duration = Duration::from_secs(5);
/// The length and the code of a request to cancel (PostgreSQL manual, "Message Formats", CancelRequest).
const CANCEL_REQUEST: [u8; 8] = [0, 0, 0, 16, 4, 210, 22, 46];
/// More than the server sends over the connection of a cancellation: nothing, below TLS.
const LONGEST_REPLY: usize = 1024;

/// Asks the server, which has the address `peer`, to cancel the statement of another connection, to which it has named this
/// process and this secret; over a connection of its own. It does not reply.
pub(super) async fn cancel(
    (process, secret): (u32, u32),
    location: &Location,
    server: &Address,
    peer: Option<SocketAddr>,
) {
    let cancel = async {
        // The name of a server may be that of several.
        let mut stream = location.reach(server, peer).await.ok()?;
        stream.refill(LONGEST_REPLY);
        let request = [&CANCEL_REQUEST[..], &process.to_be_bytes(), &secret.to_be_bytes()].concat();
        stream.send(&request).await.ok()?;
        // The server closes the connection when it has passed the request on; this side must not close its half before.
        stream.read_u8().await.ok()
    };
    let _ = timeout(WITHIN, cancel).await;
}
