//! What one part of dlock tells another that waits, on one thread. Neither type lends out a guard: a `Ref` of a watch
//! channel that is still alive in a `select!` arm makes the next `send` on the same thread wait for ever.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

/// The order to give up. It is given once and stays given.
#[derive(Debug, Default)]
pub struct Cancellation {
    cancelled: Cell<bool>,
    notify: Notify,
}

impl Cancellation {
    /// Gives the order; repeating it changes nothing.
    pub fn cancel(&self) {
        self.cancelled.set(true);
        self.notify.notify_waiters();
    }

    /// Waits until the order is given. Dropping the future loses nothing.
    pub async fn cancelled(&self) {
        while !self.cancelled.get() {
            self.notify.notified().await;
        }
    }
}

/// A request that may be made again and again, to all who listen.
#[derive(Clone, Debug, Default)]
pub struct Prompt(Rc<Prompts>);

#[derive(Debug, Default)]
struct Prompts {
    count: Cell<u64>,
    notify: Notify,
}

impl Prompt {
    /// Makes the request.
    pub fn send(&self) {
        self.0.count.set(self.0.count.get().wrapping_add(1));
        self.0.notify.notify_waiters();
    }

    /// Listens from now on.
    pub fn listen(&self) -> Listener {
        Listener { prompts: Rc::clone(&self.0), heard: self.0.count.get() }
    }
}

/// One who listens to a [`Prompt`].
#[derive(Debug)]
pub struct Listener {
    prompts: Rc<Prompts>,
    heard: u64,
}

impl Listener {
    /// Waits until the request was made after the last one that this returned for; several since then count as one.
    /// Dropping the future loses none.
    pub async fn prompted(&mut self) {
        while self.heard == self.prompts.count.get() {
            self.prompts.notify.notified().await;
        }
        self.heard = self.prompts.count.get();
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
    fn an_order_stays_given() {
        let order = Cancellation::default();
        assert!(!is_ready(order.cancelled()));
        let mut waiting = pin!(order.cancelled());
        assert!(!is_ready(waiting.as_mut()));
        order.cancel();
        order.cancel();
        assert!(is_ready(waiting));
        assert!(is_ready(order.cancelled()));
    }

    #[test]
    fn a_request_is_heard_once_by_each_who_listened() {
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
