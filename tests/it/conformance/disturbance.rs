//! What happens to a store in the midst of a check, and how a check goes on that is disturbed so.

// Nothing happens to files.
#![cfg_attr(not(feature = "redis"), allow(dead_code))]

use dlock::backend::StoreError;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long whoever is disturbed tries again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that is done to the store at one moment of a check, or again and again.
///
/// The moments are counted: each thing that a client does to the store, and each look of the check itself.
pub struct Disturbance {
    left: Cell<Option<usize>>,
    /// Whether a question may go unanswered for it.
    is_felt: bool,
    act: Arc<dyn Fn() + Send + Sync>,
}

#[cfg(feature = "redis")]
impl Disturbance {
    /// Does it before the thing number `moment` is done, from 0 on.
    pub fn at(moment: usize, act: impl Fn() + Send + Sync + 'static) -> Self {
        Self { left: Cell::new(Some(moment)), is_felt: true, act: Arc::new(act) }
    }

    /// The same, and nobody is to feel it.
    pub fn unfelt_at(moment: usize, act: impl Fn() + Send + Sync + 'static) -> Self {
        Self { is_felt: false, ..Self::at(moment, act) }
    }

    /// What happens is done by somebody else.
    pub fn elsewhere() -> Self {
        Self { left: Cell::new(None), is_felt: true, act: Arc::new(|| {}) }
    }

    /// A moment that passes while nobody does anything.
    pub fn step_now(&self) {
        if self.is_due() {
            (self.act)();
        }
    }
}

impl Disturbance {
    /// A moment that passes while those who wait beside the check go on.
    pub async fn step(&self) {
        if self.is_due() {
            let act = self.act.clone();
            tokio::task::spawn_blocking(move || act()).await.expect("what is done to the store");
        }
    }

    /// Whether it has been done.
    pub fn is_over(&self) -> bool {
        self.left.get().is_none()
    }

    fn is_due(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.and_then(|left| left.checked_sub(1)));
        left == Some(0)
    }
}

/// How long a question is asked again that the store did not answer: not at all, unless it is disturbed.
pub struct Patience(Option<Instant>);

impl Patience {
    /// From now on.
    pub fn of(disturbance: Option<&Disturbance>) -> Self {
        Self(disturbance.filter(|disturbance| disturbance.is_felt).map(|_| Instant::now() + PATIENCE))
    }

    /// Whether somebody is disturbed.
    pub fn is_felt(&self) -> bool {
        self.0.is_some()
    }

    /// Returns after a moment, when it is time to ask again.
    ///
    /// # Panics
    /// Nobody is disturbed, or no longer.
    #[track_caller]
    pub fn after(&self, error: &StoreError) -> impl Future<Output = ()> + use<> {
        let is_patient = self.0.is_some_and(|until| Instant::now() < until);
        assert!(is_patient && matches!(error, StoreError::Unavailable { .. }), "{error:?}");
        tokio::time::sleep(Duration::from_millis(10))
    }
}
