//! Groups of servers that take long to start: one test after another borrows them.

use super::admission::await_admission;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, Once, PoisonError};

/// Servers that belong together.
pub trait Group: Send + 'static {
    /// Starts them, and waits until they are ready.
    fn start() -> Self;

    /// Resets them for the next test. False when that is impossible, or when they still have clients.
    fn renew(&mut self) -> bool;
}

/// A group that one test has for itself. The test may break it: only groups that can be reset are lent again. Clients
/// that a test started must be ended before, so that they do not disturb the next test.
pub struct Lent<G: Group>(Option<G>);

/// The most groups that are kept unused: servers work even without clients.
const MOST: usize = 6;

/// The unused groups of every kind, the longest unused first.
static IDLE: Mutex<VecDeque<Box<dyn Any + Send>>> = Mutex::new(VecDeque::new());

/// Lends a group, and starts one if none is unused.
pub fn lend<G: Group>() -> Lent<G> {
    lend_like(|_: &G| true, G::start)
}

/// Lends a group that fits, and starts one if none of those is unused.
pub fn lend_like<G: Group>(fits: impl Fn(&G) -> bool, start: impl FnOnce() -> G) -> Lent<G> {
    await_admission();
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    // The most recently used one: its pages are the warmest.
    let found = idle.iter().rposition(|group| group.downcast_ref().is_some_and(&fits));
    let found = found.and_then(|index| idle.remove(index));
    drop(idle);
    Lent(Some(found.and_then(|group| group.downcast().ok()).map_or_else(start, |group| *group)))
}

impl<G: Group> Drop for Lent<G> {
    fn drop(&mut self) {
        static AT_EXIT: Once = Once::new();
        let Some(mut group) = self.0.take() else { return };
        if !group.renew() {
            return;
        }
        // SAFETY: atexit(3) may be called at any time; the function touches only static data.
        AT_EXIT.call_once(|| unsafe {
            libc::atexit(dismiss);
        });
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back(Box::new(group));
        // Groups of a kind that is no longer used are dropped.
        let unwanted = if idle.len() > MOST { idle.pop_front() } else { None };
        drop(idle);
        drop(unwanted);
    }
}

impl<G: Group> Deref for Lent<G> {
    type Target = G;

    fn deref(&self) -> &G {
        self.0.as_ref().expect("lent until dropped")
    }
}

impl<G: Group> DerefMut for Lent<G> {
    fn deref_mut(&mut self) -> &mut G {
        self.0.as_mut().expect("lent until dropped")
    }
}

/// Static values are not dropped: the processes would end with this one, but their directories would remain.
extern "C" fn dismiss() {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
