//! The time by which a command must be dead, from the record of the proxy.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::flight::Flight;
use crate::support::wait::{boot_ns, until};
use std::time::{Duration, Instant};

/// The time required between the death of the tree and the end of its lease, besides a hundredth of it.
const SKEW: Duration = Duration::from_millis(2);

impl Fixture {
    /// Waits until this many more renewals got a reply, from now on.
    #[track_caller]
    pub fn await_renewals(&self, count: usize) {
        let now = Instant::now();
        until(SOON, "renewals", || {
            self.leases().iter().filter(|flight| flight.answered.is_some_and(|at| at > now)).count() >= count
        });
    }

    /// Every flight so far with a request for the lease, its renewal, or its release.
    pub fn leases(&self) -> Vec<Flight> {
        let mut flights = self.proxy.flights();
        flights.retain(|flight| flight.names().iter().any(|name| name.starts_with("EVAL")));
        flights
    }

    /// The last flight so far that got a reply.
    #[track_caller]
    pub fn last_replied(&self) -> Flight {
        self.leases().into_iter().rfind(|flight| flight.answered.is_some()).expect("an answer")
    }

    /// The time, on the clock that counts through suspend, by which a tree must be dead that has received the
    /// replies sent until `moment`; zero without any.
    pub fn deadline_at(&self, moment: u64) -> u64 {
        let good = self.leases().into_iter();
        let good = good.filter(|flight| flight.answered.is_some_and(|at| on_boot_clock(at) <= moment));
        good.map(|flight| self.deadline_after(&flight)).max().unwrap_or(0)
    }

    /// The time by which a tree must be dead whose last renewal was this one.
    pub fn deadline_after(&self, renewal: &Flight) -> u64 {
        on_boot_clock(renewal.at) + nanoseconds(self.ttl - self.ttl / 100 - SKEW)
    }

    /// The time at which the ticker executed its last instruction.
    pub fn last_tick(&self) -> u64 {
        self.place().read("tick").trim().parse().expect("a ticker has ticked")
    }

    /// Asserts that the ticker executed nothing after its deadline.
    #[track_caller]
    pub fn assert_last_tick_in_time(&self) {
        let last = self.last_tick();
        let deadline = self.deadline_at(last);
        assert!(
            last <= deadline,
            "the command ran {:?} past its deadline: {:#?}",
            Duration::from_nanos(last - deadline),
            self.leases()
                .iter()
                .map(|flight| (flight.names(), flight.at, flight.answered))
                .collect::<Vec<_>>()
        );
    }
}

/// Converts a moment of the standard library's clock to the clock that counts through suspend.
pub fn on_boot_clock(instant: Instant) -> u64 {
    loop {
        let now = boot_ns();
        let elapsed = nanoseconds(instant.elapsed());
        // This process did not lose its processor between the two.
        if boot_ns() - now < 100_000 {
            return now - elapsed;
        }
    }
}

/// As a number.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("less than five centuries")
}
