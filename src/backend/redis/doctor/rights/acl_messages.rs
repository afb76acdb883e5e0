//! The messages about missing rights.

use super::super::super::keys::{INDEX, RESERVED};
use super::{KeyKind, Need};

/// Returns the key patterns of an ACL rule for these kinds of keys. If none of a lock's own keys is accessible, a
/// single pattern covers all keys of dlock.
pub(super) fn patterns(kinds: &[KeyKind], prefix: &str) -> Vec<String> {
    const OF_LOCK: [KeyKind; 4] = [KeyKind::Holder, KeyKind::Queue, KeyKind::Waiters, KeyKind::Member];
    let all_own = OF_LOCK.iter().all(|own| kinds.contains(own));
    let mut patterns = Vec::new();
    if all_own {
        patterns.push(format!("{RESERVED}*"));
    }
    for kind in kinds {
        let name = match kind {
            KeyKind::None => continue,
            KeyKind::Lock => {
                patterns.insert(0, format!("{prefix}*"));
                continue;
            }
            KeyKind::Index => {
                patterns.push(INDEX.to_owned());
                continue;
            }
            KeyKind::Counter | KeyKind::Announcements | KeyKind::FairQueue | KeyKind::Signal => {
                patterns.push(pattern_of_others(*kind).to_owned());
                continue;
            }
            _ if all_own => continue,
            KeyKind::Holder => "holder",
            KeyKind::Fencing => "fencing",
            KeyKind::Queue => "queue",
            KeyKind::Waiters => "waiters",
            KeyKind::Ends => "member-ends",
            KeyKind::FreeSlots => "free-slots",
            KeyKind::SlotWaiters => "waiter-slots",
            KeyKind::Member => "member",
            KeyKind::History => "history",
            KeyKind::Channel => "call",
        };
        patterns.push(format!("{RESERVED}{name}:*"));
    }
    patterns
}

/// Returns the pattern of a key that belongs to a lock by its recipe.
fn pattern_of_others(kind: KeyKind) -> &'static str {
    match kind {
        KeyKind::Counter => "redisson_lock_token:*",
        KeyKind::Announcements => "redisson_lock__channel:*",
        KeyKind::FairQueue => "redisson_lock_queue:*",
        _ => "lock-signal:*",
    }
}

/// Returns the consequence of a missing right.
pub(super) fn consequence(need: Need) -> &'static str {
    match need {
        Need::Lock => "locks cannot be acquired, shared, renewed or released: dlock run ends with 77 or 76",
        Need::Wait => "no run can wait for a lock: if the lock is held, dlock run ends with 77",
        Need::Notify => "waiters are not notified of their turn, and poll instead",
        Need::Announce => {
            "other programs that wait for a lock are not notified when dlock releases it: they retry when its lease, or \
             their own timeout, expires"
        }
        Need::Track => {
            "the removal of a lock is noticed only at the next renewal, and waiters for another program's lock poll"
        }
        Need::Digest => "the whole script, about 20 KB, is sent with every request",
        Need::List => {
            "dlock status lists no locks unless they are named, and entries of dead locks stay in the index"
        }
        Need::History => "no history of a lock is kept or shown (dlock status --history)",
        Need::Foreign => "dlock break cannot remove another program's lock unless it is a plain string",
        Need::Reshard => {
            "while a slot moves to another node, its locks cannot be renewed: their commands are stopped (dlock run ends \
             with 76), or do not run (77)"
        }
        Need::Nodes => {
            "only the nodes in the URL, and those that they redirect to, are known: when all of these are down, a held lock \
             is not renewed"
        }
        Need::Info => {
            "whether the server evicts keys, persists them, or is a replica is unknown, also to dlock run"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_as_few_as_can_be() {
        let own = [
            KeyKind::Lock,
            KeyKind::Holder,
            KeyKind::Fencing,
            KeyKind::Queue,
            KeyKind::Waiters,
            KeyKind::Member,
        ];
        assert_eq!(patterns(&own, "dlock:"), ["dlock:*", "dlock#*"]);
        assert_eq!(patterns(&own[..2], ""), ["*", "dlock#holder:*"]);
        assert_eq!(patterns(&[KeyKind::Channel], ""), ["dlock#call:*"]);
    }
}
