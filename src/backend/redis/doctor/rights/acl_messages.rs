//! The words in which missing rights are told.

use super::super::super::keys::{INDEX, RESERVED};
use super::{KeyKind, Need};

/// As a rule of an ACL names them; all of dlock's own in one when none of those of a lock is open.
pub(super) fn patterns(places: &[KeyKind], prefix: &str) -> Vec<String> {
    const OF_LOCK: [KeyKind; 4] = [KeyKind::Holder, KeyKind::Queue, KeyKind::Waiters, KeyKind::Member];
    let all_own = OF_LOCK.iter().all(|own| places.contains(own));
    let mut patterns = Vec::new();
    if all_own {
        patterns.push(format!("{RESERVED}*"));
    }
    for place in places {
        let kind = match place {
            KeyKind::None => continue,
            KeyKind::Lock => {
                patterns.insert(0, format!("{prefix}*"));
                continue;
            }
            KeyKind::Index => {
                patterns.push(INDEX.to_owned());
                continue;
            }
            KeyKind::Counter | KeyKind::Announcements | KeyKind::FairLine | KeyKind::Signal => {
                patterns.push(pattern_of_others(*place).to_owned());
                continue;
            }
            _ if all_own => continue,
            KeyKind::Holder => "holder",
            KeyKind::Fencing => "fencing",
            KeyKind::Queue => "queue",
            KeyKind::Waiters => "waiters",
            KeyKind::Ends => "member-ends",
            KeyKind::Vacant => "free-slots",
            KeyKind::SlotWaiters => "waiter-slots",
            KeyKind::Member => "member",
            KeyKind::History => "history",
            KeyKind::Channel => "call",
        };
        patterns.push(format!("{RESERVED}{kind}:*"));
    }
    patterns
}

/// What belongs to locks by their recipe.
fn pattern_of_others(place: KeyKind) -> &'static str {
    match place {
        KeyKind::Counter => "redisson_lock_token:*",
        KeyKind::Announcements => "redisson_lock__channel:*",
        KeyKind::FairLine => "redisson_lock_queue:*",
        _ => "lock-signal:*",
    }
}

/// What is lost without it.
pub(super) fn consequence(need: Need) -> &'static str {
    match need {
        Need::Lock => "locks cannot be taken, shared, kept or given back: dlock run ends with 77 or 76",
        Need::Line => "nobody can wait for a lock: where one is held, dlock run ends with 77",
        Need::Call => "who waits is not called when it is its turn, but asks every now and then",
        Need::Tell => {
            "other programs that wait for a lock are not told when dlock gives it back: they ask when its lease, or their own \
             patience, is over"
        }
        Need::Watch => {
            "a lock that somebody else removes is missed at the next renewal only, and who waits for another program's \
             lock asks every now and then"
        }
        Need::Digest => "the whole script travels with every question, some 20 KB",
        Need::List => {
            "dlock status lists no locks that are not named, and leftovers of dead ones stay in the list"
        }
        Need::History => "no history of a lock is kept or shown (dlock status --history)",
        Need::Foreign => "dlock break cannot remove another program's lock that is no plain string",
        Need::Move => {
            "while a slot moves to another node its locks cannot be kept: their commands are stopped (dlock run ends with \
             76), or do not run (77)"
        }
        Need::Nodes => {
            "only nodes that the URL names, and those that they point to, are known: when all of them are gone, a held lock \
             is not kept"
        }
        Need::Info => {
            "whether the server evicts keys, persists them, or is a replica cannot be seen, by dlock run neither"
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
