//! What a dlock is, and what becomes of it: drawn by lot.

use nix::sys::signal::Signal;
use std::time::Duration;

/// What they fight for.
pub const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// How long one waits.
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
    /// Something lives on when the command ends, until it is killed.
    pub daemon: bool,
    /// The command runs another one.
    pub inner: Option<Box<Kind>>,
}

/// Who is meant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Victim {
    Nobody,
    Dlock,
    Guard,
    Inner,
}

/// What happens to it, and when.
#[derive(Debug)]
pub struct Fate {
    pub victim: Victim,
    /// The time counts from the start of the command; otherwise from that of dlock, which then may still wait.
    pub while_it_runs: bool,
    pub at: Duration,
    /// It is stopped for so long before.
    pub stopped_for: Option<Duration>,
    pub signal: Signal,
}

/// The lot: SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Draw(u64);

impl From<u64> for Draw {
    fn from(seed: u64) -> Self {
        Self(seed)
    }
}

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + usize::try_from(self.next() % (high - low + 1) as u64).expect("a small number")
    }

    /// So many times out of a hundred.
    pub fn percent(&mut self, often: usize) -> bool {
        self.between(1, 100) <= often
    }

    /// One dlock, perhaps with another one inside, and what becomes of it.
    pub fn run(&mut self) -> (Kind, Fate) {
        let (mut kind, fate) = (self.kind(), self.fate());
        // Whoever is to be hit while it runs must not have ended by then, nor when its lease ends.
        let hit = match fate.victim {
            Victim::Nobody => None,
            Victim::Inner => kind.inner.as_deref_mut(),
            Victim::Dlock | Victim::Guard => Some(&mut kind),
        };
        if let Some(hit) = hit.filter(|_| fate.while_it_runs) {
            hit.work_ms = self.between(100, 3500);
        }
        (kind, fate)
    }

    fn kind(&mut self) -> Kind {
        let first = self.between(0, NAMES.len() - 1);
        let mut names = vec![NAMES[first].to_owned()];
        if self.percent(10) {
            names.push(NAMES[(first + self.between(1, NAMES.len() - 1)) % NAMES.len()].to_owned());
        }
        let mode = match self.between(1, 100) {
            1..=40 => &[][..],
            41..=70 => &["--shared"],
            _ => &["--slots", "3"],
        };
        let patience = match self.between(1, 100) {
            1..=25 => Patience::None,
            26..=60 => Patience::ASecond,
            _ => Patience::Forever,
        };
        let mut kind = self.of(names, mode, patience);
        if self.percent(20) {
            kind.inner = Some(Box::new(self.inside(&kind, mode)));
            // The witness of the outer command is inherited: the inner dlock's half that stays behind a killed one must
            // not outlive the outer lock with it.
            if !kind.daemon {
                kind.options.extend(["--orphans", "kill"].map(str::to_owned));
            }
        }
        kind
    }

    /// One that enters the hold, or takes another lock: then it must not wait for ever for somebody who waits for us.
    fn inside(&mut self, outer: &Kind, mode: &[&str]) -> Kind {
        let name = match self.percent(70) {
            true => outer.names[0].clone(),
            false => NAMES[self.between(0, NAMES.len() - 1)].to_owned(),
        };
        self.of(vec![name], mode, Patience::ASecond)
    }

    fn of(&mut self, names: Vec<String>, mode: &[&str], patience: Patience) -> Kind {
        let ttl = self.between(1000, 3000);
        // What fits: a hundredth and the margin are dlock's own, and SIGTERM comes no sooner than half of it is over.
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

    fn fate(&mut self) -> Fate {
        let victim = match self.between(1, 100) {
            1..=45 => Victim::Nobody,
            46..=85 => Victim::Dlock,
            86..=90 => Victim::Guard,
            _ => Victim::Inner,
        };
        let while_it_runs = victim == Victim::Inner || self.percent(60);
        let at = Duration::from_millis(self.between(0, if while_it_runs { 100 } else { 1500 }) as u64);
        let stopped = victim != Victim::Guard && self.percent(40);
        let stopped_for = stopped.then(|| Duration::from_millis(self.between(20, 3500) as u64));
        let signal = match (victim, stopped, self.between(1, 3)) {
            (Victim::Guard, ..) => Signal::SIGKILL,
            (_, true, 1 | 2) => Signal::SIGCONT,
            (_, false, 1) => Signal::SIGTERM,
            _ => Signal::SIGKILL,
        };
        Fate { victim, while_it_runs, at, stopped_for, signal }
    }
}
