//! Ends an acquisition. No guard is handed out: a `Ref` of a watch channel that is still alive in a `select!` arm makes
//! the next `send` on the same thread wait for ever.

use std::cell::Cell;

use tokio::sync::Notify;

/// A cancellation. Once requested, it stays requested.
#[derive(Debug, Default)]
pub struct Cancellation {
    cancelled: Cell<bool>,
    notify: Notify,
}

impl Cancellation {
    /// Requests the cancellation; repeating it has no effect.
    pub fn cancel(&self) {
        self.cancelled.set(true);
        self.notify.notify_waiters();
    }

    /// Waits until the cancellation is requested. Dropping the future loses nothing.
    pub async fn cancelled(&self) {
        while !self.cancelled.get() {
            self.notify.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_cancellation_stays_requested() {
        let cancellation = Cancellation::default();
        assert!(!is_ready(cancellation.cancelled()));
        let mut waiting = pin!(cancellation.cancelled());
        assert!(!is_ready(waiting.as_mut()));
        cancellation.cancel();
        cancellation.cancel();
        assert!(is_ready(waiting));
        assert!(is_ready(cancellation.cancelled()));
    }
}
