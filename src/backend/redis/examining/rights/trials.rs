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
pub(in super::super) enum Place {
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
    pub(super) place: Place,
    /// Behind the key.
    pub(super) arguments: &'static [&'static str],
    pub(super) need: Need,
    /// It makes a key that is not there.
    pub(super) makes: bool,
}

const fn trial(need: Need, command: &'static str, place: Place, arguments: &'static [&'static str]) -> Trial {
    Trial { command, place, arguments, need, makes: false }
}

const fn making(
    need: Need,
    command: &'static str,
    place: Place,
    arguments: &'static [&'static str],
) -> Trial {
    Trial { makes: true, ..trial(need, command, place, arguments) }
}

/// Of `return 1`, which is tried before.
const DIGEST: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// What lock.lua and look.lua use, in the order in which it is tried.
pub(super) const TRIALS: &[Trial] = &[
    trial(Need::Lock, "EVAL", Place::None, &["return 1", "0"]),
    trial(Need::Digest, "EVALSHA", Place::None, &[DIGEST, "0"]),
    trial(Need::Lock, "TIME", Place::None, &[]),
    making(Need::Lock, "SET", Place::Lock, &["x", "PX", "10000"]),
    making(Need::Lock, "SET", Place::Fencing, &["1", "PX", "10000"]),
    making(Need::Lock, "SET", Place::Member, &["x", "PX", "10000"]),
    trial(Need::Lock, "GET", Place::Lock, &[]),
    trial(Need::Lock, "GET", Place::Fencing, &[]),
    trial(Need::Lock, "GET", Place::Member, &[]),
    trial(Need::Lock, "TYPE", Place::Lock, &[]),
    trial(Need::Lock, "EXISTS", Place::Queue, &[]),
    trial(Need::Lock, "PTTL", Place::Lock, &[]),
    trial(Need::Lock, "PTTL", Place::Member, &[]),
    trial(Need::Lock, "PTTL", Place::Queue, &[]),
    trial(Need::Lock, "PEXPIRE", Place::Lock, &["10000"]),
    trial(Need::Lock, "PEXPIRE", Place::Holder, &["10000"]),
    trial(Need::Lock, "PEXPIRE", Place::Member, &["10000"]),
    trial(Need::Lock, "PEXPIRE", Place::Queue, &["10000"]),
    trial(Need::Lock, "PEXPIRE", Place::Waiters, &["10000"]),
    making(Need::Lock, "HSET", Place::Holder, &["format", "1"]),
    making(Need::Lock, "HSET", Place::Waiters, &["format", "1"]),
    trial(Need::Lock, "HGET", Place::Holder, &["format"]),
    trial(Need::Lock, "HGET", Place::Waiters, &["format"]),
    trial(Need::Lock, "HMGET", Place::Holder, &["format", "value"]),
    trial(Need::Lock, "HGETALL", Place::Holder, &[]),
    trial(Need::Lock, "HEXISTS", Place::Holder, &["format"]),
    trial(Need::Lock, "HLEN", Place::Holder, &[]),
    trial(Need::Lock, "HDEL", Place::Holder, &["format"]),
    trial(Need::Lock, "HDEL", Place::Waiters, &["format"]),
    making(Need::Line, "ZADD", Place::Queue, &["1", "x"]),
    trial(Need::Line, "ZRANGE", Place::Queue, &["0", "0"]),
    trial(Need::Line, "ZSCORE", Place::Queue, &["x"]),
    trial(Need::Line, "ZRANK", Place::Queue, &["x"]),
    trial(Need::Line, "ZCARD", Place::Queue, &[]),
    trial(Need::Line, "ZREM", Place::Queue, &["x"]),
    making(Need::Lock, "ZADD", Place::Ends, &["1", "x"]),
    trial(Need::Lock, "ZRANGE", Place::Ends, &["0", "0"]),
    trial(Need::Lock, "ZREM", Place::Ends, &["x"]),
    trial(Need::Lock, "PEXPIRE", Place::Ends, &["10000"]),
    trial(Need::Lock, "ZCARD", Place::Ends, &[]),
    trial(Need::Lock, "DEL", Place::Ends, &[]),
    making(Need::Lock, "ZADD", Place::Vacant, &["1", "x"]),
    trial(Need::Lock, "ZRANGE", Place::Vacant, &["0", "0"]),
    trial(Need::Lock, "ZREM", Place::Vacant, &["x"]),
    trial(Need::Lock, "PEXPIRE", Place::Vacant, &["10000"]),
    trial(Need::Lock, "DEL", Place::Vacant, &[]),
    making(Need::Line, "ZADD", Place::SlotWaiters, &["1", "x"]),
    trial(Need::Line, "ZRANGE", Place::SlotWaiters, &["0", "0"]),
    trial(Need::Line, "ZREM", Place::SlotWaiters, &["x"]),
    trial(Need::Lock, "PEXPIRE", Place::SlotWaiters, &["10000"]),
    trial(Need::List, "ZREM", Place::Index, &["dlock-doctor"]),
    // Scores are times, so there is none like that.
    trial(Need::List, "ZREMRANGEBYSCORE", Place::Index, &["-inf", "-1"]),
    trial(Need::List, "ZSCAN", Place::Index, &["0", "COUNT", "1"]),
    making(Need::Lock, "SET", Place::Counter, &["1", "PX", "10000"]),
    trial(Need::Lock, "GET", Place::Counter, &[]),
    trial(Need::Tell, "PUBLISH", Place::Announcements, &["0"]),
    trial(Need::Tell, "LRANGE", Place::FairLine, &["0", "0"]),
    making(Need::Tell, "LPUSH", Place::Signal, &["1"]),
    trial(Need::Tell, "PEXPIRE", Place::Signal, &["1000"]),
    trial(Need::Tell, "DEL", Place::Signal, &[]),
    making(Need::History, "LPUSH", Place::History, &["x"]),
    trial(Need::History, "LTRIM", Place::History, &["0", "0"]),
    trial(Need::History, "LRANGE", Place::History, &["0", "-1"]),
    trial(Need::Foreign, "DUMP", Place::Lock, &[]),
    trial(Need::Lock, "DEL", Place::Lock, &[]),
    trial(Need::Lock, "DEL", Place::Holder, &[]),
    trial(Need::Lock, "DEL", Place::Queue, &[]),
    trial(Need::Lock, "DEL", Place::Waiters, &[]),
    trial(Need::Lock, "DEL", Place::Member, &[]),
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
