//! What `dlock doctor` asks of each store of dated values: whether the conditions of writes hold, and whether each write is one
//! step.

use std::time::Duration;

use futures_util::future::join_all;

use super::{Change, Dated, Written};
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question};
use crate::backend::ledger::polling::{CLOCK_LAG, at};
use crate::backend::ledger::value::Ledger;
use crate::backend::{Backend, StoreError, race};
use crate::duration::show;
use crate::lock::{DEFAULT_TTL, LockName};
use crate::random;

/// Nothing is ever deleted: so many names, which doctor makes, are used again.
const SCRATCH: u64 = 16;
/// How many clients write at the same time, ...
const RACERS: usize = 32;
/// ... and how often.
const ROUNDS: usize = 20;

/// What a store calls its conditions.
pub struct Conditions {
    /// They hold.
    pub honoured: &'static str,
    /// The current version is refused.
    pub current: &'static str,
    /// An old version is accepted.
    pub stale: &'static str,
    /// A value is created although there is one.
    pub anew: &'static str,
    /// Which store to use instead.
    pub another: &'static str,
}

impl Conditions {
    /// Writes a value with conditions that hold and conditions that do not, and reports whether the store tells them apart.
    /// Returns whether it does.
    ///
    /// # Errors
    /// A request has failed.
    pub async fn check<C: Dated>(
        &self,
        client: &mut C,
        key: &str,
        diagnosis: &Diagnosis,
    ) -> Result<bool, StoreError> {
        diagnosis.begin("conditions");
        let before = client.read(key).await?.found.version;
        let wrong = match write(client, key, before.as_ref()).await? {
            None => Some("a write whose condition holds fails"),
            first => {
                let second = write(client, key, first.as_ref()).await?;
                let stale = write(client, key, first.as_ref()).await?;
                let anew = write(client, key, None).await?;
                match (second, stale, anew) {
                    (Some(_), None, None) => None,
                    (Some(_), Some(_), _) => Some(self.stale),
                    (Some(_), None, Some(_)) => Some(self.anew),
                    (None, ..) => Some(self.current),
                }
            }
        };
        diagnosis.found(match wrong {
            None => Finding::ok("conditions", self.honoured),
            Some(found) => {
                diagnosis.answer(Question::AtomicGrant, Answer::new("no", found));
                let consequence =
                    "two commands may run under the same lock at the same time, or no lock can be kept";
                Finding::problem("conditions", found, consequence, self.another)
            }
        });
        Ok(wrong.is_none())
    }

    /// Lets clients write a value at the same time, each with the condition that it is unchanged, and reports whether always one
    /// succeeds. Returns whether it does.
    ///
    /// # Errors
    /// A request has failed.
    pub async fn race<C: Dated>(
        &self,
        client: impl Fn() -> C,
        key: &str,
        diagnosis: &Diagnosis,
    ) -> Result<bool, StoreError> {
        let mut racers: Vec<C> = (0..RACERS).map(|_| client()).collect();
        let mut bad = 0;
        for _ in 0..ROUNDS {
            diagnosis.begin("writers");
            let version = racers[0].read(key).await?.found.version;
            let writes = racers.iter_mut().map(|one| write(one, key, version.as_ref()));
            let mut winners = 0;
            for written in join_all(writes).await {
                winners += usize::from(written?.is_some());
            }
            bad += usize::from(version.is_none() || winners != 1);
        }
        let races = format!("{ROUNDS} races of {RACERS} conditional writes");
        let found = format!("{bad} of {races} had several winners, or none");
        diagnosis.found(match bad {
            0 => Finding::ok("writers", format!("{races} had one winner each")),
            _ => {
                diagnosis.answer(Question::AtomicGrant, Answer::new("no", &found));
                let consequence = "two commands may run under the same lock at the same time";
                Finding::problem("writers", found, consequence, self.another)
            }
        });
        Ok(bad == 0)
    }
}

/// Returns the number of a scratch value, and of a scratch lock.
pub fn scratch_number() -> u64 {
    random::number() % SCRATCH
}

/// Measures how long the store takes to reply to reads of a value, and tries the scratch lock with this number.
///
/// # Errors
/// A request has failed.
pub async fn try_out<C: Dated, B: Backend>(
    client: &mut C,
    key: &str,
    number: u64,
    contender: impl Fn() -> B,
    diagnosis: &Diagnosis,
) -> Result<(), StoreError> {
    let request = async || client.read(key).await.map(drop);
    diagnosis.measure_latency("requests", request).await?;
    let name = LockName::new(&format!("dlock-doctor-{number}")).expect("letters and digits");
    race::try_out_as(&name, contender, diagnosis).await
}

/// Returns when the lock of a crashed holder is free, in words.
pub fn free_after_crash() -> String {
    let lag = CLOCK_LAG + Duration::from_secs(1);
    let (after_ttl, unless_set) = (show(lag), show(DEFAULT_TTL + lag));
    format!("a crashed holder's lock is free {after_ttl} after --ttl at most ({unless_set} unless set)")
}

/// Writes a value under a condition. Returns the version that it has now; `None` if it was refused.
async fn write<C: Dated>(
    client: &mut C,
    key: &str,
    version: Option<&C::Version>,
) -> Result<Option<C::Version>, StoreError> {
    let attempt = random::id();
    let (ledger, now) = (&Ledger::default(), at(client.time()));
    let change = Change { version, before: ledger, ledger, now, attempt: &attempt };
    Ok(match client.write(key, &change).await? {
        Written::Stored(found) => found.version,
        // Something on the way has sent the request twice.
        Written::Refused(Some(reading)) if reading.found.is_of(&attempt) => reading.found.version,
        Written::Refused(_) => None,
    })
}
