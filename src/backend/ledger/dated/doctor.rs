//! What `dlock doctor` asks of each store of dated values: whether the conditions of writes hold, and whether each write is one
//! step.

use std::sync::LazyLock;
use std::time::Duration;

use futures_util::future::join_all;

use super::{Change, Dated, Reading, Written};
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question};
use crate::backend::ledger::observed::Now;
use crate::backend::ledger::polling::{CLOCK_LAG, at};
use crate::backend::ledger::value::{HolderEntry, Ledger};
use crate::backend::{Backend, StoreError, race};
use crate::duration::show;
use crate::lock::{DEFAULT_TTL, Identity, LockName};
use crate::random;

/// Nothing is ever deleted: so many names, which doctor makes, are used again.
const SCRATCH: u64 = 16;
/// How long a scratch value is reserved after each write, in case that it is not given up.
const RESERVED: Duration = Duration::from_secs(30);
/// The token of this doctor, in the values that it has reserved.
static TOKEN: LazyLock<String> = LazyLock::new(random::id);
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

/// Reserves a scratch value, and the scratch lock with its number, for this doctor: another one that used them at the same time
/// would seem to be a fault of the store. Returns the number; `None` if other doctors have reserved all, which is reported.
///
/// # Errors
/// A request has failed.
pub async fn reserve<C: Dated>(
    client: &mut C,
    key: impl Fn(u64) -> String,
    diagnosis: &Diagnosis,
) -> Result<Option<u64>, StoreError> {
    let first = random::number() % SCRATCH;
    for number in (first..first + SCRATCH).map(|number| number % SCRATCH) {
        diagnosis.begin("conditions");
        let key = key(number);
        let before = client.read(&key).await?;
        if is_reserved(&before) {
            continue;
        }
        let (version, now) = (before.found.version.as_ref(), at(before.time));
        let written = write_ledger(client, &key, version, &held(&TOKEN, now, RESERVED), now).await?;
        // If the write fails without a competing one, the checks report it.
        if written.is_some() || !is_reserved(&client.read(&key).await?) {
            return Ok(Some(number));
        }
    }
    diagnosis.found(Finding::warning(
        "conditions",
        "not tested: other runs of dlock doctor are in progress",
        "faults of the store would not be noticed",
        "try again later",
    ));
    Ok(None)
}

/// Returns whether another doctor has reserved a value.
fn is_reserved<V>(reading: &Reading<V>) -> bool {
    let now = at(reading.time);
    let is_anothers = |holder: &HolderEntry| holder.token != *TOKEN && holder.counts(&now);
    reading.found.ledger.as_ref().is_ok_and(|ledger| ledger.holders.iter().any(is_anothers))
}

/// Gives up a scratch value. If that fails, it is reserved for some more time.
pub async fn give_up<C: Dated>(client: &mut C, key: &str) {
    if let Ok(reading) = client.read(key).await
        && !is_reserved(&reading)
    {
        let (version, now) = (reading.found.version.as_ref(), at(reading.time));
        let _ = write_ledger(client, key, version, &Ledger::default(), now).await;
    }
}

/// Returns a ledger with one holder, whose lease has this length from now on.
pub fn held(token: &str, now: Now, lease: Duration) -> Ledger {
    let mut ledger = Ledger::of_foreign_holder(now.wall);
    for holder in &mut ledger.holders {
        token.clone_into(&mut holder.token);
        holder.identity =
            Identity { pid: std::process::id(), command: "dlock doctor".into(), ..Identity::default() };
        holder.lease_ends = Some(now.clock + lease);
    }
    ledger
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

/// Writes a value, which is reserved by that, under a condition. Returns the version that it has now; `None` if it was refused.
async fn write<C: Dated>(
    client: &mut C,
    key: &str,
    version: Option<&C::Version>,
) -> Result<Option<C::Version>, StoreError> {
    let now = at(client.time());
    write_ledger(client, key, version, &held(&TOKEN, now, RESERVED), now).await
}

/// Does the same with this ledger, at this time.
async fn write_ledger<C: Dated>(
    client: &mut C,
    key: &str,
    version: Option<&C::Version>,
    ledger: &Ledger,
    now: Now,
) -> Result<Option<C::Version>, StoreError> {
    let attempt = random::id();
    let change = Change { version, before: ledger, ledger, now, attempt: &attempt };
    Ok(match client.write(key, &change).await? {
        Written::Stored(found) => found.version,
        // Something on the way has sent the request twice.
        Written::Refused(Some(reading)) if reading.found.is_of(&attempt) => reading.found.version,
        Written::Refused(_) => None,
    })
}
