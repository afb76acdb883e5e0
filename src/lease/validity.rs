//! The arithmetic of time. Pure: moments in, moments out.
//!
//! With T the smaller of the lease asked for and the lease answered, and *sent* the moment the last acknowledged
//! request was sent, the lease ends at the store no earlier than L = sent + T, because the store began to count only
//! after that. The tree has to be dead by D = L - T/100 - 2 ms, which allows the two clocks to differ by one percent (the
//! drift term of Redlock). SIGKILL comes a margin before D, SIGTERM a grace before SIGKILL. No reply's arrival moves any
//! of these.

use std::time::Duration;

use crate::clock::Moment;

/// Between SIGKILL and the moment by which the tree is dead. Measured on 2 cores under 8 processor hogs: SIGKILL took
/// effect up to 112 ms after its timer.
pub const MARGIN: Duration = Duration::from_millis(200);

/// What dlock allows for the difference of its clock's rate from the store's, besides one percent.
const SKEW: Duration = Duration::from_millis(2);

/// The shortest lease that `--ttl` takes.
pub const SHORTEST_TTL: Duration = Duration::from_secs(1);

/// The longest lease that `--ttl` takes.
pub const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);

/// How much of the lease may be spent before a command is started: beyond that it could not be stopped in good order.
const MUST_START_BEFORE: u32 = 2;

/// What the durations of a run are, before there is a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The lease to ask for.
    pub ttl: Duration,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// One attempt to reach the store.
    pub connect_timeout: Duration,
}

impl Terms {
    /// The grace that goes with a ttl when none was given: a fifth of it, at most five seconds.
    pub fn default_grace(ttl: Duration) -> Duration {
        Duration::from_secs(5).min(ttl / 5)
    }

    /// The longest grace that fits into a ttl: SIGTERM must not come before half of the lease is over, or one renewal
    /// that is late would end the command.
    pub fn longest_grace(ttl: Duration) -> Duration {
        until_dead(ttl).saturating_sub(MARGIN).saturating_sub(ttl / 2)
    }

    /// The moments of a lease whose request was sent at `sent` and for which the store answered `answered`.
    pub fn validity(&self, sent: Moment, answered: Duration) -> Validity {
        let ttl = self.ttl.min(answered);
        let dead = sent + until_dead(ttl);
        let kill = sent + until_dead(ttl).saturating_sub(MARGIN);
        // A store that answers less than was asked leaves less room: the grace gives way, not the deadline.
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
            start_before: (sent + ttl / MUST_START_BEFORE).min(term),
        }
    }
}

/// From the sending of the request to the moment by which the tree must be dead.
fn until_dead(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100).saturating_sub(SKEW)
}

/// The moments of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The earliest end of the lease at the store.
    pub ends: Moment,
    /// By when the tree is dead.
    pub dead: Moment,
    /// SIGKILL.
    pub kill: Moment,
    /// SIGTERM.
    pub term: Moment,
    /// The renewal is due.
    pub renew: Moment,
    /// How long one attempt to renew may take: three fit between `renew` and `term`.
    pub attempt: Duration,
    /// A command is started only before this moment.
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
    fn everything_is_in_order_for_every_ttl_and_default_grace() {
        for ttl_ms in [1_000, 1_500, 3_000, 30_000, 3_600_000, 86_400_000] {
            let ttl = Duration::from_millis(ttl_ms);
            let grace = Terms::default_grace(ttl);
            assert!(grace <= Terms::longest_grace(ttl), "{ttl:?}");
            let terms = Terms { ttl, grace, connect_timeout: Duration::from_secs(5) };
            let sent = Moment::from_boot(Duration::from_secs(1_000));
            let validity = terms.validity(sent, ttl);
            assert!(sent < validity.renew && validity.renew < validity.term, "{ttl:?}");
            assert!(validity.renew + validity.attempt * 3 <= validity.term, "three attempts fit: {ttl:?}");
            assert!(sent + ttl / 2 <= validity.term && validity.term < validity.kill, "{ttl:?}");
            assert!(validity.kill < validity.dead && validity.dead < validity.ends, "{ttl:?}");
        }
    }

    #[test]
    fn a_shorter_answer_shortens_everything() {
        let sent = Moment::from_boot(Duration::ZERO);
        let validity = terms(30_000, 5_000).validity(sent, Duration::from_secs(3));
        assert_eq!(ms(validity.ends), 3_000);
        assert!(validity.term >= sent + Duration::from_millis(1_500));
        let longer = terms(3_000, 500).validity(sent, Duration::from_secs(30));
        assert_eq!(ms(longer.ends), 3_000, "a longer answer is not believed");
    }
}
