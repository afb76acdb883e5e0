//! What users see of a lock, in one form for both renderings.

use std::time::Duration;

use dlock::backend::admin::{Frozen, Raised, Removal, Revoked};
use dlock::backend::{Attempt, Busy, Loss, Refusal, Release, Renewal};
use dlock::lock::{
    Due, FencingToken, Freeze, Grant, Holder, Identity, LockState, Mode, NotDue, Record, Success, Waiter,
};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted(Grant),
    Busy(Contention),
    Refused(Refusal),
    NotDue(NotDue),
    Renewed(Renewal),
    Ended(Release),
    Revoked(Revoked),
    Removed(Removal),
    Raised(Raised),
    Frozen(Frozen),
    Thawed(bool),
    Recorded,
}

/// Why a claim has to wait. When it asks again is not part of the meaning of a lock: a store that notifies only the first
/// waiters has the others ask at other times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contention {
    pub(super) holders: Vec<Named>,
    pub(super) more: usize,
    pub(super) position: Option<u32>,
    pub(super) promised: bool,
    pub(super) freeze: Option<Box<Freeze>>,
}

/// A holder as it is named to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) host: Option<String>,
    pub(super) age: Option<Duration>,
    pub(super) ended: Option<Duration>,
    pub(super) fencing: Option<FencingToken>,
}

/// What is seen of a lock without a request for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    pub(super) state: LockState,
    /// The live waiters in order, each with the time that it has left to claim the lock, if it was called.
    pub(super) queue: Vec<(String, Option<Duration>)>,
    pub(super) last_fencing_token: u64,
    pub(super) history: Vec<(u64, Record)>,
}

impl Answer {
    /// Returns the reply to a claim.
    pub(super) fn to_claim(attempt: Attempt) -> Answer {
        match attempt {
            Attempt::Granted(grant) => Answer::Granted(grant),
            Attempt::Busy(Busy { holders, more, position, promised, freeze, .. }) => {
                let mut holders: Vec<Named> = holders.into_iter().map(named).collect();
                sort(&mut holders);
                Answer::Busy(Contention { holders, more, position, promised, freeze })
            }
            Attempt::Refused(refusal) => Answer::Refused(refusal),
            Attempt::NotDue(not_due) => Answer::NotDue(not_due),
        }
    }
}

fn named(holder: Holder) -> Named {
    let Holder { identity, age, ended, fencing, .. } = holder;
    Named { host: identity.map(|identity| identity.host), age, ended, fencing }
}

fn sort(holders: &mut [Named]) {
    holders.sort_by(|one, other| one.host.cmp(&other.host));
}

/// Reads a field of a reply.
fn field<T: DeserializeOwned>(reply: &Json, name: &str) -> Option<T> {
    reply.get(name).map(|value| {
        let read = serde_json::from_value(value.clone());
        read.unwrap_or_else(|error| panic!("{name} of {reply}: {error}"))
    })
}

fn text(reply: &Json, name: &str) -> String {
    field(reply, name).unwrap_or_else(|| panic!("{reply} lacks {name}"))
}

/// A time in ms, unless it is negative.
fn time(reply: &Json, name: &str) -> Option<Duration> {
    let ms: f64 = field(reply, name)?;
    (ms >= 0.0).then(|| Duration::from_millis(ms as u64))
}

fn mode(name: &str, slots: u32) -> Option<Mode> {
    match name {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        "c" => Some(Mode::of_slots(slots)),
        _ => None,
    }
}

/// Reads the reply of a script on a lock, as redis/result.rs does.
pub(super) fn of_script(reply: &Json, once_per: Option<Duration>) -> Answer {
    match text(reply, "outcome").as_str() {
        "granted" => Answer::Granted(Grant {
            fencing: Some(text(reply, "fencing").parse().map(FencingToken::new).unwrap().unwrap()),
            lease: time(reply, "lease"),
            slot: field(reply, "slot"),
            undated: time(reply, "undated"),
        }),
        "superseded" => {
            let newer = serde_json::from_str(&text(reply, "by")).unwrap();
            Answer::Refused(Refusal::Superseded(Box::new(newer)))
        }
        "busy" => {
            let now: u64 = field(reply, "now").unwrap();
            let records: Vec<String> = field(reply, "records").unwrap_or_default();
            let mut holders: Vec<Named> =
                records.iter().map(|record| named(holder_of_record(record, now))).collect();
            let more = field::<usize>(reply, "holders").unwrap().saturating_sub(holders.len());
            if holders.is_empty() && text(reply, "kind") != "free" {
                holders.push(named(Holder::default()));
            }
            sort(&mut holders);
            let position = field(reply, "position").filter(|position| *position > 0);
            let promised = !time(reply, "call_remaining").unwrap().is_zero();
            let freeze = freeze_in(reply).map(Box::new);
            Answer::Busy(Contention { holders, more, position, promised, freeze })
        }
        "not_due" => {
            let last = Success::parse(&serde_json::from_str(&text(reply, "success")).unwrap()).unwrap();
            match last.due(field(reply, "now").unwrap(), once_per.unwrap()) {
                Due::Not(not_due) => Answer::NotDue(not_due),
                due => panic!("{due:?}"),
            }
        }
        "outer_mode" => {
            let outer = mode(&text(reply, "mode"), field(reply, "slots").unwrap()).unwrap();
            Answer::Refused(Refusal::Inside(outer))
        }
        "other_slots" => Answer::Refused(Refusal::Slots(field(reply, "slots").unwrap())),
        "outer_lost" => Answer::Refused(Refusal::OuterLost),
        other => panic!("{other} is not a reply to a claim: {reply}"),
    }
}

