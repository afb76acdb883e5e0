//! Each command that dlock uses, on each kind of key that it uses it on, tried by itself: inside a script a server does not
//! say which right was missing.
//!
//! The keys are those of a lock that nobody uses. Each is made as a string that expires soon, whatever kind it is of
//! otherwise: the kind of a key is looked at after the rights (Redis, `server.c`), so `HSET` answers that it is the wrong
//! one, and nothing is left without an end.

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

/// So long does a scratch key live, in ms, if nobody removes it.
pub(super) const SCRATCH_LIFE_MS: usize = 10_000;

/// The keys of a lock that expire by themselves.
const OWN: &[KeyKind] = &[
    KeyKind::Lock,
    KeyKind::Holder,
    KeyKind::Fencing,
    KeyKind::Queue,
    KeyKind::Waiters,
    KeyKind::Ends,
    KeyKind::Vacant,
    KeyKind::SlotWaiters,
    KeyKind::Member,
    KeyKind::History,
    KeyKind::Counter,
    KeyKind::Signal,
];

/// What a server refuses.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Commands, with what each is needed for.
    commands: BTreeSet<(Need, &'static str)>,
    /// Commands that are not there at all.
    absent: BTreeSet<(Need, &'static str)>,
    /// Kinds of keys.
    places: BTreeSet<(Need, KeyKind)>,
    /// What it said of a state of its own in which it refuses what it would do otherwise.
    pub(super) state: Option<String>,
}

/// The rights to be tried, one flight after the other.
pub(super) struct Rights<'a> {
    keys: &'a Keys,
    token: &'a str,
    pub(super) refused: Refused,
}

