//! A Lease, as the lock of a ledger: its fields are those that client-go's leader election reads and writes
//! (`client-go/tools/leaderelection`), and an annotation has the ledger.
//!
//! | in the annotation | besides the ledger |
//! |---|---|
//! | `attempt` | the number of the attempt that has written the Lease last, of all that dlock has made |
//! | `holder` | `spec.holderIdentity` as it was written then |
//!
//! A Lease whose holder is another one was written by another program since: no hold in the ledger counts any more.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::backend::ledger::dated::Change;
use crate::backend::ledger::document::digest;
use crate::backend::ledger::polling::CLOCK_LAG;
use crate::backend::ledger::{HolderEntry, Ledger, Now};

/// The annotation with the ledger.
pub(super) const LEDGER: &str = "dlock-ledger";

/// Why a Lease whose `spec.strategy` is set is not a lock.
const ELECTED: &str = "a controller of Kubernetes chooses its holder (spec.strategy): use another name";

/// A Lease as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lease {
    /// All that is to be written again, known or not.
    object: Value,
    /// When the server has seen its holder or its renewal change last, in whole seconds since 1970.
    pub changed: Option<Duration>,
    /// What its annotation has besides the ledger.
    pub mark: Mark,
}

/// What an annotation has besides the ledger.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Mark {
    #[serde(default)]
    pub attempt: Option<String>,
    #[serde(default)]
    holder: String,
}

