//! A client of the library's own trait: one claim, and the store it is made on.

use super::disturbance::{Disturbance, Patience};
use super::rig::{Rig, open};
use crate::support::SOON;
use dlock::backend::{
    Again, Attempt, Backend, Busy, Change, Intent, Loss, Release, Renewal, Reply, StoreError,
};
use dlock::lock::{Claim, Grant, Holder, LockName, Mode, Token};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};

/// A lease that no test outlives.
pub const LONG: Duration = Duration::from_secs(600);

/// One who wants a lock.
pub struct Client {
    pub backend: Box<dyn Backend>,
    pub claim: Claim,
    disturbance: Option<Rc<Disturbance>>,
}

impl Client {
    /// Wants this name on the rig's store; contacts nobody.
    pub fn new(rig: &dyn Rig, name: &str) -> Self {
        Self { disturbance: rig.disturbance(), ..Self::at(&rig.url(), name) }
    }

    /// Makes this claim once more, over a connection of its own.
    pub fn again(rig: &dyn Rig, claim: &Claim) -> Self {
        Self { claim: claim.clone(), ..Self::new(rig, claim.name.as_str()) }
    }

    /// Wants this name on the store of a URL.
    pub fn at(url: &str, name: &str) -> Self {
        Self { backend: open(url), claim: claim(name), disturbance: None }
    }

