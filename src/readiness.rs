//! Waits on the event loop until a descriptor is readable.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Reports when a descriptor becomes readable. It watches a duplicate, so that the owner stays free to use the original
/// as it likes.
pub struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Starts to watch, on the current runtime.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn of(fd: &impl AsFd) -> io::Result<Readiness> {
        let duplicate = fd.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` is open and keeps its number as long as it lives, and only the `AsyncFd` has this one.
        let watched = unsafe { AsyncFd::register_with_interest(duplicate, Interest::READABLE) };
        watched.map(Readiness).map_err(|error| error.into_parts().1)
    }

    /// Returns when something may have come since the last call. To be awaited after a read that would have blocked,
    /// and followed by another read. Dropping the future loses nothing.
    pub async fn wait(&self) {
        match self.0.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime is shutting down: nothing will wake this task.
            Err(_) => std::future::pending().await,
        }
    }
}
