//! Tries each command that dlock uses on each kind of key that it uses it on, one by one: for a command inside a script
//! a server does not report which right is missing.
//!
//! The keys are those of an unused lock. Each is created as a string that expires soon, whatever its usual type: the
//! server checks the rights before the type of the key (Redis, `server.c`), so `HSET` fails with the wrong type, and no
//! key is left without an expiry.

mod acl_messages;
pub(in super::super) mod acl_probe;
mod trials;

use std::collections::BTreeSet;

use redis::{Cmd, ServerError, Value};

use self::acl_messages::{consequence, patterns};
pub(super) use self::trials::{KeyKind, Need};
use self::trials::{TRIALS, Trial};
use super::super::connection::server_error;
use super::super::errors::describe;
use super::super::keys::{Keys, RESERVED};
use crate::backend::diagnosis::Finding;

/// The expiry of a scratch key in ms, in case it is not removed.
pub(super) const SCRATCH_LIFE_MS: usize = 10_000;

/// The keys of a lock that have an expiry.
const OWN: &[KeyKind] = &[
    KeyKind::Lock,
    KeyKind::Holder,
    KeyKind::Fencing,
    KeyKind::Queue,
    KeyKind::Waiters,
    KeyKind::Ends,
    KeyKind::FreeSlots,
    KeyKind::SlotWaiters,
    KeyKind::Member,
    KeyKind::History,
    KeyKind::Counter,
    KeyKind::Signal,
];

/// What a server refuses.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Commands that the user may not run, with what each is needed for.
    commands: BTreeSet<(Need, &'static str)>,
    /// Commands that the server does not have.
    absent: BTreeSet<(Need, &'static str)>,
    /// Kinds of keys that the user has no access to.
    kinds: BTreeSet<(Need, KeyKind)>,
    /// The error of a server that refuses commands because of its state.
    pub(super) state: Option<String>,
}

/// The trials of all rights: preparation, trial and removal, one round trip each.
pub(super) struct Rights<'a> {
    keys: &'a Keys,
    token: &'a str,
    pub(super) refused: Refused,
}

impl<'a> Rights<'a> {
    pub(super) fn of(keys: &'a Keys, token: &'a str) -> Rights<'a> {
        Rights { keys, token, refused: Refused::default() }
    }

    /// Returns the key of this kind, if the lock has one.
    fn key(&self, kind: KeyKind) -> Option<String> {
        let keys = self.keys;
        let others = &keys.others;
        Some(match kind {
            KeyKind::None | KeyKind::Channel => return None,
            KeyKind::Lock => keys.lock.clone(),
            KeyKind::Holder => keys.holder.clone(),
            KeyKind::Fencing if others.counter.is_some() => return None,
            KeyKind::Fencing => keys.fencing.clone(),
            KeyKind::Queue => keys.queue.clone(),
            KeyKind::Waiters => keys.waiters.clone(),
            KeyKind::Ends => keys.ends.clone(),
            KeyKind::FreeSlots => keys.vacant.clone(),
            KeyKind::SlotWaiters => keys.slot_waiters.clone(),
            KeyKind::Member => format!("{}{}", keys.members, self.token),
            KeyKind::History => keys.history.clone(),
            KeyKind::Index => keys.index.clone(),
            KeyKind::Counter => return others.counter.clone(),
            KeyKind::Announcements => return others.channel.clone(),
            KeyKind::FairQueue => return others.queue.clone(),
            KeyKind::Signal => return others.signal.clone(),
        })
    }

    /// Returns the keys of the lock that have an expiry.
    fn own(&self) -> impl Iterator<Item = (KeyKind, String)> {
        OWN.iter().filter_map(|kind| Some((*kind, self.key(*kind)?)))
    }

    /// Returns the commands that create each key with a short expiry; [`Rights::trials`] takes their replies.
    pub(super) fn preparations(&self) -> Vec<Cmd> {
        let make = |(_, key)| {
            let mut set = redis::cmd("SET");
            set.arg::<String>(key).arg("x").arg("PX").arg(SCRATCH_LIFE_MS);
            set
        };
        self.own().map(make).collect()
    }

    /// Returns the trials, without those that would create a key without an expiry.
    fn trials(&self, prepared: &[Value]) -> Vec<&'static Trial> {
        let is_there = |kind: KeyKind| {
            let index = self.own().position(|(own, _)| own == kind);
            index.and_then(|index| prepared.get(index)).is_some_and(|reply| server_error(reply).is_none())
        };
        let safe = |trial: &&Trial| !trial.creates || trial.command == "SET" || is_there(trial.kind);
        let exists = |trial: &&Trial| trial.kind == KeyKind::None || self.key(trial.kind).is_some();
        TRIALS.iter().filter(exists).filter(safe).collect()
    }

    /// Returns the commands to try; [`Rights::note_all`] takes their replies.
    pub(super) fn commands(&self, prepared: &[Value]) -> Vec<Cmd> {
        let command = |trial: &&Trial| {
            let mut command = redis::cmd(trial.command);
            command.arg(self.key(trial.kind)).arg(trial.arguments);
            command
        };
        self.trials(prepared).iter().map(command).collect()
    }

    /// Records the replies to [`Rights::commands`].
    pub(super) fn note_all(&mut self, prepared: &[Value], replies: &[Value]) {
        for (trial, reply) in self.trials(prepared).iter().zip(replies) {
            self.refused.note(trial.need, trial.command, trial.kind, reply);
        }
    }

    /// Returns the commands that remove the keys, one per key: a single command would be refused for any one of them.
    pub(super) fn removals(&self) -> Vec<Cmd> {
        let remove = |(_, key)| {
            let mut remove = redis::cmd("DEL");
            remove.arg::<String>(key);
            remove
        };
        self.own().map(remove).collect()
    }
}

