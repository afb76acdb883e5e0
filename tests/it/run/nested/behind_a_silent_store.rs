//! S32: each of them has its own renewal and its own deadline.

use super::{PAST_THE_LEASE, TTL, assert_held, assert_succession, inner, shell};
use crate::support::flight::Flight;
use crate::support::inherited_lock::InheritedLock;
use crate::support::proxy::Proxy;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{boot_ns, throughout, until};
use crate::support::{SOON, probe};
use std::time::Duration;

/// The rest of 6 s when a hundredth of it, and 2 ms, are reserved for the difference of two clocks.
const DEAD_WITHIN: Duration = Duration::from_millis(5938);

/// Slightly less than a third of 6 s.
const RENEWED_AFTER: Duration = Duration::from_millis(1900);

/// Two dlocks on one lock, each with its own connection to the store, and each with a process that ignores SIGTERM.
struct Fixture {
    store: Store,
    outer_way: Proxy,
    inner_way: Proxy,
    outer_inherited_lock: InheritedLock,
    inner_inherited_lock: InheritedLock,
    run: Running,
}

/// Requests for a lease that got a reply.
fn granted(flights: &[Flight]) -> impl DoubleEndedIterator<Item = &Flight> {
    let asks = |flight: &&Flight| flight.names().iter().any(|name| name.starts_with("EVAL"));
    flights.iter().filter(asks).filter(|flight| flight.answered.is_some())
}

impl Fixture {
    /// Both have renewed their leases when this returns.
    fn start() -> Self {
        let store = Store::redis();
        let [outer_way, inner_way] = [(); 2].map(|()| Proxy::to(store.space().port()));
        let [outer_inherited_lock, inner_inherited_lock] =
            ["outer", "inner"].map(|name| InheritedLock::at(store.place.path(name)));
        let (go, tick) = (store.place.arg("go"), store.place.arg("tick"));
        let url = store.space().url_at(inner_way.port());
        let words = inner(&url, ["--inherited-lock", inner_inherited_lock.path(), "tick", &tick]);
        let text = format!(
            r#"'{}' --inherited-lock '{}' signals 'leave:{go}=0' & "$@"; echo "inner: $?"; wait"#,
            probe::path().to_str().expect("a path in UTF-8"),
            outer_inherited_lock.path()
        );
        let mut run = store.behind(outer_way.port()).run_with_ttl(TTL).command(shell(&text, words)).spawn();
        run.await_stdout("ready\nready\n");
        for way in [&outer_way, &inner_way] {
            until(SOON, "a renewal", || {
                let flights = way.flights();
                let ends = granted(&flights).next().zip(granted(&flights).next_back());
                ends.is_some_and(|(first, last)| last.at - first.at > RENEWED_AFTER)
            });
        }
        Self { store, outer_way, inner_way, outer_inherited_lock, inner_inherited_lock, run }
    }

    /// Asserts that the inner command did nothing after the end of the lease granted on this connection.
    #[track_caller]
    fn assert_dead_in_time(&self, way: &Proxy) {
        let last: u64 = self.store.place.read("tick").trim().parse().expect("a ticker has ticked");
        let flights = way.flights();
        let good = granted(&flights).next_back().expect("an answer");
        let elapsed = u64::try_from(good.at.elapsed().as_nanos()).unwrap();
        let deadline = boot_ns() - elapsed + u64::try_from(DEAD_WITHIN.as_nanos()).unwrap();
        assert!(last <= deadline, "the command ran {} ns past its deadline", last - deadline);
    }
}

#[test]
fn both_trees_are_dead_before_the_lease_ends() {
    let mut fixture = Fixture::start();
    fixture.outer_way.hold_both();
    fixture.inner_way.hold_both();
    fixture.store.await_death_under_lock(&fixture.inner_inherited_lock);
    fixture.store.await_death_under_lock(&fixture.outer_inherited_lock);
    fixture.assert_dead_in_time(&fixture.inner_way);
    fixture.assert_dead_in_time(&fixture.outer_way);
    let output = fixture.run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    let mut losses = output.after_renewal_warnings().into_iter();
    assert!(losses.all(|line| line.starts_with("dlock: x on redis://")), "{}", output.stderr);
    assert_succession(&fixture.store, &fixture.inner_inherited_lock);
}

#[test]
fn the_inner_tree_is_dead_in_time_when_only_the_inner_store_is_silent() {
    let mut fixture = Fixture::start();
    fixture.inner_way.hold_both();
    fixture.store.await_death_under_lock(&fixture.inner_inherited_lock);
    fixture.assert_dead_in_time(&fixture.inner_way);
    fixture.run.await_stdout("inner: 76\n");
    throughout(PAST_THE_LEASE, "the outer one holds on", || {
        fixture.store.is_held() && fixture.run.poll().is_none()
    });
    assert!(!fixture.outer_inherited_lock.is_free());
    assert_held(&fixture.store);
    fixture.store.place.write("go", "");
    let output = fixture.run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\nready\ninner: 76\n"));
    assert!(!fixture.store.is_held());
}

#[test]
fn both_trees_are_dead_in_time_when_only_the_outer_store_is_silent() {
    let mut fixture = Fixture::start();
    fixture.outer_way.hold_both();
    fixture.store.await_death_under_lock(&fixture.inner_inherited_lock);
    fixture.store.await_death_under_lock(&fixture.outer_inherited_lock);
    fixture.assert_dead_in_time(&fixture.outer_way);
    let output = fixture.run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert_succession(&fixture.store, &fixture.inner_inherited_lock);
}
