//! The trials: every command of the scripts, on each kind of key that it is used on.

/// What a right is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Need {
    Lock,
    Wait,
    /// Notifying waiters that it is their turn.
    Notify,
    /// Notifying the waiters of other programs.
    Announce,
    /// Client-side caching (`CLIENT TRACKING`): the server reports changes of the lock's key.
    Track,
    /// `EVALSHA`.
    Digest,
    List,
    History,
    Foreign,
    Info,
    Reshard,
    Nodes,
}

/// A kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum KeyKind {
    None,
    Lock,
    Holder,
    Fencing,
    Queue,
    Waiters,
    Ends,
    FreeSlots,
    SlotWaiters,
    Member,
    History,
    Index,
    Channel,
    // The keys that belong to the lock by its recipe, in the order of the fields of `others`.
    Counter,
    Announcements,
    FairQueue,
    Signal,
}

/// One command on one kind of key.
pub(super) struct Trial {
    pub(super) command: &'static str,
    pub(super) kind: KeyKind,
    /// The arguments after the key.
    pub(super) arguments: &'static [&'static str],
    pub(super) need: Need,
    /// The command creates a missing key.
    pub(super) creates: bool,
}

const fn trial(
    need: Need,
    command: &'static str,
    kind: KeyKind,
    arguments: &'static [&'static str],
) -> Trial {
    Trial { command, kind, arguments, need, creates: false }
}

const fn creating(
    need: Need,
    command: &'static str,
    kind: KeyKind,
    arguments: &'static [&'static str],
) -> Trial {
    Trial { creates: true, ..trial(need, command, kind, arguments) }
}

