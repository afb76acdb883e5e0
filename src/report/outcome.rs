//! The result of a run as one value, from which the report, the metrics and the history are made.

use std::time::Duration;

use serde_json::{Value, json};

use super::histogram::Histogram;
use super::{frozen_by, json, milliseconds, time};
use crate::backend::Busy;
use crate::child::protocol::Ended;
use crate::clock::{Moment, wall_micros};
use crate::exit::{Exit, Failure, FailureKind};
use crate::identity;
use crate::lock::record::CONTENDED;
use crate::lock::{Claim, FencingToken, Holder, Identity, LockName, NotDue, Record};

/// How a run ended, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command ran under the lock to its end.
    Ran,
    /// A run that began within `--once-per` had succeeded.
    Done,
    /// Another client held the lock.
    Contended,
    Unavailable,
    Denied,
    /// The lock was lost while the command ran, or the outer lock of a nested run was lost.
    Lost,
    MaxRuntime,
    /// The command was not found, or cannot be executed.
    NotExecutable,
    /// A signal ended dlock before it acquired the lock.
    Interrupted,
    /// The command line is wrong.
    Usage,
    /// Environment, configuration or URL is wrong.
    Config,
    Internal,
}

impl Outcome {
    /// Every outcome, with its serialized name.
    pub(super) const ALL: [(Outcome, &str); 12] = [
        (Outcome::Ran, "ran"),
        (Outcome::Done, "done"),
        (Outcome::Contended, CONTENDED),
        (Outcome::Unavailable, "unavailable"),
        (Outcome::Denied, "denied"),
        (Outcome::Lost, "lost"),
        (Outcome::MaxRuntime, "max_runtime"),
        (Outcome::NotExecutable, "not_executable"),
        (Outcome::Interrupted, "interrupted"),
        (Outcome::Usage, "usage"),
        (Outcome::Config, "config"),
        (Outcome::Internal, "internal"),
    ];

    pub fn as_str(self) -> &'static str {
        let found = Outcome::ALL.iter().find(|(outcome, _)| *outcome == self);
        found.map(|(_, name)| *name).expect("the table has every outcome")
    }
}

impl From<FailureKind> for Outcome {
    fn from(kind: FailureKind) -> Outcome {
        match kind {
            FailureKind::Usage => Outcome::Usage,
            FailureKind::Config => Outcome::Config,
            FailureKind::Unavailable => Outcome::Unavailable,
            FailureKind::Lost => Outcome::Lost,
            FailureKind::Denied => Outcome::Denied,
            FailureKind::Internal => Outcome::Internal,
            FailureKind::CannotExecute | FailureKind::NotFound => Outcome::NotExecutable,
        }
    }
}

/// A moment on two clocks: the wall clock for display, and one to measure with.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// The time since 1970 by the wall clock.
    pub wall: Duration,
    /// The same on the clock that counts through suspend.
    pub moment: Moment,
}

impl Started {
    pub fn now() -> Started {
        Started { wall: Duration::from_micros(wall_micros()), moment: Moment::now() }
    }
}

/// One lock of a run.
#[derive(Clone, Debug)]
pub struct ReportedLock {
    pub name: LockName,
    /// The fencing token, once the lock is held.
    pub fencing: Option<FencingToken>,
    /// Who held it, if any one of several was wanted and none was free.
    pub holder: Option<Holder>,
    /// Why it was not free then, for its history, if it had no holder.
    pub cause: Option<String>,
    /// How long the acknowledged renewals took.
    pub renewals: Histogram,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    pub started: Started,
    /// The locks, in the order in which they are taken; none when the names are not valid. Of those of which any one was
    /// wanted, the one that was granted.
    pub locks: Vec<ReportedLock>,
    /// `--any`: the locks of which one was wanted.
    pub any: Option<Vec<LockName>>,
    /// The store, without secrets.
    pub backend: Option<String>,
    pub outcome: Outcome,
    pub exit: Exit,
    /// How the command ended; `None` when it never ran, or when that is unknown.
    pub command: Option<Ended>,
    /// The locks were requested from the store.
    pub requested: bool,
    /// The time from the start to the grant, or to giving up.
    pub waited: Duration,
    /// The time from the grant to the release, if the locks were held.
    pub held: Option<Duration>,
    /// All locks were released, or left to the store for the rest of `--min-hold`; `None` when they were
    /// never held.
    pub released: Option<bool>,
    /// The holder of the lock that could not be acquired.
    pub holder: Option<Holder>,
    /// That lock.
    pub held_lock: Option<LockName>,
    /// The run because of which this one was not due.
    pub done: Option<NotDue>,
    /// Why the lock was broken.
    pub reason: Option<String>,
    /// The message that says why the command did not run to its end under the lock.
    pub error: Option<String>,
    /// The same for the history of a lock.
    pub cause: Option<Cause>,
}

