//! The arithmetic of leases. Pure: moments in, moments out.
//!
//! Let T be the smaller of the lease requested and the lease granted, and *sent* the moment when the last acknowledged
//! request was sent. The lease ends at the store no earlier than L = sent + T, because the store started to count only
//! after that. The process tree has to be dead by D = L - T/100 - 2 ms, which allows the two clocks to differ by one
//! percent (the drift term of Redlock). SIGKILL is sent a margin before D, SIGTERM a grace before SIGKILL. The arrival
//! of a reply moves none of these.

use std::time::Duration;

use crate::clock::Moment;

/// The time between SIGKILL and the moment by which the tree must be dead. Measured on 2 cores under 8 CPU-bound
/// processes: SIGKILL took effect up to 112 ms after its timer.
pub const MARGIN: Duration = Duration::from_millis(200);

/// The allowance for the difference in rate between the clocks of dlock and the store, in addition to one percent.
const SKEW: Duration = Duration::from_millis(2);

/// The shortest lease that `--ttl` accepts.
pub const SHORTEST_TTL: Duration = Duration::from_secs(1);

/// The longest lease that `--ttl` accepts.
pub const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);

/// The part of the lease (a half) that may be spent before the command is started: later it could not be stopped in
/// good order.
const START_DIVISOR: u32 = 2;

/// The durations of a run, before there is a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The lease to request.
    pub ttl: Duration,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// The limit of one attempt to reach the store.
    pub connect_timeout: Duration,
}

impl Terms {
    /// Returns the default grace for a ttl: a fifth of it, up to five seconds.
    pub fn default_grace(ttl: Duration) -> Duration {
        Duration::from_secs(5).min(ttl / 5)
    }

    /// Returns the longest grace that fits into a ttl: SIGTERM must not come before half of the lease has passed, or
    /// one late renewal would end the command.
    pub fn longest_grace(ttl: Duration) -> Duration {
        until_dead(ttl).saturating_sub(MARGIN).saturating_sub(ttl / 2)
    }

    /// Returns the moments of a lease whose request was sent at `sent` and for which the store granted `granted`.
    pub fn validity(&self, sent: Moment, granted: Duration) -> Validity {
        let ttl = self.ttl.min(granted);
        let dead = sent + until_dead(ttl);
        let kill = sent + until_dead(ttl).saturating_sub(MARGIN);
        // A store that grants less than was requested leaves less room: the grace is shortened, not the deadline moved.
        let grace = self.grace.min(Terms::longest_grace(ttl));
        let term = kill.saturating_sub(grace);
        let renew = sent + ttl / 3;
        let attempt = self.connect_timeout.min((term - renew) / 3);
        Validity {
            ends: sent + ttl,
            dead,
            kill,
            term,
            renew,
            attempt,
            start_before: (sent + ttl / START_DIVISOR).min(term),
        }
    }

    /// Returns the limit of a connection that is opened from now on to renew, and of a request that follows a failure: three
    /// quarters of the time that is left until `term`. A connection may take five round trips (TCP, TLS, a greeting, a
    /// login, settings) before those of the request. The last attempts are not too short for any reply.
    pub fn recovery_limit(&self, validity: &Validity, now: Moment) -> Duration {
        let part = (validity.term - now) * 3 / 4;
        self.connect_timeout.min(part.max(validity.attempt / 2))
    }
}

/// Returns the time from the sending of the request to the moment by which the tree must be dead.
fn until_dead(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100).saturating_sub(SKEW)
}

/// The moments of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The earliest moment at which the lease ends at the store.
    pub ends: Moment,
    /// When the tree must be dead.
    pub dead: Moment,
    /// When SIGKILL is due.
    pub kill: Moment,
    /// When SIGTERM is due.
    pub term: Moment,
    /// When the renewal is due.
    pub renew: Moment,
    /// The limit of a request to renew that follows no failure: three fit between `renew` and `term`.
    pub attempt: Duration,
    /// The command is started only before this moment: half of the lease has elapsed.
    pub start_before: Moment,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(ttl_ms: u64, grace_ms: u64) -> Terms {
        Terms {
            ttl: Duration::from_millis(ttl_ms),
            grace: Duration::from_millis(grace_ms),
            connect_timeout: Duration::from_secs(5),
        }
    }

    fn ms(moment: Moment) -> u128 {
        moment.since_boot().as_millis()
    }

    #[test]
    fn the_moments_of_thirty_seconds() {
        let validity =
            terms(30_000, 5_000).validity(Moment::from_boot(Duration::ZERO), Duration::from_secs(30));
        assert_eq!(ms(validity.ends), 30_000);
        assert_eq!(ms(validity.dead), 29_698);
        assert_eq!(ms(validity.kill), 29_498);
        assert_eq!(ms(validity.term), 24_498);
        assert_eq!(ms(validity.renew), 10_000);
        assert_eq!(validity.attempt.as_millis(), 4_832);
    }

    #[test]
    fn a_recovery_has_most_of_the_time_that_is_left() {
        let terms = Terms { connect_timeout: Duration::from_secs(60), ..terms(30_000, 5_000) };
        let validity = terms.validity(Moment::from_boot(Duration::ZERO), Duration::from_secs(30));
        let limit = |terms: &Terms, now| {
            terms.recovery_limit(&validity, Moment::from_boot(Duration::from_millis(now))).as_millis()
        };
        // The connection has failed long before the renewal is due.
        assert_eq!(limit(&terms, 1_000), 17_623);
        assert_eq!(limit(&terms, 10_000), 10_873);
        assert_eq!(limit(&terms, 17_250), 5_436);
        // A sixth of 14,498 ms.
        assert_eq!(limit(&terms, 22_498), 2_416);
        assert_eq!(limit(&terms, 29_000), 2_416);
        assert_eq!(limit(&Terms { connect_timeout: Duration::from_secs(5), ..terms }, 10_000), 5_000);
    }

    #[test]
    fn everything_is_in_order_for_every_ttl_and_default_grace() {
        for ttl_ms in [1_000, 1_500, 3_000, 30_000, 3_600_000, 86_400_000] {
            let ttl = Duration::from_millis(ttl_ms);
            let grace = Terms::default_grace(ttl);
            assert!(grace <= Terms::longest_grace(ttl), "{ttl:?}");
            let terms = Terms { ttl, grace, connect_timeout: Duration::from_secs(5) };
            let sent = Moment::from_boot(Duration::from_secs(1_000));
            let validity = terms.validity(sent, ttl);
            assert!(sent < validity.renew && validity.renew < validity.term, "{ttl:?}");
            let first = validity.renew + validity.attempt;
            let third = (0..2).fold(first, |begin, _| begin + terms.recovery_limit(&validity, begin));
            assert!(third <= validity.term, "three requests without a reply fit: {ttl:?}");
            assert!(sent + ttl / 2 <= validity.term && validity.term < validity.kill, "{ttl:?}");
            assert!(validity.kill < validity.dead && validity.dead < validity.ends, "{ttl:?}");
        }
    }

    #[test]
    fn a_shorter_grant_shortens_everything() {
        let sent = Moment::from_boot(Duration::ZERO);
        let validity = terms(30_000, 5_000).validity(sent, Duration::from_secs(3));
        assert_eq!(ms(validity.ends), 3_000);
        assert!(validity.term >= sent + Duration::from_millis(1_500));
        let longer = terms(3_000, 500).validity(sent, Duration::from_secs(30));
        assert_eq!(ms(longer.ends), 3_000, "a longer grant is not used");
    }
}
