//! What the command finds in its environment (`DLOCK_*`).

use serde::{Deserialize, Serialize};

use crate::child::protocol::{Group, Launch};
use crate::config;
use crate::lock::{Claim, FencingToken, Grant};

/// The command's part of the environment (`DLOCK_*`).
pub(super) fn launch(claim: &Claim, grant: &Grant, store: &str) -> Launch {
    let mut set = vec![
        ("DLOCK_NAME".to_owned(), claim.name.as_str().to_owned()),
        ("DLOCK_TOKEN".to_owned(), claim.token.reveal().to_owned()),
    ];
    let mut unset = Vec::new();
    match grant.fencing {
        Some(fencing) => set.push(("DLOCK_FENCING_TOKEN".to_owned(), fencing.to_string())),
        None => unset.push("DLOCK_FENCING_TOKEN".to_owned()),
    }
    let held = Held {
        name: claim.name.as_str(),
        token: claim.token.reveal(),
        fencing_token: grant.fencing,
        mode: "exclusive",
        backend: store,
        pid: claim.identity.pid,
        start: claim.identity.start,
        boot: &claim.identity.boot,
    };
    set.push(("DLOCK_HELD".to_owned(), held.appended_to(outer_holds())));
    Launch { set, unset, group: Group::Shared, not_after: None }
}

/// One lock in `DLOCK_HELD`.
#[derive(Serialize)]
struct Held<'a> {
    name: &'a str,
    token: &'a str,
    fencing_token: Option<FencingToken>,
    mode: &'a str,
    backend: &'a str,
    pid: u32,
    start: u64,
    boot: &'a str,
}

impl Held<'_> {
    fn appended_to(&self, mut outer: Vec<serde_json::Value>) -> String {
        outer.extend(serde_json::to_value(self));
        serde_json::Value::Array(outer).to_string()
    }
}

/// What an outer dlock holds, outermost first; garbage counts as nothing.
fn outer_holds() -> Vec<serde_json::Value> {
    #[derive(Deserialize)]
    struct Entry {
        name: String,
        token: String,
    }
    let text = config::variable("DLOCK_HELD").and_then(|value| value.into_string().ok()).unwrap_or_default();
    let entries: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    let valid = |entry: &serde_json::Value| {
        Entry::deserialize(entry).is_ok_and(|entry| !entry.name.is_empty() && !entry.token.is_empty())
    };
    if entries.iter().all(valid) { entries } else { Vec::new() }
}
