//! The rendering in Lua: requests as redis/script.rs writes them.

use std::time::Duration;

use dlock::backend::admin::{Removal, Revoked};
use dlock::backend::{Ending, Intent};
use dlock::lock::record::RecordKind;
use dlock::lock::{
    Claim, FencingToken, FreezeRequest, Identity, LockState, Mode, NotedRecord, Record, Revocation,
};
use serde_json::{Value as Json, json};

use super::answers::{self, Answer, Sight};
use super::lua::{Interpreter, Script};
use super::redis::Redis;

pub(super) const LOCK: &str = "dlock:x";
const TAIL: &str = "{dlock:x}";
const INDEX: &str = "dlock#locks";
/// See `counter_ttl` in redis/store.rs.
const COUNTER_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The number of outcomes that are shown.
const ALL: &str = "-1";

fn side(what: &str) -> String {
    format!("dlock#{what}:{TAIL}")
}

fn ms(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap()
}

fn list_of(record: &Record) -> String {
    side(match record.kind() {
        RecordKind::Succeeded => "succeeded",
        RecordKind::Held => "history",
        RecordKind::Missed => "missed",
    })
}

/// Returns a request with these fields.
fn request(operation: &str, token: &str, history: String, fields: Json) -> Json {
    let mut request = json!({
        "token": token, "operation": operation, "tail": TAIL, "index": INDEX, "history": history, "recipe": {},
    });
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

/// A lock on a server.
pub(super) struct Scripted<'a> {
    pub(super) interpreter: &'a Interpreter,
    pub(super) server: &'a mut Redis,
}

