//! F51, F52: the holder dies together with the first waiters in the queue, or no push arrives anywhere.

use super::fixture::{Queue, SHORTLY, assert_ran, go_on, stop};
use crate::support::SOON;
use crate::support::cluster::Cluster;
use crate::support::dlock::Dlock;
use crate::support::masters::Masters;
use crate::support::place::Place;
use crate::support::push_filter::PushFilter;
use crate::support::redis::Redis;
use crate::support::running::{Exit, Running};
use crate::support::sentinels::Sentinels;
use crate::support::store::Store;
use crate::support::wait::{boot_ns, eventually};
use dlock::backend::CLAIM_WITHIN;
use std::time::Duration;

/// The lease of the holder, which is renewed while all waiters start.
const LEASE: Duration = Duration::from_secs(6);
const TTL: &str = "6s";
/// How late the last of five waiters may be on a busy machine. A second for each of them would be longer.
const LATE: Duration = Duration::from_secs(2);

/// The clients that were present when the host went down, and those that were not.
struct Crash {
    place: Place,
    url: String,
}

impl Crash {
    fn on(url: &str) -> Self {
        Self { place: Place::new(), url: url.to_owned() }
    }

    fn run(&self, ttl: &str) -> Dlock {
        self.place.run().backend(&self.url).args(["-v", "--ttl", ttl, "--wait", "forever"])
    }

    /// A waiter at this position, with a lease of this length.
    fn waiter(&self, position: usize, ttl: &str) -> Running {
        let mut waiter = self.run(ttl).command(["echo", "ran"]).spawn();
        waiter.await_stderr(&format!("position {position}"));
        waiter
    }

    /// Kills the holder and stops five of six waiters, and asserts that the sixth has the lock at the latest half a
    /// second for each of them after the end of the lease.
    #[track_caller]
    fn assert_the_vanished_cost_half_a_second_each(&self) {
        let mut holder = self.run(TTL).probe(["signals"]).spawn();
        holder.await_ready();
        let vanished = [1, 2, 3, 4, 5].map(|position| self.waiter(position, "60s"));
        let mut last = self.waiter(6, "60s");
        vanished.iter().for_each(stop);
        holder.marker().kill_all();
        let output = last.wait_within(LEASE + 5 * CLAIM_WITHIN + LATE);
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    }

    /// Kills the holder and the first two of three waiters, and asserts that the third need not wait for its own lease.
    #[track_caller]
    fn assert_the_third_moves_in_time(&self) {
        let mut holder = self.run(TTL).probe(["signals"]).spawn();
        holder.await_ready();
        let [first, second] = [1, 2].map(|position| self.waiter(position, TTL));
        let mut third = self.waiter(3, "60s");
        for run in [&holder, &first, &second] {
            run.marker().kill_all();
        }
        let output = third.wait_within(LEASE + 2 * CLAIM_WITHIN + SHORTLY);
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    }
}

/// F51
#[test]
fn a_waiter_does_not_wait_for_its_own_lease_when_waiters_ahead_died_with_the_holder() {
    let redis = Redis::start();
    Crash::on(&redis.url()).assert_the_third_moves_in_time();
}

/// F51
#[test]
fn a_waiter_behind_sentinels_does_not_wait_for_its_own_lease() {
    let sentinels = Sentinels::lent();
    Crash::on(&sentinels.url()).assert_the_third_moves_in_time();
}

/// F51
#[test]
fn a_waiter_in_a_cluster_does_not_wait_for_its_own_lease() {
    let cluster = Cluster::lent();
    Crash::on(&cluster.url()).assert_the_third_moves_in_time();
}

/// F51
#[test]
fn a_waiter_on_a_redlock_does_not_wait_for_its_own_lease() {
    let masters = Masters::lent();
    masters.age(&[0, 1, 2, 3, 4]);
    Crash::on(&masters.url()).assert_the_third_moves_in_time();
}