impl<'a> Rights<'a> {
    pub(super) fn of(keys: &'a Keys, token: &'a str) -> Rights<'a> {
        Rights { keys, token, refused: Refused::default() }
    }

    /// The key of this kind, if the lock has one.
    fn key(&self, place: KeyKind) -> Option<String> {
        let keys = self.keys;
        let others = &keys.others;
        Some(match place {
            KeyKind::None | KeyKind::Channel => return None,
            KeyKind::Lock => keys.lock.clone(),
            KeyKind::Holder => keys.holder.clone(),
            KeyKind::Fencing if others.counter.is_some() => return None,
            KeyKind::Fencing => keys.fencing.clone(),
            KeyKind::Queue => keys.queue.clone(),
            KeyKind::Waiters => keys.waiters.clone(),
            KeyKind::Ends => keys.ends.clone(),
            KeyKind::Vacant => keys.vacant.clone(),
            KeyKind::SlotWaiters => keys.slot_waiters.clone(),
            KeyKind::Member => format!("{}{}", keys.members, self.token),
            KeyKind::History => keys.history.clone(),
            KeyKind::Index => keys.index.clone(),
            KeyKind::Counter => return others.counter.clone(),
            KeyKind::Announcements => return others.channel.clone(),
            KeyKind::FairLine => return others.queue.clone(),
            KeyKind::Signal => return others.signal.clone(),
        })
    }

    /// The keys of the lock that expire by themselves.
    fn own(&self) -> impl Iterator<Item = (KeyKind, String)> {
        OWN.iter().filter_map(|place| Some((*place, self.key(*place)?)))
    }

    /// What makes each key, to expire soon: its answer to [`Rights::trials`].
    pub(super) fn preparations(&self) -> Vec<Cmd> {
        let make = |(_, key)| {
            let mut set = redis::cmd("SET");
            set.arg::<String>(key).arg("x").arg("PX").arg(SCRATCH_LIFE_MS);
            set
        };
        self.own().map(make).collect()
    }

    /// What is to be tried. What would make a key without an end is left out.
    fn trials(&self, prepared: &[Value]) -> Vec<&'static Trial> {
        let is_there = |place: KeyKind| {
            let index = self.own().position(|(own, _)| own == place);
            index.and_then(|index| prepared.get(index)).is_some_and(|answer| server_error(answer).is_none())
        };
        let safe = |trial: &&Trial| !trial.makes || trial.command == "SET" || is_there(trial.place);
        let exists = |trial: &&Trial| trial.place == KeyKind::None || self.key(trial.place).is_some();
        TRIALS.iter().filter(exists).filter(safe).collect()
    }

    /// The commands to be tried, which [`Rights::note_all`] takes the answers of.
    pub(super) fn commands(&self, prepared: &[Value]) -> Vec<Cmd> {
        let command = |trial: &&Trial| {
            let mut command = redis::cmd(trial.command);
            command.arg(self.key(trial.place)).arg(trial.arguments);
            command
        };
        self.trials(prepared).iter().map(command).collect()
    }

    /// Understands the answers.
    pub(super) fn note_all(&mut self, prepared: &[Value], answers: &[Value]) {
        for (trial, answer) in self.trials(prepared).iter().zip(answers) {
            self.refused.note(trial.need, trial.command, trial.place, answer);
        }
    }

    /// What removes each key; one command for each, because all would be refused for one.
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
    /// Understands the answer to one command.
    pub(super) fn note(&mut self, need: Need, command: &'static str, place: KeyKind, answer: &Value) {
        let Some(error) = server_error(answer) else { return };
        let details = error.details().unwrap_or_default();
        match error.code() {
            "NOPERM" => self.note_denied(need, command, place, details),
            "ERR" if details.starts_with("unknown command") => {
                self.absent.insert((need, command));
            }
            _ if is_state(error) => self.state = self.state.take().or(Some(describe(error))),
            // The wrong kind of key, no such script: it was allowed to try.
            _ => {}
        }
    }

    /// Understands what is said of a missing right.
    pub(super) fn note_denied(&mut self, need: Need, command: &'static str, place: KeyKind, said: &str) {
        // "no permissions to run the 'get' command", and within a script of Redis before 7.2 "can't run this command".
        if said.contains(" run th") {
            self.commands.insert((need, command));
        } else {
            self.places.insert((need_of(place, need), place));
        }
    }

    /// Whether anything is missing that is needed for this.
    pub(super) fn lacks(&self, need: Need) -> bool {
        let has = |set: &BTreeSet<(Need, &str)>| set.iter().any(|(of, _)| *of == need);
        has(&self.commands) || has(&self.absent) || self.places.iter().any(|(of, _)| *of == need)
    }

    /// One finding for each thing that cannot be done, or one that all can.
    pub(super) fn findings(&self, prefix: &str, user: &str) -> Vec<Finding> {
        const ALL: &[Need] = &[
            Need::Lock,
            Need::Line,
            Need::Call,
            Need::Tell,
            Need::Watch,
            Need::Digest,
            Need::List,
            Need::History,
            Need::Foreign,
            Need::Info,
            Need::Move,
            Need::Nodes,
        ];
        let lacking: Vec<Need> = ALL.iter().copied().filter(|need| self.lacks(*need)).collect();
        if lacking.is_empty() {
            let found = format!("{user} may do all that is needed on {prefix}* and {RESERVED}*");
            return vec![Finding::ok("rights", found)];
        }
        lacking.into_iter().map(|need| self.finding(need, prefix, user)).collect()
    }

    fn finding(&self, need: Need, prefix: &str, user: &str) -> Finding {
        let (found, remedy) = self.of_needs(&[need], prefix, user);
        let consequence = consequence(need);
        match need {
            Need::Lock | Need::Line => Finding::problem("rights", found, consequence, remedy),
            _ => Finding::warning("rights", found, consequence, remedy),
        }
    }

    /// What is missing for these, and what to do about it.
    pub(super) fn of_needs(&self, needs: &[Need], prefix: &str, user: &str) -> (String, String) {
        let of_needs = |set: &BTreeSet<(Need, &'static str)>| -> Vec<&'static str> {
            set.iter().filter(|(of, _)| needs.contains(of)).map(|(_, command)| *command).collect()
        };
        let (commands, absent) = (of_needs(&self.commands), of_needs(&self.absent));
        let places: Vec<KeyKind> =
            self.places.iter().filter(|(of, _)| needs.contains(of)).map(|(_, place)| *place).collect();
        let patterns = patterns(&places, prefix);
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
            remedies.push("do not rename these commands, and use no proxy that leaves them out".to_owned());
        }
        (parts.join("; "), remedies.join("; "))
    }
}

/// The states of a server in which it refuses what a user may do.
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

/// What a kind of key is needed for, whatever was tried on it.
fn need_of(place: KeyKind, need: Need) -> Need {
    match place {
        KeyKind::Index => Need::List,
        KeyKind::History => Need::History,
        KeyKind::Channel => Need::Call,
        KeyKind::Announcements | KeyKind::FairLine | KeyKind::Signal => Need::Tell,
        KeyKind::None => need,
        _ => Need::Lock,
    }
}