/// Why a command did not run to its end under the lock, without the store and the consequences.
#[derive(Clone, Debug)]
pub struct Cause {
    /// The lock that it is about, if it is about one.
    pub lock: Option<LockName>,
    pub text: String,
}

impl RunReport {
    /// Returns the report of a run that has just started. Until set otherwise, its outcome is an internal
    /// failure.
    pub fn new(started: Started, names: &[LockName], backend: Option<String>) -> RunReport {
        let lock = |name: &LockName| ReportedLock {
            name: name.clone(),
            fencing: None,
            holder: None,
            cause: None,
            renewals: Histogram::default(),
        };
        RunReport {
            started,
            locks: names.iter().map(lock).collect(),
            any: None,
            backend,
            outcome: Outcome::Internal,
            exit: FailureKind::Internal.into(),
            command: None,
            requested: false,
            waited: Duration::ZERO,
            held: None,
            released: None,
            holder: None,
            held_lock: None,
            done: None,
            reason: None,
            error: None,
            cause: None,
        }
    }

    /// Returns the same report, of a run that wants any one of its locks.
    #[must_use]
    pub fn of_any(mut self) -> RunReport {
        self.any = Some(self.locks.iter().map(|lock| lock.name.clone()).collect());
        self
    }

    /// Records why one of several locks of which none was free was not. The holder of the run is the first of theirs.
    pub fn found(&mut self, name: &LockName, busy: &Busy) {
        self.held_lock = None;
        self.holder = self.holder.take().or(busy.holder().cloned());
        for lock in self.locks.iter_mut().filter(|lock| lock.name == *name) {
            lock.holder = busy.holder().cloned();
            lock.cause = busy.freeze.as_deref().map(frozen_by);
        }
    }

    /// Records which of several locks of which one was wanted is held.
    pub fn took(&mut self, name: &LockName) {
        self.locks.retain(|lock| lock.name == *name);
    }

    /// Records the end of the wait, granted or not.
    pub fn stop_waiting(&mut self) {
        self.waited = Moment::now() - self.started.moment;
    }

    /// Returns the same report, ended by a failure.
    pub fn failed(mut self, failure: &Failure) -> RunReport {
        self.outcome = failure.kind.into();
        self.exit = failure.kind.into();
        self.error = Some(failure.message.clone());
        if !self.requested {
            self.stop_waiting();
        }
        self
    }

    pub fn renewals(&self) -> u64 {
        self.locks.iter().map(|lock| lock.renewals.count()).sum()
    }

    pub fn exit_status(&self) -> Option<i32> {
        match self.command {
            Some(Ended::Exited(status)) => Some(status),
            _ => None,
        }
    }

    pub fn signal(&self) -> Option<i32> {
        match self.command {
            Some(Ended::Killed(signal)) => Some(signal),
            _ => None,
        }
    }

    /// Returns whether the command ran under the lock to its end with exit status 0.
    pub fn succeeded(&self) -> bool {
        self.outcome == Outcome::Ran && self.exit_status() == Some(0)
    }

