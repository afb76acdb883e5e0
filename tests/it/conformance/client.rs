//! A client of the library's own trait: one claim, and the store it is made on.

use super::rig::{Rig, open};
use crate::support::SOON;
use dlock::backend::{Attempt, Backend, Loss, Release, Renewal, Reply, StoreError};
use dlock::lock::{Claim, Grant, Holder, LockName, Token};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A lease that no test outlives.
pub const LONG: Duration = Duration::from_secs(600);

/// One who wants a lock.
pub struct Client {
    pub backend: Box<dyn Backend>,
    pub claim: Claim,
}

impl Client {
    /// Wants this name on the rig's store; contacts nobody.
    pub fn new(rig: &dyn Rig, name: &str) -> Self {
        Self::at(&rig.url(), name)
    }

    /// Wants this name on the store of a URL.
    pub fn at(url: &str, name: &str) -> Self {
        Self { backend: open(url), claim: claim(name) }
    }

    /// The same with a short lease.
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.claim.ttl = ttl;
        self
    }

    /// Asks once.
    pub async fn try_acquire(&mut self) -> Attempt {
        self.backend.connect().await.unwrap();
        self.backend.try_acquire(&self.claim).await.unwrap()
    }

    /// Asks once, and must get it.
    pub async fn acquire(&mut self) -> Grant {
        match self.try_acquire().await {
            Attempt::Granted(grant) => grant,
            Attempt::Busy(holder) => panic!("{} is held by {holder:?}", self.claim.name),
        }
    }

    /// Asks once, and must not get it.
    pub async fn refused(&mut self) -> Holder {
        match self.try_acquire().await {
            Attempt::Busy(holder) => holder,
            Attempt::Granted(grant) => panic!("{} was granted: {grant:?}", self.claim.name),
        }
    }

    /// Asks until it is ours; it must be soon.
    pub async fn acquire_in_the_end(&mut self) -> Grant {
        let until = Instant::now() + SOON;
        loop {
            match self.try_acquire().await {
                Attempt::Granted(grant) => return grant,
                Attempt::Busy(holder) => assert!(Instant::now() < until, "never free: {holder:?}"),
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    pub async fn renew(&mut self) -> Renewal {
        self.backend.connect().await.unwrap();
        self.backend.renew(&self.claim).await.unwrap()
    }

    pub async fn release(&mut self) -> Release {
        self.backend.connect().await.unwrap();
        self.backend.release(&self.claim).await.unwrap()
    }

    /// The lock must still be ours.
    pub async fn assert_held(&mut self) {
        let name = self.claim.name.clone();
        assert!(matches!(self.renew().await, Renewal::Held(_)), "{name} was lost");
    }

    /// The lock must not be ours, whoever has it.
    pub async fn assert_not_held(&mut self) {
        let renewal = self.renew().await;
        assert!(matches!(renewal, Renewal::Lost(_)), "{renewal:?}");
    }

    /// The lock must be lost in this way, and stay so.
    pub async fn assert_lost(&mut self, loss: Loss) {
        for _ in 0..2 {
            assert_eq!(self.renew().await, Renewal::Lost(loss));
        }
    }
}

/// A claim with a token of its own, by this process.
pub fn claim(name: &str) -> Claim {
    Claim {
        name: LockName::new(name).unwrap(),
        token: Token::random().unwrap(),
        ttl: LONG,
        identity: dlock::identity::of_this_process("suite".into(), Some(format!("note of {name}"))),
    }
}

/// The same claim by somebody else, who has another token.
pub fn by_another(claim: &Claim) -> Claim {
    Claim { token: Token::random().unwrap(), ..claim.clone() }
}

/// A future that is dropped after it has been polled so many times in vain.
struct Halfway<'a, T> {
    whole: Reply<'a, T>,
    polls: usize,
}

impl<T> Future for Halfway<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        match self.whole.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if self.polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Drops the request after so many polls, if it takes that many; otherwise its result.
pub async fn halfway<T>(
    whole: Reply<'_, Result<T, StoreError>>,
    polls: usize,
) -> Option<Result<T, StoreError>> {
    Halfway { whole, polls }.await
}