/// Reads the reply to a renewal with this ttl.
pub(super) fn of_renewal(reply: &Json, ttl: Duration) -> Answer {
    Answer::Renewed(match text(reply, "outcome").as_str() {
        "renewed" => Renewal::Held {
            lease: Some(ttl),
            revoked: field::<String>(reply, "revocation").map(|text| serde_json::from_str(&text).unwrap()),
        },
        "gone" => Renewal::Lost(Loss::Gone),
        "taken" => Renewal::Lost(Loss::Taken),
        other => panic!("{other} is not a reply to a renewal: {reply}"),
    })
}

pub(super) fn of_release(reply: &Json) -> Answer {
    assert_eq!(reply.get("unrecorded"), None);
    Answer::Ended(match text(reply, "outcome").as_str() {
        "released" => Release::Released,
        "kept" => Release::Kept,
        "gone" | "taken" => Release::NotHeld,
        other => panic!("{other} is not a reply to a release: {reply}"),
    })
}

/// Returns how many holders were notified, and how many holds were removed.
pub(super) fn of_revocation(reply: &Json) -> (usize, usize) {
    match text(reply, "outcome").as_str() {
        "ended" => (field(reply, "notified").unwrap(), field(reply, "removed").unwrap()),
        "gone" => (0, 0),
        other => panic!("{other} is not a reply to a revocation: {reply}"),
    }
}

pub(super) fn of_raise(reply: &Json) -> Answer {
    Answer::Raised(match text(reply, "outcome").as_str() {
        "raised" => Raised::Done,
        "held" => Raised::Held,
        "above" => Raised::Above(text(reply, "fencing").parse().map(FencingToken::new).unwrap().unwrap()),
        other => panic!("{other} is not a reply to a raise: {reply}"),
    })
}

/// Reads the freeze of the lock, if there is one.
fn freeze_in(reply: &Json) -> Option<Freeze> {
    field::<String>(reply, "freeze").map(|text| serde_json::from_str(&text).unwrap())
}

/// Reads the reply to a freeze with this id.
pub(super) fn of_freeze(reply: &Json, id: &str) -> Answer {
    assert_eq!(text(reply, "outcome"), "frozen");
    let freeze = freeze_in(reply).unwrap();
    let was_there: bool = field(reply, "was_there").unwrap();
    Answer::Frozen(match (freeze.id == id, was_there) {
        (true, false) => Frozen::Done(freeze),
        (true, true) => Frozen::Kept(freeze),
        (false, _) => Frozen::Already(freeze),
    })
}

pub(super) fn of_thaw(reply: &Json) -> Answer {
    Answer::Thawed(match text(reply, "outcome").as_str() {
        "done" => true,
        "gone" => false,
        other => panic!("{other} is not a reply to a thaw: {reply}"),
    })
}

/// Reads the record of a member.
fn holder_of_record(record: &str, now: u64) -> Holder {
    let record: Json = serde_json::from_str(record).unwrap();
    let ago = |then: u64| Duration::from_millis(now.saturating_sub(then));
    let at: u64 = field(&record, "at").unwrap();
    Holder {
        identity: field(&record, "identity"),
        age: Some(ago(at)),
        acquired_at: Some(Duration::from_millis(at)),
        ended: field(&record, "ended").map(ago),
        fencing: field(&record, "fencing"),
        lease: time(&record, "lease"),
        ..Holder::default()
    }
}

/// Reads the state of one lock in the reply of look.lua, as redis/inspect/view.rs does.
pub(super) fn of_look(reply: &Json, free: LockState) -> LockState {
    let now: u64 = field(reply, "now").unwrap();
    let lock = &reply["locks"][0];
    let all = |name| lock.get(name).and_then(Json::as_array).cloned().unwrap_or_default();
    let holder = |holder: &Json| Holder {
        remaining: time(holder, "remaining"),
        slot: text(holder, "slot").parse().ok(),
        ours: field(holder, "is_ours").unwrap(),
        revoked: field::<String>(holder, "revocation").map(|text| serde_json::from_str(&text).unwrap()),
        ..holder_of_record(&text(holder, "record"), now)
    };
    let waiter = |waiter: &Json| Waiter {
        identity: serde_json::from_str::<Identity>(&text(waiter, "identity")).ok(),
        mode: mode(&text(waiter, "mode"), text(waiter, "slots").parse().unwrap()).unwrap(),
        waiting: Duration::from_millis(
            now.saturating_sub((text(waiter, "number").parse::<f64>().unwrap() / 1000.0) as u64),
        ),
    };
    let mode = mode(&text(lock, "mode"), text(lock, "slots").parse().unwrap_or(0));
    let success = serde_json::from_str::<Json>(&text(lock, "success")).ok();
    LockState {
        mode: mode.filter(|_| !all("holders").is_empty()),
        holders: all("holders").iter().map(holder).collect(),
        waiters: all("waiters").iter().map(waiter).collect(),
        freeze: freeze_in(lock).filter(|freeze| freeze.rest(now).is_some()),
        last_success: success.and_then(|success| Success::parse(&success).ok()),
        ..free
    }
}
