//! All output of dlock itself: one line for each message, on standard error, which no other module writes to.
//! And the result of a run for programs: [`RunReport`] is written to the files of `--report` and
//! `--metrics-file`.
//!
//! Called by `commands` and `lib`. What always holds: foreign text is escaped before it is printed, and a line of dlock is
//! one line.

mod doctor;
mod entry;
pub mod fleet;
mod form;
mod freeze;
mod histogram;
pub mod history;
pub mod json;
mod metrics;
mod outcome;
mod output_file;
pub mod overdue;
mod reporter;
mod result_files;
pub mod screen;
pub mod status;
mod table;
pub mod timeline;
mod token_file;
mod wait_line;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Zoned};

pub use self::doctor::DoctorReport;
pub use self::form::{Form, Pages, is_dumb};
pub use self::freeze::{describe_freeze, frozen_by};
pub use self::histogram::Histogram;
pub use self::outcome::{Cause, Outcome, RunReport, Started};
pub use self::output_file::{is_stdout_writable, to_stdout};
pub use self::reporter::Reporter;
pub use self::result_files::Files;
pub use self::token_file::TokenFile;
pub use self::wait_line::WaitLine;
use crate::backend::{Busy, Hazard, StoreError, io_text};
use crate::duration::show_distance;
use crate::exit::{Failure, FailureKind};
use crate::lock::{Holder, Identity, LockName, Revocation};

/// The time between the end of a command and that of its `--min-hold` below which both are shown with seconds.
const SHORT_KEEPING: Duration = Duration::from_secs(5 * 60);

/// Returns the holder that keeps the lock by `--min-hold` though its command has ended, with the time since
/// its end and the time left.
fn kept_by(busy: &Busy) -> Option<(&Identity, Duration, Duration)> {
    let [Holder { identity: Some(identity), ended: Some(ended), remaining: Some(rest), .. }] =
        busy.holders.as_slice()
    else {
        return None;
    };
    Some((identity, *ended, *rest))
}

/// Returns the names of several locks for a message, of many only the first two.
pub fn label<'n>(names: impl IntoIterator<Item = &'n LockName>) -> String {
    let names: Vec<&str> = names.into_iter().map(LockName::as_str).collect();
    match names.as_slice() {
        [one, two, _, _, ..] => format!("{one}, {two} and {} others", names.len() - 2),
        few => few.join(", "),
    }
}

/// Describes the holder of a lock, in one sentence.
fn describe(name: &LockName, store: &str, busy: &Busy) -> String {
    if let Some(freeze) = &busy.freeze {
        return describe_freeze(name, freeze);
    }
    if let Some((identity, ended, rest)) = kept_by(busy) {
        let now = Zoned::now();
        // Within a few minutes, both times could be the same without the seconds.
        let clock = if ended.saturating_add(rest) < SHORT_KEEPING { "%H:%M:%S" } else { "%H:%M" };
        let at = |from_now: SignedDuration| {
            // A time that no calendar has is shown as that of now.
            let time = now.checked_add(from_now).unwrap_or_else(|_| now.clone());
            let date = if time.date() == now.date() { "" } else { "%Y-%m-%d " };
            time.strftime(&format!("{date}{clock}")).to_string()
        };
        let signed = |distance: Duration| SignedDuration::try_from(distance).unwrap_or(SignedDuration::MAX);
        return format!(
            "{name} ran on {} until {} and is kept until {} by --min-hold",
            identity.host,
            at(-signed(ended)),
            at(signed(rest))
        );
    }
    let Some(first) = busy.holders.first() else {
        return format!("{name} on {store} is free, but other waiters are ahead");
    };
    format!("{name} is held by {}{}", describe_holder(first, store), others(busy))
}

/// Describes why none of these locks was granted, in one sentence: as `describe` says it of one lock, if it is one.
fn describe_none(
    found: &[(&LockName, &Busy)],
    store: &str,
    describe: fn(&LockName, &str, &Busy) -> String,
) -> String {
    let names = || label(found.iter().map(|(name, _)| *name));
    match (found, found.iter().find(|(_, busy)| !busy.holders.is_empty() || busy.freeze.is_some())) {
        ([(name, busy)], _) => describe(name, store, busy),
        (_, Some((name, busy))) => format!("none of {} is free: {}", names(), describe(name, store, busy)),
        (_, None) => format!("{} on {store}: other waiters are ahead", names()),
    }
}

