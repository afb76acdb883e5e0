//! Fencing tokens during all other faults: leases shorter than the work, deleted locks, claims that
//! are cancelled halfway and repeated, concurrent readers, and nodes that return with all their data, with less, or
//! with none. The exploration of the model tests the rules; this tests the servers that follow them.
//!
//! `DLOCK_TEST_RANDOM_SEED` repeats the choices of an earlier run, but not their scheduling.

use super::fixture::Fixture;
use crate::run::random_faults::fault_plan::Rng;
use crate::stores::conformance::client::{Client, until};
use crate::stores::conformance::rig::open;
use crate::support::SOON;
use crate::support::masters::Masters;
use crate::support::proxy::{Proxy, Way};
use dlock::backend::{Attempt, Ending, Intent};
use dlock::lock::{Claim, LockName, Mode, Token};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

const NAME: &str = "x";
const KEY: &str = "dlock:x";
const COUNTER: &str = "dlock#fencing:{dlock:x}";
/// At a time.
const CLAIMS: usize = 6;
/// The test ends after this many grants, and this many restarts of each kind.
const GRANTS: usize = 100;
const RESTARTS: usize = 3;
/// Time limit.
const LONGEST: Duration = SOON.saturating_mul(4);
/// A restarted node does not vote for this time.
const TTL: Duration = Duration::from_millis(300);

/// The restarts of the nodes.
#[derive(Debug, Default, Clone, Copy)]
struct Restarts {
    with_all: usize,
    with_less: usize,
    with_nothing: usize,
}

impl Restarts {
    fn are_enough(&self) -> bool {
        self.with_all.min(self.with_less).min(self.with_nothing) >= RESTARTS
    }
}

/// The tokens so far.
#[derive(Debug, Default)]
struct Ledger {
    tokens: BTreeSet<u64>,
}

impl Ledger {
    fn largest(&self) -> u64 {
        self.tokens.last().copied().unwrap_or(0)
    }

    /// Records the token of a claim; `largest` was the largest one before its first request.
    #[track_caller]
    fn note(&mut self, token: u64, before: u64) {
        assert!(token > before, "{token} was given after {before}");
        assert!(self.tokens.insert(token), "{token} was given twice");
    }
}

/// Deletes locks and restarts nodes until the test is over, also when it has failed.
fn disturb(
    masters: &mut Masters,
    mut draw: Rng,
    over: &AtomicBool,
    restarts: &Mutex<Restarts>,
    grants: &AtomicUsize,
) {
    let mut saved = BTreeSet::new();
    let (mut granted, mut restarted) = (0, Instant::now());
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(draw.between(1, 8) as u64));
        let node = draw.between(0, masters.count() - 1);
        match draw.between(1, 100) {
            1..=92 => {
                masters.node(node).command(&["DEL", KEY]);
            }
            93..=96 => {
                masters.node(node).save();
                saved.insert(node);
            }
            // On a busy machine, nodes that restart all the time would grant nothing.
            _ if grants.load(Ordering::Relaxed) == granted && restarted.elapsed() < 3 * TTL => {}
            kind => {
                (granted, restarted) = (grants.load(Ordering::Relaxed), Instant::now());
                let with_less = saved.remove(&node);
                let with_all = !with_less && kind <= 98;
                if with_all {
                    masters.restart(node);
                } else {
                    masters.restart_empty(node);
                }
                let mut restarts = restarts.lock().unwrap();
                restarts.with_less += usize::from(with_less);
                restarts.with_all += usize::from(with_all);
                restarts.with_nothing += usize::from(!with_less && !with_all);
            }
        }
    }
}

fn claim(mode: Mode) -> Claim {
    Claim {
        name: LockName::new(NAME).unwrap(),
        token: Token::random(),
        mode,
        ttl: TTL,
        min_hold: Duration::ZERO,
        outer: Vec::new(),
        requires_outer_hold: false,
        once_per: None,
        identity: dlock::identity::of_this_process("fencing".into(), None),
    }
}

/// One claim after another, each by a new client.
async fn claims(url: &str, mut draw: Rng, ledger: &RefCell<Ledger>, is_over: impl Fn() -> bool) {
    while !is_over() {
        let claim = claim(if draw.percent(40) { Mode::Shared } else { Mode::Exclusive });
        let mut store = open(url);
        let before = ledger.borrow().largest();
        let mut granted = false;
        // The second time as a client does whose first request got no reply.
        for _ in 0..draw.between(1, 2) {
            let halfway = Duration::from_millis(draw.between(0, 12) as u64);
            let patience = if draw.percent(35) { halfway } else { SOON };
            let attempt = async {
                store.connect().await?;
                store.try_acquire(&claim, Intent::TakeNow).await
            };
            if let Ok(Ok(Attempt::Granted(grant))) = timeout(patience, attempt).await {
                ledger.borrow_mut().note(grant.fencing.expect("a fencing token").number(), before);
                granted = true;
                break;
            }
        }
        sleep(Duration::from_millis(draw.between(0, 20) as u64)).await;
        if granted && draw.percent(50) {
            // Claims another one at the nodes that have lost the lock. The result does not matter here.
            let _ = store.renew(&claim, Duration::ZERO).await;
        }
        if granted && draw.percent(50) {
            let _ = store.release(&claim, Duration::ZERO, Ending::default()).await;
        }
    }
}