impl Refused {
    /// Records the reply to one command.
    pub(super) fn note(&mut self, need: Need, command: &'static str, kind: KeyKind, reply: &Value) {
        let Some(error) = server_error(reply) else { return };
        let details = error.details().unwrap_or_default();
        match error.code() {
            "NOPERM" => self.note_denied(need, command, kind, details),
            "ERR" if details.starts_with("unknown command") => {
                self.absent.insert((need, command));
            }
            _ if is_state(error) => self.state = self.state.take().or(Some(describe(error))),
            // The wrong type, no such script: the user has the right.
            _ => {}
        }
    }

    /// Records the message about a missing right.
    pub(super) fn note_denied(&mut self, need: Need, command: &'static str, kind: KeyKind, message: &str) {
        // "no permissions to run the 'get' command", and within a script of Redis before 7.2 "can't run this command".
        if message.contains(" run th") {
            self.commands.insert((need, command));
        } else {
            self.kinds.insert((need_of(kind, need), kind));
        }
    }

    /// Whether a right that is needed for this is missing.
    pub(super) fn lacks(&self, need: Need) -> bool {
        let has = |set: &BTreeSet<(Need, &str)>| set.iter().any(|(of, _)| *of == need);
        has(&self.commands) || has(&self.absent) || self.kinds.iter().any(|(of, _)| *of == need)
    }

    /// Returns one finding for each need that is not met, or one finding that all are.
    pub(super) fn findings(&self, prefix: &str, user: &str) -> Vec<Finding> {
        const ALL: &[Need] = &[
            Need::Lock,
            Need::Wait,
            Need::Notify,
            Need::Announce,
            Need::Track,
            Need::Digest,
            Need::List,
            Need::History,
            Need::Foreign,
            Need::Info,
            Need::Reshard,
            Need::Nodes,
        ];
        let lacking: Vec<Need> = ALL.iter().copied().filter(|need| self.lacks(*need)).collect();
        if lacking.is_empty() {
            let found = format!("{user} has all rights needed on {prefix}* and {RESERVED}*");
            return vec![Finding::ok("rights", found)];
        }
        lacking.into_iter().map(|need| self.finding(need, prefix, user)).collect()
    }

    fn finding(&self, need: Need, prefix: &str, user: &str) -> Finding {
        let (found, remedy) = self.of_needs(&[need], prefix, user);
        let consequence = consequence(need);
        match need {
            Need::Lock | Need::Wait => Finding::problem("rights", found, consequence, remedy),
            _ => Finding::warning("rights", found, consequence, remedy),
        }
    }

    /// Returns what is missing for these needs, and the remedy.
    pub(super) fn of_needs(&self, needs: &[Need], prefix: &str, user: &str) -> (String, String) {
        let of_needs = |set: &BTreeSet<(Need, &'static str)>| -> Vec<&'static str> {
            set.iter().filter(|(of, _)| needs.contains(of)).map(|(_, command)| *command).collect()
        };
        let (commands, absent) = (of_needs(&self.commands), of_needs(&self.absent));
        let kinds: Vec<KeyKind> =
            self.kinds.iter().filter(|(of, _)| needs.contains(of)).map(|(_, kind)| *kind).collect();
        let patterns = patterns(&kinds, prefix);
        let mut parts = Vec::new();
        if !commands.is_empty() {
            parts.push(format!("{user} may not run {}", commands.join(", ")));
        }
        if !patterns.is_empty() {
            parts.push(format!("{user} has no access to {}", patterns.join(", ")));
        }
        if !absent.is_empty() {
            parts.push(format!("the server does not know {}", absent.join(", ")));
        }
        let mut remedies = Vec::new();
        if !commands.is_empty() || !patterns.is_empty() {
            let rules =
                commands.iter().map(|command| format!("+{}", command.to_lowercase().replace(' ', "|")));
            let access = patterns.iter().map(|pattern| {
                match ["#call:", "_channel:"].iter().any(|of| pattern.contains(of)) {
                    true => format!("&{pattern}"),
                    false => format!("~{pattern}"),
                }
            });
            let rules: Vec<String> = rules.chain(access).collect();
            remedies.push(format!("ACL SETUSER {user} {}", rules.join(" ")));
        }
        if !absent.is_empty() {
            remedies.push("do not rename these commands, and use no proxy that lacks them".to_owned());
        }
        (parts.join("; "), remedies.join("; "))
    }
}

/// Whether a server refuses a command because of its state, not for lack of a right.
fn is_state(error: &ServerError) -> bool {
    const STATES: &[&str] = &[
        "OOM",
        "READONLY",
        "MISCONF",
        "NOREPLICAS",
        "LOADING",
        "MASTERDOWN",
        "BUSY",
        "CLUSTERDOWN",
        "MOVED",
        "ASK",
        "TRYAGAIN",
    ];
    STATES.contains(&error.code())
}

/// Returns what a kind of key is needed for, whatever command was tried on it.
fn need_of(kind: KeyKind, need: Need) -> Need {
    match kind {
        KeyKind::Index => Need::List,
        KeyKind::History => Need::History,
        KeyKind::Channel => Need::Notify,
        KeyKind::Announcements | KeyKind::FairQueue | KeyKind::Signal => Need::Announce,
        KeyKind::None => need,
        _ => Need::Lock,
    }
}
