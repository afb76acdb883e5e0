//! The last success in a ledger, which decides whether a claim with `--once-per` is due: pure.

use std::time::Duration;

use super::observed::{Now, Observed};
use super::value::{HolderEntry, Ledger};
use crate::backend::{Attempt, Refusal};
use crate::lock::{Claim, Due, FencingToken, Success};

/// Decides whether a claim with `--once-per` is due: how far in the future a success lies that was ignored, or the
/// reply to a claim that is not.
pub(super) fn due(
    ledger: &Ledger,
    observed: &dyn Observed,
    claim: &Claim,
) -> Result<Option<Duration>, Attempt> {
    let Some((period, stored)) = claim.once_per.zip(ledger.success.as_ref()) else { return Ok(None) };
    let last = Success::parse(stored).map_err(|format| Attempt::Refused(Refusal::Success(format)))?;
    match last.due(observed.now().wall / 1000, period) {
        Due::Now => Ok(None),
        Due::Undated(ahead) => Ok(Some(ahead)),
        Due::Not(not_due) => Err(Attempt::NotDue(not_due)),
    }
}

/// Returns the success of a hold that has lasted for `held` by the clock of its own host: the grant is not
/// later than that, even if the store's clock was set meanwhile.
pub(super) fn of_hold(claim: &Claim, mine: &HolderEntry, now: Now, held: Duration) -> serde_json::Value {
    let held = u64::try_from(held.as_micros()).unwrap_or(u64::MAX);
    let granted_at = mine.acquired_at.min(now.wall.saturating_sub(held));
    let ended_at = mine.ended_at.unwrap_or(now.wall);
    let fencing = FencingToken::new(mine.fencing_token);
    let success = Success::of(claim, fencing, granted_at / 1000, ended_at / 1000);
    serde_json::to_value(success).expect("texts and numbers are JSON")
}