impl Scripted<'_> {
    fn run(&mut self, operation: &str, token: &str, fields: Json) -> Json {
        self.run_recording(operation, token, side("history"), fields)
    }

    fn run_recording(&mut self, operation: &str, token: &str, history: String, fields: Json) -> Json {
        let request = request(operation, token, history, fields);
        let script = match operation {
            "acquire" | "fence" => Script::Claim,
            "renew" | "release" | "record" => Script::Hold,
            _ => Script::Administer,
        };
        self.interpreter.run(self.server, script, LOCK, &request)
    }

    /// `attempt` counts the requests of the client for this lock.
    pub(super) fn claim(&mut self, claim: &Claim, intent: Intent, attempt: u64) -> Answer {
        let (mode, slots) = match claim.mode {
            Mode::Exclusive => ("x", 1),
            Mode::Shared => ("s", 1),
            Mode::Slots(slots) => ("c", slots),
        };
        let token = claim.token.reveal();
        let channel = format!("{}:{token}", side("call"));
        if intent == Intent::Enqueue && !self.server.subscriptions.contains(&channel) {
            self.server.subscriptions.push(channel);
        }
        let mut fields = json!({
            "lease": ms(claim.ttl.max(claim.min_hold)),
            "ttl": ms(claim.ttl),
            "attempt": attempt,
            "identity": serde_json::to_string(&claim.identity).unwrap(),
            "counter_life": ms(COUNTER_LIFE),
            "mode": mode,
            "slots": slots,
            "waits": intent == Intent::Enqueue,
            "delivery": if intent == Intent::Enqueue { "1" } else { "0" },
            "entry_ttl": ms(claim.ttl + claim.ttl / 2),
            "outer": claim.outer.iter().map(|token| token.reveal()).collect::<Vec<_>>(),
            "must_nest": claim.requires_outer_hold,
            "eviction": false,
            "tries_rights": false,
        });
        if let Some(period) = claim.once_per {
            fields["once_per"] = ms(period).into();
        }
        if claim.identity.supersedes {
            fields["supersedes"] = true.into();
        }
        answers::of_script(&self.run("acquire", token, fields), claim.once_per)
    }

    pub(super) fn renew(&mut self, claim: &Claim, rest: Duration) -> Answer {
        let lease = ms(claim.ttl.max(rest));
        answers::of_renewal(&self.run("renew", claim.token.reveal(), json!({ "lease": lease })), claim.ttl)
    }

    /// `attempt` is the last one of the client.
    pub(super) fn release(
        &mut self,
        claim: &Claim,
        rest: Duration,
        ending: Ending<'_>,
        attempt: u64,
    ) -> Answer {
        let mut fields = json!({ "rest": ms(rest), "attempt": attempt });
        if let Some(record) = ending.record {
            fields["record"] = serde_json::to_string(record).unwrap().into();
        }
        if let Some(held) = ending.success {
            let Identity { host, pid, user, .. } = &claim.identity;
            let by = json!({"host": host, "pid": pid, "user": user}).to_string();
            fields["success"] = json!({ "by": by, "held": ms(held) });
        }
        let history = ending.record.map_or(side("history"), list_of);
        answers::of_release(&self.run_recording("release", claim.token.reveal(), history, fields))
    }

    pub(super) fn revoke(&mut self, fencing: FencingToken, revocation: &Revocation) -> Answer {
        let revocation = serde_json::to_string(revocation).unwrap();
        let reply =
            self.run("revoke", "", json!({ "fencing": fencing.to_string(), "revocation": revocation }));
        Answer::Revoked(match answers::of_revocation(&reply) {
            (0, 0) => Revoked::Gone,
            (0, _) => Revoked::Ended,
            (notified, _) => Revoked::Notified(notified),
        })
    }

    pub(super) fn remove(&mut self, fencing: FencingToken) -> Answer {
        let reply = self.run("revoke", "", json!({ "fencing": fencing.to_string() }));
        Answer::Removed(match answers::of_revocation(&reply) {
            (_, 0) => Removal::Changed,
            _ => Removal::Removed,
        })
    }

    pub(super) fn raise(&mut self, floor: FencingToken) -> Answer {
        let fields = json!({ "floor": floor.to_string(), "counter_life": ms(COUNTER_LIFE) });
        answers::of_raise(&self.run("raise", "", fields))
    }

    pub(super) fn freeze(&mut self, request: &FreezeRequest) -> Answer {
        let FreezeRequest { id, by, reason, lasts } = request;
        let freeze = json!({ "id": id, "by": by, "reason": reason }).to_string();
        let mut fields = json!({ "id": id, "freeze": freeze });
        if let Some(lasts) = lasts {
            fields["lasts"] = ms(*lasts).into();
        }
        answers::of_freeze(&self.run("freeze", "", fields), id)
    }

    pub(super) fn thaw(&mut self, id: &str) -> Answer {
        answers::of_thaw(&self.run("thaw", "", json!({ "id": id })))
    }

    pub(super) fn record(&mut self, record: &Record) -> Answer {
        let fields = json!({ "record": serde_json::to_string(record).unwrap() });
        let reply = self.run_recording("record", "", list_of(record), fields);
        assert_eq!(reply["outcome"], "done");
        Answer::Recorded
    }

    /// Returns what is seen of the lock, and of the hold of a token.
    pub(super) fn sight(&mut self, token: &str, free: LockState) -> Sight {
        let lock = json!({ "lock": LOCK, "tail": TAIL, "holders_seen": 0, "waiters_seen": 0 });
        let request = json!({ "index": INDEX, "token": token, "own_type": "string", "locks": [lock] });
        let reply = self.interpreter.run(self.server, Script::Look, LOCK, &request);
        let state = answers::of_look(&reply, free);
        let counter = self.server.execute(&["GET".to_owned(), side("fencing")]);
        let last_fencing_token = match counter {
            super::redis::Reply::Text(number) => number.parse().unwrap(),
            _ => 0,
        };
        Sight { state, queue: self.queue(), last_fencing_token, history: self.history() }
    }

    fn queue(&self) -> Vec<(String, Option<Duration>)> {
        let now = self.server.now / 1000;
        let live = |token: String| {
            let entry = self.server.field(&side("waiters"), &token)?;
            let numbers: Vec<u64> =
                entry.split(' ').skip(3).take(2).map(|number| number.parse().unwrap()).collect();
            let [ends, claims_until] = numbers[..] else { panic!("{entry}") };
            let is_alive = ends > now && (claims_until == 0 || claims_until > now);
            let left = (claims_until > 0).then(|| Duration::from_millis(claims_until.saturating_sub(now)));
            is_alive.then_some((token, left))
        };
        self.server.members(&side("queue")).into_iter().filter_map(live).collect()
    }

    /// The outcomes of all lists, the latest first.
    fn history(&mut self) -> Vec<NotedRecord> {
        let mut records = Vec::new();
        for list in ["succeeded", "history", "missed"] {
            let command = ["LRANGE", &side(list), "0", ALL].map(str::to_owned);
            let super::redis::Reply::Array(entries) = self.server.execute(&command) else { continue };
            records.extend(entries.into_iter().map(|entry| {
                let super::redis::Reply::Text(entry) = entry else { panic!("{entry:?}") };
                let (at, record) = entry.split_once(' ').unwrap();
                (at.parse().unwrap(), serde_json::from_str(record).unwrap())
            }));
        }
        records.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        records
    }
}
