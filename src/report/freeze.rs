//! A freeze, in words.

use jiff::{Timestamp, Zoned, tz::TimeZone};
use serde_json::{Value, json};

use super::time;
use crate::lock::{Freeze, LockName};
use std::time::Duration;

/// Describes a freeze as `deploy is frozen by ops@web-1 until 23:10 for 'db move'`.
pub fn describe_freeze(name: &LockName, freeze: &Freeze) -> String {
    format!("{name} is {}", frozen_by(freeze))
}

/// Describes a freeze without the name of its lock, likewise.
pub fn frozen_by(freeze: &Freeze) -> String {
    let until = freeze.until.map(|until| format!(" until {}", clock(until, &Zoned::now())));
    let reason = freeze.reason.as_ref().map(|reason| format!(" for '{reason}'"));
    format!("frozen by {}{}{}", freeze.by, until.unwrap_or_default(), reason.unwrap_or_default())
}

/// Returns the time of the day at a time in ms since 1970, with the date if that is not today.
fn clock(at_ms: u64, now: &Zoned) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    let at = at.unwrap_or(Timestamp::MAX).to_zoned(TimeZone::system());
    let date = if at.date() == now.date() { "" } else { "%Y-%m-%d " };
    at.strftime(&format!("{date}%H:%M")).to_string()
}

/// Returns a freeze for programs.
pub(super) fn json(freeze: &Freeze) -> Value {
    let rfc3339 = |at_ms: u64| time(Duration::from_millis(at_ms));
    json!({
        "id": freeze.id,
        "by": freeze.by,
        "reason": freeze.reason,
        "since": rfc3339(freeze.since),
        "until": freeze.until.map(rfc3339),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_is_described_by_who_until_when_and_why() {
        let name = LockName::new("deploy").expect("a name");
        let mut freeze =
            Freeze { id: "1".into(), by: "ops@web-1".into(), reason: None, since: 0, until: None };
        assert_eq!(describe_freeze(&name, &freeze), "deploy is frozen by ops@web-1");
        freeze.reason = Some("db move".into());
        assert_eq!(describe_freeze(&name, &freeze), "deploy is frozen by ops@web-1 for 'db move'");
        let now = Zoned::now();
        let today = now.timestamp().as_millisecond().unsigned_abs();
        assert_eq!(clock(today, &now), now.strftime("%H:%M").to_string());
        assert_eq!(clock(86_400_000 * 2, &now).len(), "1970-01-03 00:00".len());
        freeze.until = Some(today);
        let text = describe_freeze(&name, &freeze);
        assert_eq!(text, format!("deploy is frozen by ops@web-1 until {} for 'db move'", clock(today, &now)));
        freeze.until = Some(u64::MAX);
        assert!(describe_freeze(&name, &freeze).contains("until 9999-12-"));
    }
}