/// Marks the end of the test, also when it ends in a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_fencing_token_repeats_or_decreases_whatever_nodes_lose() {
    let seed = std::env::var("DLOCK_TEST_RANDOM_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(crate::support::wait::boot_ns);
    println!("DLOCK_TEST_RANDOM_SEED={seed}");
    let mut masters = Masters::lent();
    let url = masters.url();
    let (over, restarts) = (AtomicBool::new(false), Mutex::new(Restarts::default()));
    let granted = AtomicUsize::new(0);
    let ledger = RefCell::new(Ledger::default());
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        scope.spawn(|| disturb(&mut masters, Rng::from(seed), &over, &restarts, &granted));
        let until = Instant::now() + LONGEST;
        let is_over = || {
            let (grants, restarts) = (ledger.borrow().tokens.len(), *restarts.lock().unwrap());
            granted.store(grants, Ordering::Relaxed);
            assert!(Instant::now() < until, "only {grants} grants after {restarts:?}");
            grants >= GRANTS && restarts.are_enough()
        };
        let all = (1..=CLAIMS).map(|claim| {
            let draw = Rng::from(seed.wrapping_add(claim as u64));
            claims(&url, draw, &ledger, is_over)
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(together(all.collect()));
    });
    println!("{} grants, {:?}", ledger.borrow().tokens.len(), restarts.lock().unwrap());
}

/// A node that considers only its own counter would repeat the numbers it issued after its snapshot.
#[test]
fn a_node_restored_with_an_older_counter_repeats_no_number() {
    let mut masters = Masters::lent();
    // With old records, so that they vote.
    for node in 0..5 {
        let server = masters.node(node);
        let info = server.command(&["INFO", "server"]).text();
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("the id of a run");
        server.command(&["SET", "dlock#since", &format!("0 node{node} {run}")]);
        server.command(&["SET", COUNTER, "1000"]);
    }
    let url = masters.url();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let grant = || runtime.block_on(grant(&url));
    masters.node(2).save();
    for node in [3, 4] {
        masters.node(node).command(&["SET", KEY, "somebody else's"]);
    }
    // A thousand grants later.
    for node in [0, 1, 2] {
        masters.node(node).command(&["SET", COUNTER, "2000"]);
    }
    assert_eq!(grant(), 2001);
    for node in [3, 4] {
        masters.node(node).command(&["DEL", KEY]);
    }
    masters.kill(0);
    masters.kill(1);
    masters.node_mut(2).restart();
    let token = grant();
    assert!(token > 2001, "{token} was given after 2001");
}

/// Repeats the request until a majority grants the lock, and releases it. Returns the token.
async fn grant(url: &str) -> u64 {
    let until = Instant::now() + SOON;
    loop {
        let (claim, mut store) = (claim(Mode::Exclusive), open(url));
        store.connect().await.unwrap();
        match store.try_acquire(&claim, Intent::TakeNow).await {
            Ok(Attempt::Granted(grant)) => {
                store.release(&claim, Duration::ZERO, Ending::default()).await.unwrap();
                return grant.fencing.expect("a fencing token").number();
            }
            other => assert!(Instant::now() < until, "{other:?}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Runs all of them until all have ended.
async fn together<'a>(all: Vec<impl Future<Output = ()> + 'a>) {
    let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// A node that granted the outer hold late has a number of its own for it, until it is told the token.
#[test]
fn a_nested_claim_gets_the_token_that_a_majority_has_given() {
    let fixture = Fixture::old();
    let port = |node: usize| fixture.masters.node(node).port();
    let (slow, late) = (Proxy::to(port(1)), Proxy::to(port(2)));
    let client = |one: u16, two: u16, three: u16| {
        let url = format!("redlock://127.0.0.1:{one},127.0.0.1:{two},127.0.0.1:{three}/0");
        Client::at(&url, NAME)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut outer = client(port(0), port(1), late.port());
        // From now on, the node knows the script.
        outer.acquire().await;
        outer.release().await;
        late.hold(Way::Down);
        let grant = outer.acquire().await;
        until("the late grant", || fixture.held_at(&[2]) == [true]).await;
        slow.delay(Way::Down, Duration::from_millis(100));
        let mut inner = client(port(0), slow.port(), port(2));
        inner.claim.outer = vec![outer.claim.token.clone()];
        inner.claim.requires_outer_hold = true;
        assert_eq!(inner.acquire().await.fencing, grant.fencing);
        inner.release().await;
        late.heal();
        outer.release().await;
    });
}
