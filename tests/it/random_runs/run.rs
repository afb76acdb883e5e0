//! One dlock, and what happens to it.

use super::draw::{Draw, Fate, Kind, Patience, Victim};
use crate::support::dlock::BINARY;
use crate::support::probe;
use crate::support::process::{self, Stat};
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::boot_ns;
use nix::sys::signal::Signal;
use std::time::Instant;

pub struct Run {
    pub number: usize,
    /// When it was started, in nanoseconds since boot.
    pub begun: u64,
    kind: Kind,
    fate: Fate,
    running: Running,
    /// From when its fate counts: its own start, or that of its command.
    since: Option<Instant>,
    /// Who is to go on, or to die, at the end of a stop.
    stopped: Option<Stat>,
    over: bool,
}

impl Run {
    /// Draws one by lot, and starts it.
    pub fn start(store: &Store, number: usize, draw: &mut Draw) -> Self {
        let (kind, fate) = draw.run();
        let begun = boot_ns();
        let run = store.place.run().backend(store.url()).args(&kind.options).args(&kind.names[1..]);
        let run = run.name(&kind.names[0]).env("WITNESS_RUN", number.to_string());
        let running = run.command(command(store, &kind)).spawn();
        let since = (!fate.while_it_runs).then(Instant::now);
        Self { number, begun, kind, fate, running, since, stopped: None, over: false }
    }

    /// Does to it what is due. `runs`: its command has written something.
    pub fn suffer(&mut self, runs: bool) {
        if runs {
            self.since.get_or_insert_with(Instant::now);
        }
        let Some(elapsed) = self.since.map(|since| since.elapsed()) else { return };
        if self.over || elapsed < self.fate.at {
            return;
        }
        let victim = match (self.fate.stopped_for, self.stopped.take()) {
            (Some(_), None) => {
                self.stopped = self.victim();
                self.over = self.stopped.is_none();
                return send(self.stopped.as_ref(), Signal::SIGSTOP);
            }
            (Some(span), Some(victim)) if elapsed < self.fate.at + span => {
                self.stopped = Some(victim);
                return;
            }
            (Some(_), stopped) => stopped,
            (None, _) => self.victim(),
        };
        send(victim.as_ref(), self.fate.signal);
        self.over = true;
    }

    /// Kills it now, whatever else was to happen.
    pub fn kill(&mut self) {
        self.fate.victim = Victim::Dlock;
        self.running.signal(Signal::SIGKILL);
    }

    /// Whom it happens to; nobody when they are gone, or not there yet.
    fn victim(&self) -> Option<Stat> {
        let pid = self.running.pid();
        match self.fate.victim {
            Victim::Nobody => None,
            Victim::Dlock => Stat::of(pid),
            Victim::Guard => process::children(pid).into_iter().find(Stat::is_alive),
            // The child of a command, not one of our own halves.
            Victim::Inner => {
                let tree = process::descendants(pid);
                let commands: Vec<i32> =
                    tree.iter().filter(|stat| stat.comm == "probe").map(|stat| stat.pid).collect();
                tree.into_iter().find(|stat| stat.comm == "dlock" && commands.contains(&stat.ppid))
            }
        }
    }

    /// How it has ended, if it has: as something ends to which that has happened.
    #[track_caller]
    pub fn end(&mut self, store: &Store) -> Option<Exit> {
        let output = self.running.poll()?.clone();
        let good = match output.exit {
            Exit::Code(0) => true,
            Exit::Code(75) => self.kind.patience != Patience::Forever,
            // The machine is busy, and leases are short.
            Exit::Code(69 | 76) if store.url().starts_with("redis") => true,
            // Somebody was stopped while he wrote down what all have to know.
            Exit::Code(69) => output.stderr.contains("another dlock has had it locked for a second"),
            Exit::Code(70) => self.fate.victim == Victim::Guard,
            Exit::Code(_) => false,
            Exit::Signal(_) => self.fate.victim == Victim::Dlock,
        };
        assert!(good, "{self:?}: {output:?}");
        Some(output.exit)
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "run {} ({:?}, {:?})", self.number, self.kind, self.fate)
    }
}

/// Sends a signal to whoever was meant, and to nobody who has got his number since.
fn send(victim: Option<&Stat>, signal: Signal) {
    if let Some(victim) = victim
        && Stat::of(victim.pid).is_some_and(|stat| stat.start == victim.start)
    {
        process::send(victim.pid, signal);
    }
}

/// A witness that works for so long.
pub fn witness(store: &Store, ms: usize) -> Vec<String> {
    probe::command(["witness", &store.place.arg("."), &ms.to_string()])
}

/// The command: a witness, perhaps with a daemon, perhaps with a dlock inside.
fn command(store: &Store, kind: &Kind) -> Vec<String> {
    let mut command = witness(store, kind.work_ms);
    if kind.daemon {
        command.push("daemon".to_owned());
    }
    if let Some(inner) = &kind.inner {
        command.extend(["inside", BINARY, "run", "-b", store.url()].map(str::to_owned));
        command.extend(inner.options.iter().chain(&inner.names).cloned());
        command.push("--".to_owned());
        command.extend(witness(store, inner.work_ms));
    }
    command
}
