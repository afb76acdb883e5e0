//! One dlock, and its faults.

use super::fault_plan::{Kind, Patience, Rng, Strike, Victim};
use crate::support::dlock::BINARY;
use crate::support::probe;
use crate::support::process::{self, Stat};
use crate::support::running::{Exit, Output, Running};
use crate::support::store::Store;
use crate::support::wait::boot_ns;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// How long a dlock may live after a signal that ends it: a grace, a release, and the delay of a busy machine.
const FAREWELL: Duration = Duration::from_secs(30);

pub struct Run {
    pub number: usize,
    /// When it was started, in nanoseconds since boot.
    pub begun: u64,
    kind: Kind,
    strikes: Vec<Strike>,
    due: Vec<Due>,
    running: Running,
    started: Instant,
    /// When its command was first seen to run.
    runs_since: Option<Instant>,
    /// When it was sent a signal that ends it.
    asked_to_end: Option<Instant>,
}

/// The rest of a strike.
struct Due {
    strike: Strike,
    /// The process that is currently stopped.
    stopped: Option<Stat>,
}

impl Run {
    /// Draws one at random, and starts it.
    pub fn start(store: &Store, has_slots: bool, number: usize, draw: &mut Rng) -> Self {
        let (kind, strikes) = draw.run(has_slots);
        let begun = boot_ns();
        let run = store.place.run().backend(store.url()).args(&kind.options).args(&kind.names[1..]);
        let run = run.name(&kind.names[0]).env("WITNESS_RUN", number.to_string());
        let running = run.command(command(store, &kind)).spawn();
        let due = strikes.iter().map(|strike| Due { strike: strike.clone(), stopped: None }).collect();
        let started = Instant::now();
        Self { number, begun, kind, strikes, due, running, started, runs_since: None, asked_to_end: None }
    }

    /// dlock's process id.
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Applies the faults that are due. `runs`: its command has written a record.
    pub fn apply_faults(&mut self, runs: bool) {
        if runs {
            self.runs_since.get_or_insert_with(Instant::now);
        }
        for mut due in std::mem::take(&mut self.due) {
            let since = if due.strike.while_it_runs { self.runs_since } else { Some(self.started) };
            if !since.is_some_and(|since| self.is_over(&mut due, since.elapsed())) {
                self.due.push(due);
            }
        }
        if let Some(asked_to_end) = self.asked_to_end {
            assert!(
                asked_to_end.elapsed() < FAREWELL,
                "asked to end, and still there: {self:?}\n{}",
                self.running.stderr()
            );
        }
    }

    /// Takes the next step of a strike that began this long ago; true after the last.
    fn is_over(&mut self, due: &mut Due, elapsed: Duration) -> bool {
        let strike = &due.strike;
        if elapsed < strike.at + due.stopped.as_ref().and(strike.stopped_for).unwrap_or_default() {
            return false;
        }
        if strike.stopped_for.is_some() && due.stopped.is_none() {
            due.stopped = self.victim(strike.victim);
            send(due.stopped.as_ref(), Signal::SIGSTOP);
            return due.stopped.is_none();
        }
        let was_stopped = due.stopped.is_some();
        let victim = due.stopped.take().or_else(|| self.victim(strike.victim));
        send(victim.as_ref(), strike.signal);
        if was_stopped && strike.signal == Signal::SIGTERM {
            send(victim.as_ref(), Signal::SIGCONT);
        }
        if strike.victim == Victim::Dlock && strike.signal != Signal::SIGCONT {
            self.asked_to_end = Some(Instant::now());
        }
        true
    }

    /// Kills it now, whatever other faults are planned.
    pub fn kill(&mut self) {
        self.due.clear();
        let strike = Strike {
            victim: Victim::Dlock,
            while_it_runs: false,
            at: Duration::ZERO,
            stopped_for: None,
            signal: Signal::SIGKILL,
        };
        self.strikes = vec![strike];
        self.running.signal(Signal::SIGKILL);
    }

    /// The target process; none when it has ended, or has not started.
    fn victim(&self, victim: Victim) -> Option<Stat> {
        let pid = self.running.pid();
        let child = |pid| process::children(pid).into_iter().find(Stat::is_alive);
        match victim {
            Victim::Dlock => Stat::of(pid),
            Victim::Guard => child(pid),
            Victim::Command => {
                let guard = child(pid)?;
                process::children(guard.pid).into_iter().find(|stat| stat.is_alive() && stat.comm == "probe")
            }
            // The child of a command, not one of dlock's own processes.
            Victim::Inner => {
                let tree = process::descendants(pid);
                let commands: Vec<i32> =
                    tree.iter().filter(|stat| stat.comm == "probe").map(|stat| stat.pid).collect();
                tree.into_iter().find(|stat| stat.comm == "dlock" && commands.contains(&stat.ppid))
            }
        }
    }

    /// How it has ended, if it has: a way that is possible after its faults.
    #[track_caller]
    pub fn end(&mut self, store: &Store) -> Option<Exit> {
        let output = self.running.poll()?.clone();
        let by_strike = |strike: &Strike| {
            matches!(strike.victim, Victim::Dlock | Victim::Command) && output.exit == Exit::by(strike.signal)
        };
        let good = match output.exit {
            Exit::Code(0) => true,
            Exit::Code(75) => self.kind.patience != Patience::Forever,
            // The store fails, the machine is busy, and leases are short.
            Exit::Code(69 | 76) if !store.url().starts_with("file:") => true,
            // A dlock was stopped while it wrote into the sidecar.
            Exit::Code(69) => output.stderr.contains("it has been locked for a second by another dlock"),
            Exit::Code(70) => self.strikes.iter().any(|strike| strike.victim == Victim::Guard),
            Exit::Code(_) => false,
            Exit::Signal(_) => self.strikes.iter().any(by_strike),
        };
        self.assert_calm(&output);
        assert!(good, "{self:?}: {output:?}");
        Some(output.exit)
    }

    /// Whatever happens, there is no panic, and every line is one of dlock's messages.
    #[track_caller]
    fn assert_calm(&self, output: &Output) {
        let is_ours = |line: &str| line.starts_with("dlock: ");
        assert!(output.stderr.lines().all(is_ours), "{self:?}: {output:?}");
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "run {} ({:?}, {:?})", self.number, self.kind, self.strikes)
    }
}

/// Sends a signal to a process, unless its pid was recycled.
fn send(victim: Option<&Stat>, signal: Signal) {
    if let Some(victim) = victim
        && Stat::of(victim.pid).is_some_and(|stat| stat.start == victim.start)
    {
        process::send(victim.pid, signal);
    }
}

/// A witness that works for this long.
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