/// Returns the lock and the holder that a message about these locks is about, for programs.
fn shown<'f>(found: &[(&'f LockName, &'f Busy)]) -> (Option<&'f LockName>, Option<&'f Holder>) {
    let is_taken = |busy: &Busy| !busy.holders.is_empty() || busy.freeze.is_some();
    let held = found.iter().find(|(_, busy)| is_taken(busy)).or(found.first());
    (held.map(|(name, _)| *name), held.and_then(|(_, busy)| busy.holder()))
}

/// Describes the same with the age first, for a line whose end may be cut off.
fn describe_briefly(name: &LockName, store: &str, busy: &Busy) -> String {
    match busy.holders.first() {
        Some(Holder { identity: Some(identity), age: Some(age), .. })
            if kept_by(busy).is_none() && busy.freeze.is_none() =>
        {
            let age = show_distance(*age);
            format!("{name} is held for {age} by {}{}", describe_identity(identity), others(busy))
        }
        _ => describe(name, store, busy),
    }
}

/// Returns the number of holders beside the first one, as the end of a sentence.
fn others(busy: &Busy) -> String {
    match busy.holders.len() - 1 + busy.more {
        0 => String::new(),
        1 => " and one other".to_owned(),
        more => format!(" and {more} others"),
    }
}

/// Describes a holder without the times: `web-3 (pid 4121, root, backup.sh)`.
fn describe_identity(identity: &Identity) -> String {
    let Identity { host, pid, user, command, .. } = identity;
    let note = identity.note.as_ref().map(|note| format!(", note: {note}")).unwrap_or_default();
    match identity.unattended {
        true => format!("a token of {host} ({user}, dlock acquire{note})"),
        false => format!("{host} (pid {pid}, {user}, {command}{note})"),
    }
}

/// Describes a holder as `web-3 (pid 4121, root, backup.sh) for 12m`, or with what is known of a foreign
/// client.
pub fn describe_holder(holder: &Holder, store: &str) -> String {
    let Some(identity) = &holder.identity else {
        let hint = holder.hint.as_ref().map(|hint| format!(", {hint}")).unwrap_or_default();
        let rest = match holder.remaining {
            Some(rest) => format!(", for another {} at most", show_distance(rest)),
            None => String::new(),
        };
        return format!("another program on {store} (not a dlock{hint}{rest})");
    };
    let age = holder.age.map(|age| format!(" for {}", show_distance(age))).unwrap_or_default();
    let rest = holder.remaining.filter(|_| identity.unattended);
    let rest = rest.map(|rest| format!(", {} of the lease left", show_distance(rest))).unwrap_or_default();
    format!("{}{age}{rest}", describe_identity(identity))
}

/// Describes the removal of a hold without its owner's consent, with the risk.
pub fn removed(name: &LockName, holder: &Holder, store: &str) -> String {
    let Some(identity) = &holder.identity else {
        return format!(
            "{name} on {store}: the hold of another program was removed; that program may still run beside the command \
             of the next holder"
        );
    };
    let whose = describe_identity(identity);
    let held =
        holder.age.map(|age| format!(", which had held it for {}", show_distance(age))).unwrap_or_default();
    if !identity.unattended {
        return format!(
            "{name} was removed from {whose}{held}: its command may still run beside that of the next holder, until it \
             notices"
        );
    }
    let rest = holder.remaining.map(|rest| format!(", with {} of the lease left", show_distance(rest)));
    let rest = rest.unwrap_or_default();
    format!(
        "{name} was removed from {whose}{held}{rest}: what runs under that token may still run beside the command of the \
         next holder, until it renews or checks the token"
    )
}

/// Describes the revocation of a hold of this lock.
pub fn revoked(name: &LockName, store: &str, revocation: &Revocation) -> String {
    format!("{name} on {store}: the lock was {}", broken_by(revocation))
}

/// Describes a last success that was ignored because it lies this far in the future.
pub fn undated(name: &LockName, store: &str, ahead: Duration) -> String {
    let ahead = show_distance(ahead);
    format!(
        "{name} on {store}: its last success is dated {ahead} in the future, and is ignored: check the clock"
    )
}

/// Describes a revocation as `broken by root@web-3: hangs`.
pub fn broken_by(revocation: &Revocation) -> String {
    let reason = revocation.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("broken by {}{reason}", revocation.by)
}

/// Describes by which run another one was superseded.
pub fn superseded_by(newer: &Identity) -> String {
    format!("superseded by {}", describe_identity(newer))
}