impl Lease {
    /// Returns a Lease that is not stored yet.
    pub fn new(namespace: &str, name: &str) -> Lease {
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": name, "namespace": namespace },
            "spec": {},
        });
        Lease { object, changed: None, mark: Mark::default() }
    }

    /// Reads an object of the server; `None` if it is not a Lease.
    pub fn of(mut object: Value) -> Option<Lease> {
        let spec = object.as_object_mut()?.entry("spec").or_insert(json!({}));
        spec.as_object()?;
        let metadata = object.get_mut("metadata")?.as_object_mut()?;
        metadata.get("resourceVersion")?.as_str()?;
        let annotations = metadata.entry("annotations").or_insert(json!({})).as_object()?;
        let ledger = annotations.get(LEDGER).and_then(Value::as_str).unwrap_or_default();
        let mark = serde_json::from_str(ledger).unwrap_or_default();
        let managers = metadata.remove("managedFields");
        let times = managers.iter().filter_map(Value::as_array).flatten().filter_map(|manager| {
            let fields = manager["fieldsV1"]["f:spec"].as_object()?;
            let is_its = fields.contains_key("f:renewTime") || fields.contains_key("f:holderIdentity");
            let time: Timestamp = manager["time"].as_str().filter(|_| is_its)?.parse().ok()?;
            time.as_second().try_into().ok().map(Duration::from_secs)
        });
        let changed = times.max();
        Some(Lease { object, changed, mark })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Returns its version.
    pub fn version(&self) -> &str {
        self.object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }

    /// Returns the annotation with the ledger.
    pub fn annotation(&self) -> Option<&str> {
        self.object["metadata"]["annotations"][LEDGER].as_str()
    }

    /// Returns who holds it, for all programs, and when that was confirmed, as the holder says.
    pub fn renewal(&self) -> (&str, &str) {
        let text = |field: &str| self.object["spec"][field].as_str().unwrap_or_default();
        (text("holderIdentity"), text("renewTime"))
    }

    /// Returns the ledger, with the hold of another program as that of a foreign holder: it counts from the server's time of its
    /// last renewal, or else from when it was `seen` first.
    ///
    /// # Errors
    /// Why it is not a lock.
    pub fn ledger(&self, seen: Duration) -> Result<Ledger, String> {
        if self.object["spec"]["strategy"].as_str().is_some_and(|strategy| !strategy.is_empty()) {
            return Err(ELECTED.to_owned());
        }
        let ledger = self.annotation().map(|text| Ledger::parse(text.as_bytes())).transpose();
        let ledger = ledger.map_err(|why| format!("its annotation {LEDGER}: {why}"))?;
        let (mut ledger, (holder, _)) = (ledger.unwrap_or_default(), self.renewal());
        let written = &self.mark.holder;
        if holder != written {
            ledger.holders.clear();
        }
        if holder != written && !holder.is_empty() {
            let spec = &self.object["spec"];
            let acquired = spec["acquireTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
            let acquired = acquired.and_then(|time| time.as_microsecond().try_into().ok()).unwrap_or(0);
            let lease = spec["leaseDurationSeconds"].as_u64().filter(|seconds| *seconds > 0);
            let lease = lease.map(Duration::from_secs);
            for mut foreign in Ledger::of_foreign_holder(acquired).holders {
                // What was shown is not removed if another program has the lock by then.
                foreign.ticket = digest(&format!("{holder} {acquired}")).0;
                foreign.lease = lease;
                let since = self.changed.unwrap_or(seen) + CLOCK_LAG;
                foreign.lease_ends = lease.map(|lease| since.saturating_add(lease));
                ledger.holders.push(foreign);
            }
        }
        Ok(ledger)
    }

    /// Returns what is to be written; `past` is a time that the server's clock has reached by now. The version stays in it, if it
    /// has one: the server refuses it for another one.
    pub fn changed(&self, change: &Change<'_, Lease>, past: Duration) -> String {
        let Change { before, ledger: after, attempt, now, .. } = change;
        let mut object = self.object.clone();
        let is_foreign = |holder: &&HolderEntry| holder.identity().is_none();
        let mut ledger = (*after).clone();
        ledger.holders.retain(|holder| !is_foreign(&holder));
        let of_freeze = || ledger.live_freeze(*now).map(|(freeze, _)| format!("dlock-freeze_{}", freeze.id));
        let written = ledger.holders.first().map(identity).or_else(of_freeze).unwrap_or_default();
        if after.holders.iter().find(is_foreign).is_none() {
            let (holder, _) = self.renewal();
            let is_renewed = holder != written || (!written.is_empty() && before.holders != after.holders);
            let is_new = holder != written;
            let spec = object["spec"].as_object_mut().expect("checked when it was read");
            if is_renewed {
                renew(spec, &written, rest(change, &ledger, past), is_new, *now);
            }
        }
        let mut document = json!({ "attempt": attempt, "holder": written });
        let Ok(Value::Object(fields)) = serde_json::to_value(&ledger) else {
            unreachable!("a ledger is an object")
        };
        document.as_object_mut().expect("it was made so").extend(fields);
        object["metadata"]["annotations"][LEDGER] = document.to_string().into();
        object.to_string()
    }
}

/// Writes who holds the Lease, and for how many seconds; nobody, for an empty text.
fn renew(spec: &mut Map<String, Value>, holder: &str, seconds: u64, is_new: bool, now: Now) {
    let time = Timestamp::from_microsecond(now.wall.try_into().unwrap_or(i64::MAX)).unwrap_or(Timestamp::MAX);
    let time = Value::from(format!("{time:.6}"));
    if is_new && !holder.is_empty() {
        let transitions = spec.get("leaseTransitions").and_then(Value::as_u64);
        spec.insert("leaseTransitions".into(), transitions.map_or(0, |count| count + 1).into());
    }
    spec.insert("holderIdentity".into(), holder.into());
    spec.insert("leaseDurationSeconds".into(), seconds.into());
    if is_new {
        spec.insert("acquireTime".into(), time.clone());
    }
    spec.insert("renewTime".into(), time);
}

/// Returns how many seconds the lock is held at most unless it is renewed, or frozen if nobody holds it; 1 if neither. The time
/// of the change may be ahead, for which only a lease makes up that counts from it: other programs count the whole duration anew
/// at each change.
fn rest(change: &Change<'_, Lease>, ledger: &Ledger, past: Duration) -> u64 {
    let frozen = ledger.live_freeze(change.now).map(|(_, rest)| rest);
    if let Some(frozen) = frozen.filter(|_| ledger.holders.is_empty()) {
        return whole_seconds(frozen);
    }
    let ends = |holder: &HolderEntry| holder.lease_ends.max(holder.kept_until);
    let last = ledger.holders.iter().filter_map(ends).max().unwrap_or_default();
    let is_counted_now = change.before.holders.iter().all(|holder| ends(holder) != Some(last));
    let time = if is_counted_now { change.now.clock } else { past };
    whole_seconds(last.saturating_sub(time))
}

fn whole_seconds(rest: Duration) -> u64 {
    let seconds = rest.as_secs().saturating_add(u64::from(rest.subsec_nanos() > 0));
    seconds.clamp(1, i32::MAX.unsigned_abs().into())
}

/// Returns what identifies a holder for all programs: unique, and without its token.
fn identity(holder: &HolderEntry) -> String {
    format!("{}_{}_{:016x}", holder.identity.host, holder.identity.pid, digest(&holder.token).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { clock: Duration::from_secs(1_000), wall: 1_000_000_000 };

    fn lease(spec: &Value) -> Lease {
        let metadata = json!({ "name": "x", "resourceVersion": "1" });
        Lease::of(json!({ "kind": "Lease", "metadata": metadata, "spec": spec })).expect("a Lease")
    }

    /// Returns the Lease as it is after this change.
    fn written(lease: &Lease, before: &Ledger, after: &Ledger) -> Lease {
        written_at(lease, before, after, NOW.clock)
    }

    /// The same when the clock of the server may show no more than this.
    fn written_at(lease: &Lease, before: &Ledger, after: &Ledger, past: Duration) -> Lease {
        let change = Change { version: None, before, ledger: after, attempt: "a", now: NOW };
        let object = serde_json::from_str(&lease.changed(&change, past)).expect("JSON");
        Lease::of(object).expect("a Lease")
    }

    fn held(ends: u64) -> Ledger {
        let mut ledger = Ledger::of_foreign_holder(0);
        let holder = &mut ledger.holders[0];
        (holder.token, holder.lease_ends) = ("t".to_owned(), Some(Duration::from_secs(ends)));
        (holder.identity.host, holder.identity.pid) = ("h".to_owned(), 7);
        ledger
    }

    #[test]
    fn a_lease_has_the_holder_of_its_ledger() {
        let (free, first, renewed) = (Ledger::default(), held(1_032), held(1_042));
        let taken = written(&lease(&json!({})), &free, &first);
        // The digits are those of `printf t | sha256sum`.
        assert_eq!(taken.renewal(), ("h_7_e3b98a4da31a127d", "1970-01-01T00:16:40.000000Z"));
        assert_eq!(taken.object["spec"]["leaseDurationSeconds"], 32);
        assert_eq!(taken.object["spec"]["leaseTransitions"], 0);
        assert_eq!(taken.ledger(Duration::ZERO), Ok(first.clone()));
        assert_eq!(taken.mark.attempt.as_deref(), Some("a"));
        // A waiter changes nothing that other programs look at.
        let mut joined = first.clone();
        joined.waiters = Ledger::of_foreign_waiter(1).waiters;
        assert_eq!(written(&taken, &first, &joined).object["spec"], taken.object["spec"]);
        let kept = written(&taken, &first, &renewed);
        assert_eq!(kept.object["spec"]["leaseDurationSeconds"], 42);
        let released = written(&kept, &renewed, &free);
        assert_eq!((released.renewal().0, &released.object["spec"]["leaseDurationSeconds"]), ("", &json!(1)));
        assert_eq!(written(&released, &free, &first).object["spec"]["leaseTransitions"], 1);
    }

    /// As by the end of a run inside the hold, or by a `dlock break`, after a reply that took long.
    #[test]
    fn the_change_of_another_client_leaves_the_holder_its_whole_lease() {
        let mut both = held(1_032);
        both.holders.push(held(1_020).holders[0].clone());
        both.holders[1].token = "inner".to_owned();
        let taken = written(&lease(&json!({})), &Ledger::default(), &both);
        let left = written_at(&taken, &both, &held(1_032), NOW.clock - Duration::from_secs(4));
        assert_eq!(left.object["spec"]["leaseDurationSeconds"], 36);
        // Its own renewal counts from the time that it was decided on.
        let renewed = written_at(&taken, &both, &held(1_042), NOW.clock - Duration::from_secs(4));
        assert_eq!(renewed.object["spec"]["leaseDurationSeconds"], 42);
    }

    #[test]
    fn another_holder_is_foreign_and_ends_all_holds() {
        let mut taken = written(&lease(&json!({})), &Ledger::default(), &held(1_032));
        let spec = taken.object["spec"].as_object_mut().expect("an object");
        spec.insert("holderIdentity".into(), "c".into());
        spec.insert("leaseDurationSeconds".into(), 15.into());
        let ledger = taken.ledger(Duration::from_secs(2_000)).expect("a ledger");
        let [holder] = ledger.holders.as_slice() else { panic!("{ledger:?}") };
        assert_eq!((holder.identity(), holder.lease_ends), (None, Some(Duration::from_secs(2_000 + 2 + 15))));
        // It is not written, and neither is the ledger's own holder.
        let joined = written(&taken, &ledger, &ledger);
        assert_eq!(joined.object["spec"], taken.object["spec"]);
        assert_eq!(joined.ledger(Duration::from_secs(2_000)), Ok(ledger));
        taken.object["spec"]["holderIdentity"] = "".into();
        assert_eq!(taken.ledger(Duration::ZERO).map(|ledger| ledger.holders.len()), Ok(0));
    }

    #[test]
    fn the_lease_of_another_program_counts_from_the_time_of_the_server() {
        let manager =
            |time: &str, field: &str| json!({ "time": time, "fieldsV1": { "f:spec": { field: {} } } });
        let managers = json!([
            manager("1970-01-01T00:01:00Z", "f:renewTime"),
            manager("1970-01-01T00:02:00Z", "f:leaseTransitions"),
            { "time": "1970-01-01T00:03:00Z", "fieldsV1": { "f:metadata": {} } },
        ]);
        let metadata = json!({ "resourceVersion": "1", "managedFields": managers });
        let spec = json!({ "holderIdentity": "c", "leaseDurationSeconds": 15 });
        let lease = Lease::of(json!({ "metadata": metadata, "spec": spec })).expect("a Lease");
        let ledger = lease.ledger(Duration::from_secs(9_000)).expect("a ledger");
        assert_eq!(ledger.holders[0].lease_ends, Some(Duration::from_secs(60 + 2 + 15)));
    }

    #[test]
    fn what_is_no_lock_is_refused() {
        for object in
            [json!([]), json!({}), json!({ "metadata": { "resourceVersion": 1 } }), json!({ "metadata": [] })]
        {
            assert!(Lease::of(object.clone()).is_none(), "{object}");
        }
        let elected = lease(&json!({ "strategy": "OldestEmulationVersion" }));
        assert_eq!(elected.ledger(Duration::ZERO), Err(ELECTED.to_owned()));
        let mut damaged = lease(&json!({}));
        damaged.object["metadata"]["annotations"][LEDGER] = "{".into();
        let why = "its annotation dlock-ledger: not written by dlock, or damaged";
        assert_eq!(damaged.ledger(Duration::ZERO), Err(why.to_owned()));
    }
}