/// The digest of `return 1`, which is tried before.
const DIGEST: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// The commands of lock.lua and look.lua, in the order in which they are tried.
pub(super) const TRIALS: &[Trial] = &[
    trial(Need::Lock, "EVAL", KeyKind::None, &["return 1", "0"]),
    trial(Need::Digest, "EVALSHA", KeyKind::None, &[DIGEST, "0"]),
    trial(Need::Lock, "TIME", KeyKind::None, &[]),
    creating(Need::Lock, "SET", KeyKind::Lock, &["x", "PX", "10000"]),
    creating(Need::Lock, "SET", KeyKind::Fencing, &["1", "PX", "10000"]),
    creating(Need::Lock, "SET", KeyKind::Member, &["x", "PX", "10000"]),
    trial(Need::Lock, "GET", KeyKind::Lock, &[]),
    trial(Need::Lock, "GET", KeyKind::Fencing, &[]),
    trial(Need::Lock, "GET", KeyKind::Member, &[]),
    trial(Need::Lock, "TYPE", KeyKind::Lock, &[]),
    trial(Need::Lock, "EXISTS", KeyKind::Queue, &[]),
    trial(Need::Lock, "PTTL", KeyKind::Lock, &[]),
    trial(Need::Lock, "PTTL", KeyKind::Member, &[]),
    trial(Need::Lock, "PTTL", KeyKind::Queue, &[]),
    trial(Need::Lock, "PEXPIRE", KeyKind::Lock, &["10000"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::Holder, &["10000"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::Member, &["10000"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::Queue, &["10000"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::Waiters, &["10000"]),
    creating(Need::Lock, "HSET", KeyKind::Holder, &["format", "1"]),
    creating(Need::Lock, "HSET", KeyKind::Waiters, &["format", "1"]),
    trial(Need::Lock, "HGET", KeyKind::Holder, &["format"]),
    trial(Need::Lock, "HGET", KeyKind::Waiters, &["format"]),
    trial(Need::Lock, "HMGET", KeyKind::Holder, &["format", "value"]),
    trial(Need::Lock, "HGETALL", KeyKind::Holder, &[]),
    trial(Need::Lock, "HEXISTS", KeyKind::Holder, &["format"]),
    trial(Need::Lock, "HLEN", KeyKind::Holder, &[]),
    trial(Need::Lock, "HDEL", KeyKind::Holder, &["format"]),
    trial(Need::Lock, "HDEL", KeyKind::Waiters, &["format"]),
    creating(Need::Wait, "ZADD", KeyKind::Queue, &["1", "x"]),
    trial(Need::Wait, "ZRANGE", KeyKind::Queue, &["0", "0"]),
    trial(Need::Wait, "ZSCORE", KeyKind::Queue, &["x"]),
    trial(Need::Wait, "ZRANK", KeyKind::Queue, &["x"]),
    trial(Need::Wait, "ZCARD", KeyKind::Queue, &[]),
    trial(Need::Wait, "ZREM", KeyKind::Queue, &["x"]),
    creating(Need::Lock, "ZADD", KeyKind::Ends, &["1", "x"]),
    trial(Need::Lock, "ZRANGE", KeyKind::Ends, &["0", "0"]),
    trial(Need::Lock, "ZREM", KeyKind::Ends, &["x"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::Ends, &["10000"]),
    trial(Need::Lock, "ZCARD", KeyKind::Ends, &[]),
    trial(Need::Lock, "DEL", KeyKind::Ends, &[]),
    creating(Need::Lock, "ZADD", KeyKind::FreeSlots, &["1", "x"]),
    trial(Need::Lock, "ZRANGE", KeyKind::FreeSlots, &["0", "0"]),
    trial(Need::Lock, "ZREM", KeyKind::FreeSlots, &["x"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::FreeSlots, &["10000"]),
    trial(Need::Lock, "DEL", KeyKind::FreeSlots, &[]),
    creating(Need::Wait, "ZADD", KeyKind::SlotWaiters, &["1", "x"]),
    trial(Need::Wait, "ZRANGE", KeyKind::SlotWaiters, &["0", "0"]),
    trial(Need::Wait, "ZREM", KeyKind::SlotWaiters, &["x"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::SlotWaiters, &["10000"]),
    trial(Need::List, "ZREM", KeyKind::Index, &["dlock-doctor"]),
    // Scores are times, so no entry has a negative one.
    trial(Need::List, "ZREMRANGEBYSCORE", KeyKind::Index, &["-inf", "-1"]),
    trial(Need::List, "ZSCAN", KeyKind::Index, &["0", "COUNT", "1"]),
    creating(Need::Lock, "SET", KeyKind::Counter, &["1", "PX", "10000"]),
    trial(Need::Lock, "GET", KeyKind::Counter, &[]),
    trial(Need::Announce, "PUBLISH", KeyKind::Announcements, &["0"]),
    trial(Need::Announce, "LRANGE", KeyKind::FairQueue, &["0", "0"]),
    creating(Need::Announce, "LPUSH", KeyKind::Signal, &["1"]),
    trial(Need::Announce, "PEXPIRE", KeyKind::Signal, &["1000"]),
    trial(Need::Announce, "DEL", KeyKind::Signal, &[]),
    creating(Need::History, "LPUSH", KeyKind::History, &["x"]),
    trial(Need::History, "LTRIM", KeyKind::History, &["0", "0"]),
    trial(Need::History, "LRANGE", KeyKind::History, &["0", "-1"]),
    trial(Need::Foreign, "DUMP", KeyKind::Lock, &[]),
    trial(Need::Lock, "DEL", KeyKind::Lock, &[]),
    trial(Need::Lock, "DEL", KeyKind::Holder, &[]),
    trial(Need::Lock, "DEL", KeyKind::Queue, &[]),
    trial(Need::Lock, "DEL", KeyKind::Waiters, &[]),
    trial(Need::Lock, "DEL", KeyKind::Member, &[]),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command of the scripts is tried, so that no right is forgotten when they change.
    #[test]
    fn every_command_of_the_scripts_is_tried() {
        // The scripts do without the last three where they are not allowed.
        let elsewhere = ["INFO", "PUBLISH", "SPUBLISH", "STRLEN", "MEMORY"];
        for script in [include_str!("../../lock.lua"), include_str!("../../look.lua")] {
            for call in script.split("redis.").skip(1) {
                let Some(call) = call.strip_prefix("call('").or_else(|| call.strip_prefix("pcall('")) else {
                    continue;
                };
                let command = call.split('\'').next().unwrap_or_default();
                assert!(
                    elsewhere.contains(&command) || TRIALS.iter().any(|trial| trial.command == command),
                    "{command}"
                );
            }
        }
    }
}
