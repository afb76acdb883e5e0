//! Waiting on the event loop until a descriptor can be read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Tells when a descriptor has something to be read. It watches a duplicate, so that the owner stays free to use the
/// original as it likes.
pub struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Begins to watch, on the current runtime.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn of(fd: &impl AsFd) -> io::Result<Readiness> {
        let duplicate = fd.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` is open and keeps its number as long as it lives, and nobody but the `AsyncFd` has this
        // one.
        let watched = unsafe { AsyncFd::register_with_interest(duplicate, Interest::READABLE) };
        watched.map(Readiness).map_err(|error| error.into_parts().1)
    }

    /// Returns when something may have come since the last call. To be awaited after a read that would have blocked,
    /// and followed by another. Dropping the future loses nothing.
    pub async fn wait(&self) {
        match self.0.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime is going down: nobody will wake us.
            Err(_) => std::future::pending().await,
        }
    }
}