/// F51: their connections do not break, as when their host has lost its power.
#[test]
fn waiters_lost_with_the_holder_cost_half_a_second_each() {
    let redis = Redis::start();
    let queue = Queue::of(Store::on(&redis));
    let mut holder = queue.keeping(queue.store.run_with_ttl(TTL), "holder").spawn();
    holder.await_ready();
    let vanished = ["a", "b", "c", "d", "e"].map(|name| queue.waiter(name));
    let mut last = queue.waiter("last");
    vanished.iter().for_each(stop);
    holder.marker().kill_all();
    let free = eventually(SOON, "the end of the lease", || (!queue.store.is_held()).then(boot_ns));
    let took = Duration::from_nanos(queue.start_of("last").saturating_sub(free));
    println!("five vanished waiters cost {} ms", took.as_millis());
    assert!(took <= 5 * CLAIM_WITHIN + LATE, "{took:?}");
    vanished.iter().for_each(go_on);
    assert_ran([&mut last]);
}

/// F51
#[test]
fn waiters_lost_in_a_cluster_cost_half_a_second_each() {
    let cluster = Cluster::lent();
    Crash::on(&cluster.url()).assert_the_vanished_cost_half_a_second_each();
}

/// F51
#[test]
fn waiters_lost_on_a_redlock_cost_half_a_second_each() {
    let masters = Masters::lent();
    masters.age(&[0, 1, 2, 3, 4]);
    Crash::on(&masters.url()).assert_the_vanished_cost_half_a_second_each();
}

/// F51: the live ones are called ahead of their turn, while the lock is offered to a stopped one.
#[test]
fn waiters_notified_ahead_of_their_turn_keep_their_positions() {
    let queue = Queue::of(Store::redis());
    let mut holder = queue.holder("holder");
    let mut a = queue.waiter("a");
    let (mut b, mut c, mut d) = (queue.keeper("b"), queue.keeper("c"), queue.waiter("d"));
    stop(&a);
    queue.let_go("holder");
    let mut now = queue.passing(queue.store.run_with_ttl("60s").arg("--no-wait"), "now").spawn();
    assert_eq!(now.wait_within(SHORTLY).exit, Exit::Code(75));
    queue.await_turn("b");
    queue.await_order(&[&c, &d]);
    go_on(&a);
    queue.await_order(&[&c, &d, &a]);
    queue.let_go("b");
    queue.await_turn("c");
    queue.let_go("c");
    assert_ran([&mut holder, &mut b, &mut c, &mut d, &mut a]);
    queue.assert_turns(&["holder", "b", "c", "d", "a"]);
    queue.assert_nothing_left();
}

/// F51: there is room beside the holder, and the waiters whose turn it is are stopped.
#[test]
fn stopped_waiters_for_a_slot_cost_one_claim_together() {
    let queue = Queue::of(Store::redis());
    let slots = |run: Dlock| run.args(["--slots", "2"]);
    let [mut first, mut second] =
        ["first", "second"].map(|name| queue.keeping(slots(queue.store.run_with_ttl("60s")), name).spawn());
    first.await_ready();
    second.await_ready();
    let stopped = ["a", "b", "c", "d"].map(|name| queue.joined(queue.passing(slots(queue.run()), name)));
    stopped.iter().for_each(stop);
    queue.let_go("first");
    assert_ran([&mut first]);
    let mut now = queue.passing(slots(queue.store.run_with_ttl("60s")).arg("--no-wait"), "now").spawn();
    assert_ran([&mut now]);
    queue.let_go("second");
    assert_ran([&mut second]);
}

/// F52
#[test]
fn pushes_lost_at_every_position_cost_at_most_the_rest_of_the_lease() {
    let redis = Redis::start();
    // One that finds another one's command running asks again when the lease of that ends.
    let queue = Queue::of(Store::on(&redis)).ttl(TTL);
    let muffler = PushFilter::to(redis.port());
    let mut holder = queue.keeping(queue.store.run_with_ttl(TTL), "holder").spawn();
    holder.await_ready();
    let names = ["a", "b", "c", "d", "e"];
    let mut deaf = names.map(|name| queue.behind(muffler.port()).waiter(name));
    queue.let_go("holder");
    assert_ran([&mut holder]);
    assert_ran(deaf.each_mut());
    let mut order = queue.order();
    let last = order.last().expect("the last one").clone();
    let took = Duration::from_nanos(queue.start_of(&last).saturating_sub(queue.events()[1].ns));
    println!("lost pushes at five positions cost {} ms", took.as_millis());
    assert!(took <= LEASE + 5 * CLAIM_WITHIN + SHORTLY, "{took:?}");
    order.sort();
    assert_eq!(order, ["a", "b", "c", "d", "e", "holder"]);
    queue.assert_nothing_left();
}
