//! Notifications between tasks on one thread. Neither type hands out a guard: a `Ref` of a watch channel that is still
//! alive in a `select!` arm makes the next `send` on the same thread wait for ever.

use std::cell::Cell;
use std::rc::Rc;

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

/// A notification that may be repeated, to any number of listeners.
#[derive(Clone, Debug, Default)]
pub struct Prompt(Rc<Prompts>);

#[derive(Debug, Default)]
struct Prompts {
    count: Cell<u64>,
    notify: Notify,
}

impl Prompt {
    /// Notifies every listener.
    pub fn send(&self) {
        self.0.count.set(self.0.count.get().wrapping_add(1));
        self.0.notify.notify_waiters();
    }

    /// Returns a listener for notifications from now on.
    pub fn listen(&self) -> Listener {
        Listener { prompts: Rc::clone(&self.0), seen: self.0.count.get() }
    }
}

/// A listener of a [`Prompt`].
#[derive(Debug)]
pub struct Listener {
    prompts: Rc<Prompts>,
    seen: u64,
}

impl Listener {
    /// Waits for a notification since the last one that this returned for; several since then count as one. Dropping
    /// the future loses none.
    pub async fn prompted(&mut self) {
        while self.seen == self.prompts.count.get() {
            self.prompts.notify.notified().await;
        }
        self.seen = self.prompts.count.get();
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

    #[test]
    fn each_listener_is_notified_once() {
        let prompt = Prompt::default();
        prompt.send();
        let (mut early, mut other) = (prompt.listen(), prompt.listen());
        assert!(!is_ready(early.prompted()), "made before");
        prompt.send();
        prompt.send();
        assert!(is_ready(early.prompted()) && is_ready(other.prompted()));
        assert!(!is_ready(early.prompted()));
    }
}