/// Describes a hazard to the locks of a store, with a remedy.
pub fn hazard_of(store: &str, hazard: &Hazard) -> String {
    match hazard {
        Hazard::Eviction(policy) => format!(
            "{store} removes keys when its memory is full (maxmemory-policy {policy}), and locks are keys: use \
            a server \
             with noeviction for locks; see dlock doctor"
        ),
        Hazard::Forgetful => format!(
            "{store} is for efficiency only: it may forget a lock at any time, and then the command runs twice; see dlock \
             doctor"
        ),
        Hazard::Node(what) => {
            format!("{what}, which cannot be part of a Redlock: name independent masters; see dlock doctor")
        }
    }
}

/// Returns the failure of a command that only queries a store.
pub fn store_error(store: &str, error: &StoreError) -> Failure {
    Failure::new(error.failure_kind(), format!("{store}: {error}"))
}

/// Returns the failure for an error of the store, naming the lock and the store, with `help` appended.
pub fn lock_error(name: &LockName, store: &str, error: &StoreError, help: &str) -> Failure {
    let Failure { kind, message } = store_error(&format!("{name} on {store}"), error);
    Failure::new(kind, message + help)
}

/// Returns the failure that a token does not own a lock, with the current holders if they are known.
pub fn not_owned(name: &LockName, holders: Option<&[Holder]>, store: &str) -> Failure {
    let who = match holders {
        None => String::new(),
        Some([]) => ": it is free".to_owned(),
        Some([first]) => format!(": it is held by {}", describe_holder(first, store)),
        Some([first, others @ ..]) => {
            format!(": it is held by {} and {} more", describe_holder(first, store), others.len())
        }
    };
    let message = format!("{name} on {store}: this token does not own the lock, or no longer does{who}");
    Failure::new(FailureKind::Lost, message)
}

/// Returns an error and its causes as one line.
pub fn reason(error: &anyhow::Error) -> String {
    let text = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref().map_or_else(|| cause.to_string(), io_text)
    };
    error.chain().map(text).collect::<Vec<_>>().join(": ")
}

/// Formats a time since 1970 as RFC 3339 in UTC, with milliseconds. A time beyond the range of the calendar is shown as the last
/// one within it.
pub fn time(since_1970: Duration) -> String {
    let time = SignedDuration::try_from(since_1970).ok().and_then(|time| Timestamp::from_duration(time).ok());
    format!("{:.3}", time.unwrap_or(Timestamp::MAX))
}

/// Returns whole milliseconds, for programs.
pub fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

/// Makes foreign text safe for a terminal: control, escape and bidirectional characters are escaped.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| if is_unsafe(c) { c.escape_unicode().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

/// Whether a character is a control character, or is invisible but changes how others are displayed: bidirectional marks
/// and overrides (Unicode TR 9), zero-width characters, line and paragraph separators, tags.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
        '\u{061C}' | '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
        | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_after_all_is_the_last_one() {
        assert_eq!(time(Duration::from_millis(1_500)), "1970-01-01T00:00:01.500Z");
        assert!(time(Duration::MAX).starts_with("9999-12-"), "{}", time(Duration::MAX));
    }

    /// Returns the two times in the description of a lock that is kept.
    fn times(ended: Duration, rest: Duration) -> [String; 2] {
        let identity = Some(Identity { host: "web-3".into(), ..Identity::default() });
        let holder = Holder { identity, ended: Some(ended), remaining: Some(rest), ..Holder::default() };
        let busy = Busy { holders: vec![holder], ..Busy::default() };
        let text = describe(&LockName::new("x").expect("a name"), "file:", &busy);
        let times = text
            .strip_prefix("x ran on web-3 until ")
            .and_then(|text| text.strip_suffix(" by --min-hold")?.split_once(" and is kept until "));
        let (ended, kept) = times.expect("a sentence");
        [ended.to_owned(), kept.to_owned()]
    }

    #[test]
    fn times_within_a_few_minutes_are_told_apart() {
        let second = Duration::from_secs(1);
        let [ended, kept] = times(second, second);
        assert_ne!(ended, kept);
        assert_eq!(kept.matches(':').count(), 2, "{kept}");
        let [ended, kept] = times(Duration::from_secs(600), second);
        assert_ne!(ended, kept);
        assert_eq!(kept.matches(':').count(), 1, "{kept}");
    }
}
