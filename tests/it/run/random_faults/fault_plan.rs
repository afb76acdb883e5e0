//! The random choices: kinds of dlocks, their faults, and the faults of their store.

use nix::sys::signal::Signal;
use std::time::Duration;

/// The locks.
pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// How long a dlock waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Patience {
    None,
    ASecond,
    Forever,
}

/// One dlock and its command.
#[derive(Debug)]
pub struct Kind {
    pub options: Vec<String>,
    pub names: Vec<String>,
    pub patience: Patience,
    pub work_ms: usize,
    /// The command leaves a process in the background that lives until it is killed.
    pub daemon: bool,
    /// The command runs another dlock.
    pub inner: Option<Box<Kind>>,
}

/// Which process is hit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Victim {
    Dlock,
    Guard,
    Command,
    /// The dlock that the command runs.
    Inner,
}

/// A fault of a process.
#[derive(Debug, Clone)]
pub struct Strike {
    pub victim: Victim,
    /// The time counts from the start of the command; otherwise from that of dlock, which may still be waiting then.
    pub while_it_runs: bool,
    pub at: Duration,
    /// It is stopped first, for this long.
    pub stopped_for: Option<Duration>,
    pub signal: Signal,
}

/// A generator of numbers: SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Rng(u64);

impl From<u64> for Rng {
    fn from(seed: u64) -> Self {
        Self(seed)
    }
}

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both inclusive.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + usize::try_from(self.next() % (high - low + 1) as u64).expect("a small number")
    }

    /// True in this percentage of cases.
    pub fn percent(&mut self, often: usize) -> bool {
        self.between(1, 100) <= often
    }

    /// Between these two, in milliseconds.
    pub fn millis(&mut self, low: usize, high: usize) -> Duration {
        Duration::from_millis(self.between(low, high) as u64)
    }

    /// One dlock, perhaps with a nested one, and its faults.
    pub fn run(&mut self, has_slots: bool) -> (Kind, Vec<Strike>) {
        let (mut kind, strikes) = (self.kind(has_slots), self.strikes());
        for strike in strikes.iter().filter(|strike| strike.while_it_runs) {
            let struck = match strike.victim {
                Victim::Inner => kind.inner.as_deref_mut(),
                Victim::Dlock | Victim::Guard | Victim::Command => Some(&mut kind),
            };
            // It must not have ended by then, nor when its lease ends.
            if let Some(struck) = struck {
                struck.work_ms = self.between(100, 3500);
            }
        }
        (kind, strikes)
    }

    fn kind(&mut self, has_slots: bool) -> Kind {
        let first = self.between(0, NAMES.len() - 1);
        let mut names = vec![NAMES[first].to_owned()];
        if self.percent(10) {
            names.push(NAMES[(first + self.between(1, NAMES.len() - 1)) % NAMES.len()].to_owned());
        }
        let mode = match self.between(1, 100) {
            1..=40 => &[][..],
            71.. if has_slots => &["--slots", "3"],
            _ => &["--shared"],
        };
        let patience = match self.between(1, 100) {
            1..=25 => Patience::None,
            26..=60 => Patience::ASecond,
            _ => Patience::Forever,
        };
        let mut kind = self.of(names, mode, patience);
        if self.percent(20) {
            kind.inner = Some(Box::new(self.inside(&kind, mode)));
            // The witness of the outer command is inherited: the surviving process of a killed inner dlock must
            // not outlive the outer lock with it.
            if !kind.daemon {
                kind.options.extend(["--orphans", "kill"].map(str::to_owned));
            }
        }
        kind
    }

    /// One that enters the hold, or takes another lock: then it must not wait indefinitely for one that waits for the
    /// outer.
    fn inside(&mut self, outer: &Kind, mode: &[&str]) -> Kind {
        let name = match self.percent(70) {
            true => outer.names[0].clone(),
            false => NAMES[self.between(0, NAMES.len() - 1)].to_owned(),
        };
        self.of(vec![name], mode, Patience::ASecond)
    }

    fn of(&mut self, names: Vec<String>, mode: &[&str], patience: Patience) -> Kind {
        let ttl = self.between(1000, 3000);
        // Valid values: a hundredth and the margin are reserved for dlock, and SIGTERM is sent no sooner than after
        // half of it.
        let grace = self.between(0, ttl * 99 / 100 - ttl / 2 - 210);
        let mut options =
            vec!["--ttl".to_owned(), format!("{ttl}ms"), "--grace".to_owned(), format!("{grace}ms")];
        let mut add = |words: &[&str]| options.extend(words.iter().map(|word| (*word).to_owned()));
        add(mode);
        match patience {
            Patience::None => add(&["--no-wait"]),
            Patience::ASecond => add(&["--wait", "1s"]),
            Patience::Forever => add(&["--wait", "forever"]),
        }
        if self.percent(20) {
            add(&["--min-hold", &format!("{}ms", self.between(50, 400))]);
        }
        let daemon = self.percent(15);
        if daemon {
            add(&["--orphans", "kill"]);
        }
        let long = self.percent(6);
        let work_ms = if long { self.between(ttl / 2, ttl * 3 / 2) } else { self.between(0, 120) };
        Kind { options, names, patience, work_ms, daemon, inner: None }
    }

    /// Only dlock or its guard is killed or stopped: the promise does not hold when both are at once.
    fn strikes(&mut self) -> Vec<Strike> {
        let half = match self.between(1, 100) {
            1..=30 => Some(Victim::Dlock),
            31..=45 => Some(Victim::Guard),
            46..=53 => Some(Victim::Inner),
            _ => None,
        };
        let mut strikes: Vec<Strike> = half.into_iter().map(|victim| self.strike(victim)).collect();
        // A dlock that received a termination signal can do without its guard, and must.
        if let [strike] = &strikes[..]
            && (strike.victim, strike.signal, strike.stopped_for) == (Victim::Dlock, Signal::SIGTERM, None)
        {
            let at = strike.at + self.millis(0, 1000);
            let guard = Strike { victim: Victim::Guard, at, signal: Signal::SIGKILL, ..strike.clone() };
            strikes.push(guard);
        }
        if self.percent(20) {
            strikes.push(self.strike(Victim::Command));
        }
        strikes
    }

    fn strike(&mut self, victim: Victim) -> Strike {
        let may_wait = matches!(victim, Victim::Dlock | Victim::Guard);
        let while_it_runs = !may_wait || self.percent(60);
        let at = self.millis(0, if while_it_runs { 150 } else { 1500 });
        let stopped_for = self.percent(40).then(|| self.millis(20, 3500));
        let signal = match (stopped_for.is_some(), self.between(1, 4)) {
            (true, 1 | 2) => Signal::SIGCONT,
            (_, 3) => Signal::SIGTERM,
            _ => Signal::SIGKILL,
        };
        Strike { victim, while_it_runs, at, stopped_for, signal }
    }
}
