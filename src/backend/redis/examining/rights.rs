//! Each command that dlock uses, on each kind of key that it uses it on, tried by itself: inside a script a server does not
//! say which right was missing.
//!
//! The keys are those of a lock that nobody uses. Each is made as a string that expires soon, whatever kind it is of
//! otherwise: the kind of a key is looked at after the rights (Redis, `server.c`), so `HSET` answers that it is the wrong
//! one, and nothing is left without an end.

pub(in super::super) mod beforehand;
mod trials;

use std::collections::BTreeSet;

use redis::{Cmd, ServerError, Value};

pub(super) use self::trials::{Need, Place};
use self::trials::{TRIALS, Trial};
use super::super::connection::server_error;
use super::super::errors::describe;
use super::super::keys::{INDEX, Keys, RESERVED};
use crate::backend::examination::Finding;

/// So long does a scratch key live, in ms, if nobody removes it.
pub(super) const SCRATCH_LIFE_MS: usize = 10_000;

/// The keys of a lock that expire by themselves.
const OWN: &[Place] = &[
    Place::Lock,
    Place::Holder,
    Place::Fencing,
    Place::Queue,
    Place::Waiters,
    Place::Member,
    Place::History,
    Place::Counter,
    Place::Signal,
];

/// What a server refuses.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Commands, with what each is needed for.
    commands: BTreeSet<(Need, &'static str)>,
    /// Commands that are not there at all.
    absent: BTreeSet<(Need, &'static str)>,
    /// Kinds of keys.
    places: BTreeSet<(Need, Place)>,
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
    fn key(&self, place: Place) -> Option<String> {
        let keys = self.keys;
        let others = &keys.others;
        Some(match place {
            Place::None | Place::Channel => return None,
            Place::Lock => keys.lock.clone(),
            Place::Holder => keys.holder.clone(),
            Place::Fencing if others.counter.is_some() => return None,
            Place::Fencing => keys.fencing.clone(),
            Place::Queue => keys.queue.clone(),
            Place::Waiters => keys.waiters.clone(),
            Place::Member => format!("{}{}", keys.members, self.token),
            Place::History => keys.history.clone(),
            Place::Index => keys.index.clone(),
            Place::Counter => return others.counter.clone(),
            Place::Announcements => return others.channel.clone(),
            Place::FairLine => return others.queue.clone(),
            Place::Signal => return others.signal.clone(),
        })
    }

    /// The keys of the lock that expire by themselves.
    fn own(&self) -> impl Iterator<Item = (Place, String)> {
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
        let is_there = |place: Place| {
            let index = self.own().position(|(own, _)| own == place);
            index.and_then(|index| prepared.get(index)).is_some_and(|answer| server_error(answer).is_none())
        };
        let safe = |trial: &&Trial| !trial.makes || trial.command == "SET" || is_there(trial.place);
        let exists = |trial: &&Trial| trial.place == Place::None || self.key(trial.place).is_some();
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
    pub(super) fn note(&mut self, need: Need, command: &'static str, place: Place, answer: &Value) {
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
    pub(super) fn note_denied(&mut self, need: Need, command: &'static str, place: Place, said: &str) {
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
        let places: Vec<Place> =
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
fn need_of(place: Place, need: Need) -> Need {
    match place {
        Place::Index => Need::List,
        Place::History => Need::History,
        Place::Channel => Need::Call,
        Place::Announcements | Place::FairLine | Place::Signal => Need::Tell,
        Place::None => need,
        _ => Need::Lock,
    }
}

/// As a rule of an ACL names them; all of dlock's own in one when none of those of a lock is open.
fn patterns(places: &[Place], prefix: &str) -> Vec<String> {
    const OF_LOCK: [Place; 4] = [Place::Holder, Place::Queue, Place::Waiters, Place::Member];
    let all_own = OF_LOCK.iter().all(|own| places.contains(own));
    let mut patterns = Vec::new();
    if all_own {
        patterns.push(format!("{RESERVED}*"));
    }
    for place in places {
        let kind = match place {
            Place::None => continue,
            Place::Lock => {
                patterns.insert(0, format!("{prefix}*"));
                continue;
            }
            Place::Index => {
                patterns.push(INDEX.to_owned());
                continue;
            }
            Place::Counter | Place::Announcements | Place::FairLine | Place::Signal => {
                patterns.push(pattern_of_others(*place).to_owned());
                continue;
            }
            _ if all_own => continue,
            Place::Holder => "holder",
            Place::Fencing => "fencing",
            Place::Queue => "queue",
            Place::Waiters => "waiters",
            Place::Member => "member",
            Place::History => "history",
            Place::Channel => "call",
        };
        patterns.push(format!("{RESERVED}{kind}:*"));
    }
    patterns
}

/// What belongs to locks by their recipe.
fn pattern_of_others(place: Place) -> &'static str {
    match place {
        Place::Counter => "redisson_lock_token:*",
        Place::Announcements => "redisson_lock__channel:*",
        Place::FairLine => "redisson_lock_queue:*",
        _ => "lock-signal:*",
    }
}

fn consequence(need: Need) -> &'static str {
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
        Need::Digest => "the whole script travels with every question, some 15 KB",
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
        let own = [Place::Lock, Place::Holder, Place::Fencing, Place::Queue, Place::Waiters, Place::Member];
        assert_eq!(patterns(&own, "dlock:"), ["dlock:*", "dlock#*"]);
        assert_eq!(patterns(&own[..2], ""), ["*", "dlock#holder:*"]);
        assert_eq!(patterns(&[Place::Channel], ""), ["dlock#call:*"]);
    }
}
