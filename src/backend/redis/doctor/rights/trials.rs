//! What is tried: every command of the scripts, on each kind of key that it is used on.

/// What a right is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Need {
    Lock,
    Line,
    Call,
    Tell,
    Watch,
    Digest,
    List,
    History,
    Foreign,
    Info,
    Move,
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
    Vacant,
    SlotWaiters,
    Member,
    History,
    Index,
    Channel,
    /// What belongs to the lock by its recipe, in the order of its fields.
    Counter,
    Announcements,
    FairLine,
    Signal,
}

/// One command on one kind of key.
pub(super) struct Trial {
    pub(super) command: &'static str,
    pub(super) place: KeyKind,
    /// Behind the key.
    pub(super) arguments: &'static [&'static str],
    pub(super) need: Need,
    /// It makes a key that is not there.
    pub(super) makes: bool,
}

const fn trial(
    need: Need,
    command: &'static str,
    place: KeyKind,
    arguments: &'static [&'static str],
) -> Trial {
    Trial { command, place, arguments, need, makes: false }
}

const fn making(
    need: Need,
    command: &'static str,
    place: KeyKind,
    arguments: &'static [&'static str],
) -> Trial {
    Trial { makes: true, ..trial(need, command, place, arguments) }
}

/// Of `return 1`, which is tried before.
const DIGEST: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// What lock.lua and look.lua use, in the order in which it is tried.
pub(super) const TRIALS: &[Trial] = &[
    trial(Need::Lock, "EVAL", KeyKind::None, &["return 1", "0"]),
    trial(Need::Digest, "EVALSHA", KeyKind::None, &[DIGEST, "0"]),
    trial(Need::Lock, "TIME", KeyKind::None, &[]),
    making(Need::Lock, "SET", KeyKind::Lock, &["x", "PX", "10000"]),
    making(Need::Lock, "SET", KeyKind::Fencing, &["1", "PX", "10000"]),
    making(Need::Lock, "SET", KeyKind::Member, &["x", "PX", "10000"]),
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
    making(Need::Lock, "HSET", KeyKind::Holder, &["format", "1"]),
    making(Need::Lock, "HSET", KeyKind::Waiters, &["format", "1"]),
    trial(Need::Lock, "HGET", KeyKind::Holder, &["format"]),
    trial(Need::Lock, "HGET", KeyKind::Waiters, &["format"]),
    trial(Need::Lock, "HMGET", KeyKind::Holder, &["format", "value"]),
    trial(Need::Lock, "HGETALL", KeyKind::Holder, &[]),
    trial(Need::Lock, "HEXISTS", KeyKind::Holder, &["format"]),
    trial(Need::Lock, "HLEN", KeyKind::Holder, &[]),
    trial(Need::Lock, "HDEL", KeyKind::Holder, &["format"]),
    trial(Need::Lock, "HDEL", KeyKind::Waiters, &["format"]),
    making(Need::Line, "ZADD", KeyKind::Queue, &["1", "x"]),
    trial(Need::Line, "ZRANGE", KeyKind::Queue, &["0", "0"]),
    trial(Need::Line, "ZSCORE", KeyKind::Queue, &["x"]),
    trial(Need::Line, "ZRANK", KeyKind::Queue, &["x"]),
    trial(Need::Line, "ZCARD", KeyKind::Queue, &[]),
    trial(Need::Line, "ZREM", KeyKind::Queue, &["x"]),
    making(Need::Lock, "ZADD", KeyKind::Ends, &["1", "x"]),
    trial(Need::Lock, "ZRANGE", KeyKind::Ends, &["0", "0"]),
    trial(Need::Lock, "ZREM", KeyKind::Ends, &["x"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::Ends, &["10000"]),
    trial(Need::Lock, "ZCARD", KeyKind::Ends, &[]),
    trial(Need::Lock, "DEL", KeyKind::Ends, &[]),
    making(Need::Lock, "ZADD", KeyKind::Vacant, &["1", "x"]),
    trial(Need::Lock, "ZRANGE", KeyKind::Vacant, &["0", "0"]),
    trial(Need::Lock, "ZREM", KeyKind::Vacant, &["x"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::Vacant, &["10000"]),
    trial(Need::Lock, "DEL", KeyKind::Vacant, &[]),
    making(Need::Line, "ZADD", KeyKind::SlotWaiters, &["1", "x"]),
    trial(Need::Line, "ZRANGE", KeyKind::SlotWaiters, &["0", "0"]),
    trial(Need::Line, "ZREM", KeyKind::SlotWaiters, &["x"]),
    trial(Need::Lock, "PEXPIRE", KeyKind::SlotWaiters, &["10000"]),
    trial(Need::List, "ZREM", KeyKind::Index, &["dlock-doctor"]),
    // Scores are times, so there is none like that.
    trial(Need::List, "ZREMRANGEBYSCORE", KeyKind::Index, &["-inf", "-1"]),
    trial(Need::List, "ZSCAN", KeyKind::Index, &["0", "COUNT", "1"]),
    making(Need::Lock, "SET", KeyKind::Counter, &["1", "PX", "10000"]),
    trial(Need::Lock, "GET", KeyKind::Counter, &[]),
    trial(Need::Tell, "PUBLISH", KeyKind::Announcements, &["0"]),
    trial(Need::Tell, "LRANGE", KeyKind::FairLine, &["0", "0"]),
    making(Need::Tell, "LPUSH", KeyKind::Signal, &["1"]),
    trial(Need::Tell, "PEXPIRE", KeyKind::Signal, &["1000"]),
    trial(Need::Tell, "DEL", KeyKind::Signal, &[]),
    making(Need::History, "LPUSH", KeyKind::History, &["x"]),
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
        // The last three are done without where they are not allowed.
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