    /// The same with a short lease.
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.claim.ttl = ttl;
        self
    }

    /// The same, by somebody on another host. A run finds out that this process is its own ancestor, and would not wait for
    /// it.
    pub fn elsewhere(mut self) -> Self {
        self.claim.identity.host = "elsewhere".to_owned();
        self.claim.identity.boot = "another".to_owned();
        self
    }

    /// The same, shared in this way.
    pub fn in_mode(mut self, mode: Mode) -> Self {
        self.claim.mode = mode;
        self
    }

    /// Asks once.
    pub async fn try_acquire(&mut self) -> Attempt {
        self.ask(Intent::TakeNow).await
    }

    /// Asks once, with a place in the line if it is not ours at once.
    pub async fn wait_in_line(&mut self) -> Attempt {
        self.ask(Intent::WaitInLine).await
    }

    async fn ask(&mut self, intent: Intent) -> Attempt {
        let patience = self.disturbed().await;
        let asked = Instant::now();
        loop {
            let attempt = match self.backend.connect().await {
                Ok(()) => self.backend.try_acquire(&self.claim, intent).await,
                Err(error) => Err(error),
            };
            match attempt {
                // All that can be told while the keys of the lock are not in one place: where nobody is in line, nobody
                // is told.
                Ok(Attempt::Busy(Busy { again: Again::Poll, position: None, .. })) if patience.is_felt() => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(attempt) => return attempt,
                // As every dlock does.
                Err(error) if error.is_transient() && asked.elapsed() < SOON => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => patience.after(&error).await,
            }
        }
    }

    /// Lets happen what is to happen to the store now.
    async fn disturbed(&self) -> Patience {
        if let Some(disturbance) = &self.disturbance {
            disturbance.step().await;
        }
        Patience::of(self.disturbance.as_deref())
    }

    /// Asks once, and must get it.
    pub async fn acquire(&mut self) -> Grant {
        match self.try_acquire().await {
            Attempt::Granted(grant) => grant,
            other => panic!("{}: {other:?}", self.claim.name),
        }
    }

    /// Asks once, and must not get it. Returns the first who holds it.
    pub async fn refused(&mut self) -> Holder {
        self.busy().await.holders.into_iter().next().unwrap()
    }

    /// Asks once, and must not get it.
    pub async fn busy(&mut self) -> Busy {
        match self.try_acquire().await {
            Attempt::Busy(busy) => busy,
            other => panic!("{}: {other:?}", self.claim.name),
        }
    }

    /// Asks until it is ours; it must be soon.
    pub async fn acquire_in_the_end(&mut self) -> Grant {
        let until = Instant::now() + SOON;
        loop {
            match self.try_acquire().await {
                Attempt::Granted(grant) => return grant,
                other => assert!(Instant::now() < until, "never free: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Asks once, with a place in the line, and must get only that.
    pub async fn queue(&mut self) -> Busy {
        match self.wait_in_line().await {
            Attempt::Busy(busy) => busy,
            other => panic!("{}: {other:?}", self.claim.name),
        }
    }

    /// Asks once, from its place in the line, and must get it.
    pub async fn claim_turn(&mut self) -> Grant {
        match self.wait_in_line().await {
            Attempt::Granted(grant) => grant,
            other => panic!("{}: {other:?}", self.claim.name),
        }
    }

    /// Waits, without asking, until it is told that it is its turn; that must be soon. Whoever was cut off asks, where that
    /// may happen.
    pub async fn await_turn(&mut self) {
        let told = async {
            loop {
                match self.backend.changed().await {
                    Change::OurTurn => return,
                    Change::Disconnected if self.disturbance.is_some() => {
                        if let Attempt::Granted(_) = self.wait_in_line().await {
                            return;
                        }
                    }
                    _ => {}
                }
            }
        };
        timeout(SOON, told).await.expect("nobody was told");
    }

    /// Waits, without asking, until it is told to ask; that must be soon.
    pub async fn await_word(&mut self) {
        let told = async { while matches!(self.backend.changed().await, Change::Soon(_)) {} };
        timeout(SOON, told).await.expect("nobody was told");
    }

    /// What it is told within this time, without asking.
    pub async fn told_within(&mut self, span: Duration) -> Vec<Change> {
        let mut told = Vec::new();
        let listen = async {
            loop {
                told.push(self.backend.changed().await);
            }
        };
        let _: Result<(), _> = timeout(span, listen).await;
        told
    }

    /// Waits in line, and asks only when the store says so, until it is ours.
    pub async fn wait_for_grant(&mut self) -> Grant {
        loop {
            match self.wait_in_line().await {
                Attempt::Busy(busy) => self.pause(busy.again).await,
                Attempt::Granted(grant) => return grant,
                refused => panic!("{}: {refused:?}", self.claim.name),
            }
        }
    }

    /// Gets in line, and goes on waiting beside the check; the place is taken when this returns.
    pub async fn wait_beside(mut self) -> Waiting {
        let busy = self.queue().await;
        self.go_on_beside(busy)
    }

    /// Goes on waiting beside the check, from its place in the line.
    pub fn go_on_beside(mut self, busy: Busy) -> Waiting {
        let again = busy.again;
        Waiting(tokio::task::spawn_local(async move {
            self.pause(again).await;
            let grant = self.wait_for_grant().await;
            (self, grant)
        }))
    }

    /// Until it is time to ask again, as the store says.
    async fn pause(&mut self, again: Again) {
        let within = match again {
            Again::Within(within) => within.min(LONG),
            Again::Poll => Duration::from_millis(100),
        };
        let mut until = Instant::now() + within;
        while let Ok(change) = timeout_at(until.into(), self.backend.changed()).await {
            match change {
                Change::Soon(within) => until = until.min(Instant::now() + within),
                Change::OurTurn | Change::Touched | Change::Disconnected => return,
            }
        }
    }

    pub async fn renew(&mut self) -> Renewal {
        let patience = self.disturbed().await;
        loop {
            let renewal = match self.backend.connect().await {
                Ok(()) => self.backend.renew(&self.claim, Duration::ZERO).await,
                Err(error) => Err(error),
            };
            match renewal {
                Ok(renewal) => return renewal,
                Err(error) => patience.after(&error).await,
            }
        }
    }

    pub async fn release(&mut self) -> Release {
        let patience = self.disturbed().await;
        let mut is_repeated = false;
        loop {
            let release = match self.backend.connect().await {
                Ok(()) => self.backend.release(&self.claim, Duration::ZERO, None).await,
                Err(error) => Err(error),
            };
            match release {
                // Whatever became of the first word was what it asked for.
                Ok(Release::NotHeld) if is_repeated => return Release::Released,
                Ok(release) => return release,
                Err(error) => {
                    is_repeated |= matches!(error, StoreError::Unavailable { maybe_applied: true, .. });
                    patience.after(&error).await;
                }
            }
        }
    }

    /// The lock must still be ours.
    pub async fn assert_held(&mut self) {
        let name = self.claim.name.clone();
        assert!(matches!(self.renew().await, Renewal::Held { .. }), "{name} was lost");
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

/// One who waits in line beside the check, and asks only when the store says so. A check that has one must not block the
/// thread while it wants something of it.
pub struct Waiting(JoinHandle<(Client, Grant)>);

impl Waiting {
    /// Whether it has got the lock.
    pub fn is_granted(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until it has got the lock, which must be soon.
    pub async fn granted(self) -> (Client, Grant) {
        timeout(SOON, self.0).await.expect("it is called and gets the lock").unwrap()
    }
}

/// Waits until something is so, while those who wait beside the check go on.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "waited {SOON:?} in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// A claim with a token of its own, by this process.
pub fn claim(name: &str) -> Claim {
    Claim {
        name: LockName::new(name).unwrap(),
        token: Token::random().unwrap(),
        mode: Mode::Exclusive,
        ttl: LONG,
        min_hold: Duration::ZERO,
        outer: Vec::new(),
        requires_outer_hold: false,
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
