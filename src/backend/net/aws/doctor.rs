//! What `dlock doctor` asks of each service whose conditional writes hold locks.

use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question};

/// How many clients write at the same time, ...
pub const RACERS: usize = 32;
/// ... and how often.
const ROUNDS: usize = 20;
/// The hours of a month, for AWS's prices: 730.
pub const HOURS: f64 = 730.0;

/// Lets [`RACERS`] clients write in each round, which returns how many have succeeded, and reports whether it was always one;
/// `another` says which store to use otherwise. Returns whether it was.
///
/// # Errors
/// A round has failed.
pub async fn race_writes(
    another: &'static str,
    diagnosis: &Diagnosis,
    mut round: impl AsyncFnMut() -> Result<usize, StoreError>,
) -> Result<bool, StoreError> {
    let mut bad = 0;
    for _ in 0..ROUNDS {
        diagnosis.begin("writers");
        bad += usize::from(round().await? != 1);
    }
    let races = format!("{ROUNDS} races of {RACERS} conditional writes");
    let found = format!("{bad} of {races} had several winners, or none");
    diagnosis.found(match bad {
        0 => Finding::ok("writers", format!("{races} had one winner each")),
        _ => {
            diagnosis.answer(Question::AtomicGrant, Answer::new("no", &found));
            let consequence = "two commands may run under the same lock at the same time";
            Finding::problem("writers", found, consequence, another)
        }
    });
    Ok(bad == 0)
}
