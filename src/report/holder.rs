//! The JSON form of a holder, used by `--report` and `status --json`.

use std::time::Duration;

use serde::Serialize;

use super::{milliseconds, time};
use crate::lock::{FencingToken, Holder};

/// A holder of a lock, its keys in the order in which they are written. Unknown values are null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HolderView {
    host: Option<String>,
    pid: Option<u32>,
    user: Option<String>,
    command: Option<String>,
    note: Option<String>,
    url: Option<String>,
    phase: &'static str,
    slot: Option<u32>,
    acquired_at: Option<String>,
    expires_in_ms: Option<u64>,
    immortal: bool,
    fencing_token: Option<FencingToken>,
    foreign: bool,
}

impl HolderView {
    /// Returns the view of a holder at `now`, the time since 1970 by the wall clock.
    pub fn new(holder: &Holder, now: Duration) -> HolderView {
        let identity = holder.identity.as_ref();
        HolderView {
            host: identity.map(|identity| identity.host.clone()),
            pid: identity.map(|identity| identity.pid),
            user: identity.map(|identity| identity.user.clone()),
            command: identity.map(|identity| identity.command.clone()),
            note: identity.and_then(|identity| identity.note.clone()),
            url: identity.and_then(|identity| identity.url.clone()),
            phase: holder.phase().as_str(),
            slot: holder.slot,
            acquired_at: holder.age.map(|age| time(now.saturating_sub(age))),
            expires_in_ms: holder.remaining.map(milliseconds),
            immortal: holder.immortal,
            fencing_token: holder.fencing,
            foreign: identity.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Identity;

    fn json(holder: &Holder) -> String {
        let now = Duration::from_millis(1_769_824_860_123);
        serde_json::to_string(&HolderView::new(holder, now)).expect("plain values")
    }

    #[test]
    fn holder_keys_are_in_the_order_of_the_contract() {
        let identity = Identity {
            host: "web-3".into(),
            pid: 4121,
            user: "root".into(),
            command: "backup.sh".into(),
            note: Some("a \"note\"".into()),
            url: Some("https://ci/1".into()),
            ..Identity::default()
        };
        let holder = Holder {
            identity: Some(identity),
            age: Some(Duration::from_secs(60)),
            remaining: Some(Duration::from_millis(24_180)),
            fencing: FencingToken::new(7),
            slot: Some(2),
            ..Holder::default()
        };
        assert_eq!(
            json(&holder),
            r#"{"host":"web-3","pid":4121,"user":"root","command":"backup.sh","note":"a \"note\"","url":"https://ci/1","phase":"running","slot":2,"acquired_at":"2026-01-31T02:00:00.123Z","expires_in_ms":24180,"immortal":false,"fencing_token":7,"foreign":false}"#
        );
        let kept = Holder { ended: Some(Duration::from_secs(1)), ..holder };
        assert!(json(&kept).contains(r#""phase":"min_hold""#));
    }

    #[test]
    fn unknown_values_of_a_foreign_holder_are_null() {
        assert_eq!(
            json(&Holder { immortal: true, ..Holder::default() }),
            r#"{"host":null,"pid":null,"user":null,"command":null,"note":null,"url":null,"phase":"unknown","slot":null,"acquired_at":null,"expires_in_ms":null,"immortal":true,"fencing_token":null,"foreign":true}"#
        );
    }
}
