//! The time, as far as an agent shows it.

use std::time::Duration;

use crate::backend::ledger::Now;
use crate::backend::net::http::Reply;
use crate::clock::{Moment, wall_micros};

/// The resolution of the time in a reply, in microseconds.
const STEP: i64 = 1_000_000;

/// The clock of this host, moved as little as agrees with what the agent's clock has shown in whole seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// In microseconds.
    moved: i64,
}

impl Clock {
    /// Returns the time.
    pub fn now(&self) -> Now {
        let wall = wall_micros().saturating_add_signed(self.moved);
        Now { clock: Duration::from_micros(wall), wall }
    }

    /// Returns how far two hosts that ask the same agent may disagree.
    pub fn uncertainty(&self) -> Duration {
        if self.moved == 0 { Duration::ZERO } else { Duration::from_micros(STEP.unsigned_abs()) }
    }

    /// Returns how far the clock of this host is from the agent's at least, and whether it is ahead.
    pub fn difference(&self) -> (Duration, bool) {
        (Duration::from_micros(self.moved.unsigned_abs()), self.moved < 0)
    }

    /// Notes the time that the agent has shown in a reply.
    pub fn note(&mut self, reply: &Reply) {
        let Some(date) = reply.date() else { return };
        let shown = i64::try_from(date.as_micros()).unwrap_or(i64::MAX);
        let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        let wall = || i64::try_from(wall_micros()).unwrap_or(i64::MAX);
        // This thread may stand still between two looks at clocks.
        let (before, now, after) = (wall(), Moment::now(), wall());
        let at = |wall: i64, moment: Moment| wall.saturating_sub(micros(now - moment));
        self.moved = moved(self.moved, at(before, reply.sent), at(after, reply.received), shown);
    }
}

/// Returns by how much a clock is to be moved that showed `sent` and `received` around the moment at which another one,
/// which shows whole seconds, was at `shown`.
fn moved(before: i64, sent: i64, received: i64, shown: i64) -> i64 {
    let least = shown.saturating_sub(received);
    let most = shown.saturating_add(STEP).saturating_sub(sent);
    before.clamp(least, most.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_moved_no_further_than_the_other_one_shows() {
        let micros = |tenths: i64| tenths * STEP / 10;
        for (before, sent, received, shown, expected) in [
            // It agrees.
            (0, 102, 103, 100, 0),
            (0, 109, 111, 110, 0),
            // It is behind, or ahead.
            (0, 102, 103, 200, 97),
            (97, 104, 105, 200, 97),
            (97, 109, 110, 210, 100),
            (0, 302, 303, 200, -92),
            // It was set.
            (97, 202, 203, 200, 8),
        ] {
            let found = moved(micros(before), micros(sent), micros(received), micros(shown));
            assert_eq!(found, micros(expected), "{before} {sent} {shown}");
        }
    }
}
