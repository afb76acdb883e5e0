//! A client of the library's backend trait: one claim, and the store it is made on.

use super::disturbance::{Disturbance, Patience};
use super::rig::{Rig, open};
use crate::support::SOON;
use dlock::backend::{
    Again, Attempt, Backend, Busy, Change, Ending, Intent, Loss, Release, Renewal, Reply, StoreError,
    TryReply,
};
use dlock::lock::{Claim, Grant, Holder, LockName, Mode, Token};
use futures_util::future::join_all;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};

/// A lease that outlasts every test.
pub const LONG: Duration = Duration::from_secs(600);

/// A client that claims a lock.
pub struct Client {
    pub backend: Box<dyn Backend>,
    pub claim: Claim,
    disturbance: Option<Rc<Disturbance>>,
    /// See [`Rig::counts_as_down_after`].
    counts_as_down_after: Option<Duration>,
    /// The store cannot notify it.
    polls: bool,
}

impl Client {
    /// A claim of this name on the rig's store; does not contact the store.
    pub fn new(rig: &dyn Rig, name: &str) -> Self {
        Self {
            backend: rig.open(),
            claim: claim(name),
            disturbance: rig.disturbance(),
            counts_as_down_after: rig.counts_as_down_after(),
            polls: false,
        }
    }

    /// The same claim once more, over a new connection.
    pub fn again(rig: &dyn Rig, claim: &Claim) -> Self {
        Self { claim: claim.clone(), ..Self::new(rig, claim.name.as_str()) }
    }

    /// A claim of this name on the store of a URL.
    pub fn at(url: &str, name: &str) -> Self {
        Self {
            backend: open(url),
            claim: claim(name),
            disturbance: None,
            counts_as_down_after: None,
            polls: false,
        }
    }