    /// Returns the record for the history of the lock of this claim.
    pub fn record(&self, claim: &Claim) -> Record {
        // The fields that identify a process are of no use once it has ended.
        let known = |identity: &Identity| Identity {
            start: 0,
            boot: String::new(),
            pid_ns: 0,
            next_lock: None,
            supersedes: false,
            first_ticket: None,
            note: identity.note.as_deref().map(short),
            // A truncated URL is useless.
            url: identity.url.clone().filter(|url| url.len() <= LONGEST_URL),
            ..identity.clone()
        };
        // Of the other holder the identity is enough.
        let other = |identity: &Identity| Identity { note: None, url: None, ..known(identity) };
        let lock = self.locks.iter().find(|lock| lock.name == claim.name);
        // With --any, the holder of the run may hold another lock than this.
        let of_run = self.holder.as_ref().filter(|_| self.any.is_none());
        let holder = lock.and_then(|lock| lock.holder.as_ref()).or(of_run);
        let of_lock = lock.and_then(|lock| lock.cause.clone());
        Record {
            outcome: self.outcome.as_str().to_owned(),
            identity: known(&claim.identity),
            dlock_exit: self.dlock_exit(),
            exit_status: self.exit_status(),
            signal: self.signal(),
            fencing_token: lock.and_then(|lock| lock.fencing),
            waited_ms: milliseconds(self.waited),
            held_ms: self.held.map(milliseconds),
            kept_ms: holder.and_then(Holder::kept).map(milliseconds),
            holder: holder.and_then(|holder| holder.identity.as_ref()).map(other),
            held_lock: self.other_lock(&claim.name),
            reason: self.reason.as_deref().map(short),
            interrupted: false,
            error: of_lock.or(self.cause_for(&claim.name)).or(self.error.clone()).as_deref().map(short),
        }
    }

    /// Returns the cause for the history of this lock, which names another one.
    fn cause_for(&self, own: &LockName) -> Option<String> {
        let Cause { lock: about, text } = self.cause.as_ref()?;
        Some(match about {
            Some(other) if other != own => format!("{other}: {text}"),
            _ => text.clone(),
        })
    }

    /// Returns the lock that could not be acquired, if it is another one than this.
    fn other_lock(&self, own: &LockName) -> Option<String> {
        self.held_lock.as_ref().filter(|held| *held != own).map(|held| held.as_str().to_owned())
    }

    fn dlock_exit(&self) -> i32 {
        match self.exit {
            Exit::Status(status) => i32::from(status),
            Exit::Signal(signal) => 128 + signal,
        }
    }

    /// Returns one JSON object on one line.
    pub fn to_json(&self) -> String {
        let lock = |lock: &ReportedLock| json!({"name": lock.name.as_str(), "fencing_token": lock.fencing});
        let taken = self.held.and_then(|_| self.locks.first()).map(|lock| lock.name.as_str());
        let any = |names: &Vec<LockName>| {
            let names: Value = names.iter().map(LockName::as_str).collect();
            json!({"names": names, "taken": taken})
        };
        json::line(&json!({
            "version": 1,
            "outcome": self.outcome.as_str(),
            "dlock_exit": self.dlock_exit(),
            "exit_status": self.exit_status(),
            "signal": self.signal(),
            "locks": self.locks.iter().map(lock).collect::<Value>(),
            "backend": self.backend,
            "host": identity::host(),
            "user": identity::user(),
            "started_at": time(self.started.wall),
            "waited_ms": milliseconds(self.waited),
            "held_ms": self.held.map(milliseconds),
            "renewals": self.renewals(),
            "released": self.released,
            "holder": self.holder.as_ref().map(json::holder),
            "reason": self.reason,
            "error": self.error,
            "done": self.done.as_ref().map(json::done),
            "any": self.any.as_ref().map(any),
        }))
    }
}

/// The maximum length of a URL in a history.
const LONGEST_URL: usize = 400;

/// Returns the part of a text that is kept in a history, short enough that a store sends the history in
/// one reply.
fn short(text: &str) -> String {
    const MOST: usize = 400;
    let mut length = 0;
    for (at, c) in text.char_indices() {
        // As JSON.
        length += match c {
            '"' | '\\' => 2,
            c if c.is_control() => 6,
            c => c.len_utf8(),
        };
        if length > MOST {
            return format!("{}...", &text[..at]);
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Token;

    #[test]
    fn the_history_of_a_lock_without_a_holder_names_no_holder_of_another_one() {
        let names = ["a", "b"].map(|name| LockName::new(name).expect("a name"));
        let holder = Holder { identity: Some(Identity::default()), ..Holder::default() };
        let mut report = RunReport::new(Started::now(), &names, None);
        report.holder = Some(holder.clone());
        let claim = |name: &LockName| Claim::new(name.clone(), Token::random(), Duration::from_secs(1));
        assert!(report.record(&claim(&names[1])).holder.is_some());
        let mut report = report.of_any();
        let busy = |holders| Busy { holders, ..Busy::default() };
        report.found(&names[0], &busy(vec![holder]));
        report.found(&names[1], &busy(Vec::new()));
        let is_known = names.each_ref().map(|name| report.record(&claim(name)).holder.is_some());
        assert_eq!(is_known, [true, false]);
    }
}
