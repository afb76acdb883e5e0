//! Disturbances of a store during a check, and how a disturbed check continues.

// Files are not disturbed.

use crate::support::SOON;
use dlock::backend::StoreError;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a disturbed client tries again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits for the reply to one request, as every run has a limit for that.
const ONE_REQUEST: Duration = Duration::from_secs(3);

/// An action on the store at one moment of a check, or repeatedly.
///
/// The moments are counted: each action of a client on the store, and each inspection by the check itself.
pub struct Disturbance {
    left: Cell<Option<usize>>,
    /// Whether a request may stay without a reply because of it.
    is_noticeable: bool,
    act: Arc<dyn Fn() + Send + Sync>,
}

impl Disturbance {
    /// Runs it before action number `moment`, counted from 0.
    pub fn at(moment: usize, act: impl Fn() + Send + Sync + 'static) -> Self {
        Self { left: Cell::new(Some(moment)), is_noticeable: true, act: Arc::new(act) }
    }

    /// The same, without any effect on clients.
    pub fn unnoticed_at(moment: usize, act: impl Fn() + Send + Sync + 'static) -> Self {
        Self { is_noticeable: false, ..Self::at(moment, act) }
    }

    /// The disturbance is caused elsewhere.
    pub fn elsewhere() -> Self {
        Self { left: Cell::new(None), is_noticeable: true, act: Arc::new(|| {}) }
    }

    /// A moment during which nothing else happens.
    pub fn step_now(&self) {
        if self.is_due() {
            (self.act)();
        }
    }
}

impl Disturbance {
    /// A moment during which the clients that wait beside the check continue.
    pub async fn step(&self) {
        if self.is_due() {
            let act = self.act.clone();
            tokio::task::spawn_blocking(move || act()).await.expect("what is done to the store");
        }
    }

    /// Whether it has happened.
    pub fn is_over(&self) -> bool {
        self.left.get().is_none()
    }

    fn is_due(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.and_then(|left| left.checked_sub(1)));
        left == Some(0)
    }
}

/// How long a request without a reply is repeated: not at all, unless the store is disturbed, or a server that is only
/// slow has counted as down.
pub struct Patience {
    /// When a disturbed client gives up.
    until: Option<Instant>,
    /// See [`Rig::counts_as_down_after`](super::rig::Rig::counts_as_down_after).
    counts_as_down_after: Option<Duration>,
    /// When the last request was sent.
    sent: Cell<Instant>,
    /// A request took so long.
    was_late: Cell<bool>,
}

impl Patience {
    /// Starts now.
    pub fn of(disturbance: Option<&Disturbance>, counts_as_down_after: Option<Duration>) -> Self {
        let now = Instant::now();
        let until = disturbance.filter(|disturbance| disturbance.is_noticeable).map(|_| now + PATIENCE);
        Self { until, counts_as_down_after, sent: Cell::new(now), was_late: Cell::new(false) }
    }

    /// Whether the store is disturbed.
    pub fn is_noticeable(&self) -> bool {
        self.until.is_some()
    }

    /// Sends a request, which is given up when the store is disturbed and there is no reply in time.
    pub async fn limit<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.sent.set(Instant::now());
        let limit = if self.is_noticeable() { ONE_REQUEST } else { Duration::MAX };
        let late = |_| Err(StoreError::unanswered(format!("no reply within {limit:?}")));
        tokio::time::timeout(limit, request).await.unwrap_or_else(late)
    }

    /// Returns after a moment, when it is time to repeat a request that was first sent then. A transient failure is repeated
    /// in any case, as every dlock does: others may have changed the state again and again.
    ///
    /// # Panics
    /// When the store is not disturbed, or no longer, and no server was late.
    #[track_caller]
    pub fn after(&self, error: &StoreError, asked: Instant) -> impl Future<Output = ()> + use<> {
        let is_patient = self.until.is_some_and(|until| Instant::now() < until);
        // Once it was late, the next request may fail at once.
        let is_late = self.counts_as_down_after.is_some_and(|limit| self.sent.get().elapsed() >= limit);
        self.was_late.set(self.was_late.get() || is_late);
        let may_repeat = error.is_transient() || self.was_late.get();
        let is_patient = is_patient || may_repeat && asked.elapsed() < SOON;
        assert!(is_patient && matches!(error, StoreError::Unavailable { .. }), "{error:?}");
        tokio::time::sleep(Duration::from_millis(10))
    }
}