    /// The same with a short lease.
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.claim.ttl = ttl;
        self
    }

    /// The same, by a client on another host. A run detects that this process is its own ancestor, and would refuse to
    /// wait for it.
    pub fn elsewhere(mut self) -> Self {
        self.claim.identity.host = "elsewhere".to_owned();
        self.claim.identity.boot = "another".to_owned();
        self
    }

    /// The same, in this shared mode.
    pub fn in_mode(mut self, mode: Mode) -> Self {
        self.claim.mode = mode;
        self
    }

    /// Sends one request.
    pub async fn try_acquire(&mut self) -> Attempt {
        self.ask(Intent::TakeNow).await
    }

    /// Sends one request, which joins the queue if it is not granted at once.
    pub async fn wait_in_line(&mut self) -> Attempt {
        self.ask(Intent::Enqueue).await
    }

    async fn ask(&mut self, intent: Intent) -> Attempt {
        let patience = self.disturbed().await;
        let asked = Instant::now();
        loop {
            let attempt = patience
                .limit(async {
                    self.backend.connect().await?;
                    self.backend.try_acquire(&self.claim, intent).await
                })
                .await;
            match attempt {
                // The only possible reply while the keys of the lock are on two nodes: without a queue position there is
                // no notification.
                Ok(Attempt::Busy(Busy { again: Again::Poll, position: None, .. }))
                    if patience.is_noticeable() =>
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(attempt) => {
                    self.polls = matches!(attempt, Attempt::Busy(Busy { again: Again::Poll, .. }));
                    return attempt;
                }
                Err(error) => patience.after(&error, asked).await,
            }
        }
    }

    /// Applies the disturbance of the store that is due now.
    async fn disturbed(&self) -> Patience {
        if let Some(disturbance) = &self.disturbance {
            disturbance.step().await;
        }
        Patience::of(self.disturbance.as_deref(), self.counts_as_down_after)
    }

    /// Sends one request, which must be granted.
    pub async fn acquire(&mut self) -> Grant {
        match self.try_acquire().await {
            Attempt::Granted(grant) => grant,
            other => panic!("{}: {other:?}", self.claim.name),
        }
    }

    /// Renews the hold 20 times a second until the others have joined the queue. The last renewal is carried out as well: its
    /// requests are not counted with later ones.
    pub async fn renew_while_joining(&mut self, waiters: &mut [Self]) {
        let have_joined = Cell::new(false);
        let joining = async {
            join_all(waiters.iter_mut().map(Self::queue)).await;
            have_joined.set(true);
        };
        let renewing = async {
            while !have_joined.get() {
                let renewal = self.renew().await;
                assert!(matches!(renewal, Renewal::Held { .. }), "{renewal:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::join!(joining, renewing);
    }

    /// Sends one request, which must be refused. Returns the first holder.
    pub async fn refused(&mut self) -> Holder {
        self.busy().await.holders.into_iter().next().unwrap()
    }

    /// Sends one request, which must be refused.
    pub async fn busy(&mut self) -> Busy {
        match self.try_acquire().await {
            Attempt::Busy(busy) => busy,
            other => panic!("{}: {other:?}", self.claim.name),
        }
    }

    /// Repeats the request until it is granted, which must be soon.
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

    /// Sends one request, which must join the queue.
    pub async fn queue(&mut self) -> Busy {
        match self.wait_in_line().await {
            Attempt::Busy(busy) => busy,
            other => panic!("{}: {other:?}", self.claim.name),
        }
    }

    /// Sends one request from its queue position, which must be granted. It is repeated only if a process that is not a
    /// member has the gate: on `file:`, another waiter locks the file for a moment to find out that it is free.
    pub async fn claim_turn(&mut self) -> Grant {
        let until = Instant::now() + SOON;
        loop {
            match self.wait_in_line().await {
                Attempt::Granted(grant) => return grant,
                Attempt::Busy(busy)
                    if busy.position == Some(1)
                        && busy.holders.iter().any(|holder| holder.identity.is_none())
                        && Instant::now() < until => {}
                other => panic!("{}: {other:?}", self.claim.name),
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Waits, without requests, until it is notified that it is its turn; that must be soon. A client that was
    /// disconnected sends a request, where that may happen.
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

    /// Waits, without requests, until it is notified to send one; that must be soon. Returns at once if the store cannot
    /// notify.
    pub async fn await_notification(&mut self) {
        if !self.polls {
            self.next_change().await;
        }
    }

    /// Waits until it is to send a request, also where it finds that out by looking.
    pub async fn next_change(&mut self) -> Change {
        let told = async {
            loop {
                match self.backend.changed().await {
                    Change::Soon(_) => {}
                    change => return change,
                }
            }
        };
        timeout(SOON, told).await.expect("nobody was told")
    }

    /// The notification that it receives within this time, without requests.
    pub async fn notification_within(&mut self, span: Duration) -> Vec<Change> {
        let mut told = Vec::new();
        let listen = async {
            loop {
                told.push(self.backend.changed().await);
            }
        };
        let _: Result<(), _> = timeout(span, listen).await;
        told
    }

    /// Waits in the queue, and sends requests only when notified, until it is granted.
    pub async fn wait_for_grant(&mut self) -> Grant {
        loop {
            match self.wait_in_line().await {
                Attempt::Busy(busy) => self.pause(busy.again).await,
                Attempt::Granted(grant) => return grant,
                refused => panic!("{}: {refused:?}", self.claim.name),
            }
        }
    }

    /// Joins the queue, and continues to wait beside the check; the queue position is taken when this returns.
    pub async fn wait_beside(mut self) -> Waiting {
        let busy = self.queue().await;
        self.continue_beside(busy)
    }

    /// Continues to wait beside the check, from its queue position.
    pub fn continue_beside(mut self, busy: Busy) -> Waiting {
        let again = busy.again;
        Waiting(tokio::task::spawn_local(async move {
            self.pause(again).await;
            let grant = self.wait_for_grant().await;
            (self, grant)
        }))
    }

    /// Returns when it is time for the next request, as determined by the store.
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
        let asked = Instant::now();
        loop {
            let renewal = patience
                .limit(async {
                    self.backend.connect().await?;
                    self.backend.renew(&self.claim, Duration::ZERO).await
                })
                .await;
            match renewal {
                Ok(renewal) => return renewal,
                Err(error) => patience.after(&error, asked).await,
            }
        }
    }

    pub async fn release(&mut self) -> Release {
        self.end(None).await
    }

    /// Releases the lock after a run that has succeeded, and has lasted for this long by its own clock.
    pub async fn succeed(&mut self, held: Duration) -> Release {
        self.end(Some(held)).await
    }

    async fn end(&mut self, success: Option<Duration>) -> Release {
        let ending = Ending { success, ..Ending::default() };
        let patience = self.disturbed().await;
        let asked = Instant::now();
        let mut is_repeated = false;
        loop {
            let release = patience
                .limit(async {
                    self.backend.connect().await?;
                    self.backend.release(&self.claim, Duration::ZERO, ending).await
                })
                .await;
            match release {
                // Whatever happened to the first notification, it asked for a request.
                Ok(Release::NotHeld) if is_repeated => return Release::Released,
                Ok(release) => return release,
                Err(error) => {
                    is_repeated |= matches!(error, StoreError::Unavailable { maybe_applied: true, .. });
                    patience.after(&error, asked).await;
                }
            }
        }
    }

    /// The lock must still be held by this client.
    pub async fn assert_held(&mut self) {
        let name = self.claim.name.clone();
        assert!(matches!(self.renew().await, Renewal::Held { .. }), "{name} was lost");
    }

    /// The lock must not be held by this client, whoever the holder is.
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

/// The grant that a reply must be.
#[track_caller]
pub fn granted(attempt: Attempt) -> Grant {
    match attempt {
        Attempt::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// What a reply must be that is not a grant.
#[track_caller]
pub fn refusal(attempt: Attempt) -> Busy {
    match attempt {
        Attempt::Busy(busy) => busy,
        other => panic!("{other:?}"),
    }
}

/// A client that waits in the queue beside the check, and sends requests only when notified. A check with such a client
/// must not block the thread while it needs the client to act.
pub struct Waiting(JoinHandle<(Client, Grant)>);

impl Waiting {
    /// Whether it was granted the lock.
    pub fn is_granted(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until it is granted the lock, which must be soon.
    pub async fn granted(self) -> (Client, Grant) {
        timeout(SOON, self.0).await.expect("it is called and gets the lock").unwrap()
    }
}

/// Waits until a condition holds, while clients that wait beside the check continue.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "waited {SOON:?} in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// A claim of this process with a new token.
pub fn claim(name: &str) -> Claim {
    Claim {
        name: LockName::new(name).unwrap(),
        token: Token::random(),
        mode: Mode::Exclusive,
        ttl: LONG,
        min_hold: Duration::ZERO,
        outer: Vec::new(),
        requires_outer_hold: false,
        once_per: None,
        identity: dlock::identity::of_this_process("suite".into(), Some(format!("note of {name}"))),
    }
}

/// The same claim by another client, with another token.
pub fn by_another(claim: &Claim) -> Claim {
    Claim { token: Token::random(), ..claim.clone() }
}

/// A future that is dropped after it was pending for this number of polls.
struct DroppedAfter<'a, T> {
    whole: Reply<'a, T>,
    polls: usize,
}

impl<T> Future for DroppedAfter<'_, T> {
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

/// Drops the request after this number of polls, if it takes that many; otherwise returns its result.
pub async fn halfway<T>(whole: TryReply<'_, T>, polls: usize) -> Option<Result<T, StoreError>> {
    DroppedAfter { whole, polls }.await
}
