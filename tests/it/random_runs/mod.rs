//! Fifty dlocks at a time, of random kinds, which are killed, stopped and told to end at random moments.
//!
//! `DLOCK_TEST_RANDOM_SECONDS` (default 60) is how long that goes on, a third of it on files and the rest on a Redis;
//! `DLOCK_TEST_RANDOM_SEED` repeats the choices of an earlier run, though not what the scheduler made of them. A test that
//! fails prints the seed.

mod chronicle;
pub mod draw;
mod run;

use self::chronicle::Chronicle;
use self::draw::{Draw, NAMES};
use self::run::{Run, witness};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::{boot_ns, until};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// At a time.
const CROWD: usize = 50;

/// How long the last of them may take to get their turns, and to end.
const DRAIN: Duration = Duration::from_secs(240);

/// What was appended to the log since the last look.
struct Tail {
    path: PathBuf,
    read: u64,
}

impl Tail {
    /// The runs of which somebody has written.
    fn runs(&mut self) -> Vec<usize> {
        let Ok(mut file) = std::fs::File::open(&self.path) else { return Vec::new() };
        let mut text = String::new();
        file.seek(SeekFrom::Start(self.read)).unwrap();
        file.read_to_string(&mut text).unwrap();
        let whole = text.rfind('\n').map_or(0, |last| last + 1);
        self.read += whole as u64;
        text[..whole].lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
    }
}

/// A number from the environment.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// All runs on one store.
struct Ordeal {
    store: Store,
    span: Duration,
    draw: Draw,
    /// When each dlock was started, in nanoseconds since boot.
    begun: Vec<u64>,
    ends: BTreeMap<usize, Exit>,
}

impl Ordeal {
    /// On this store, for so many thirds of the time.
    fn on(store: Store, thirds: u32) -> Self {
        let span = Duration::from_secs(number("DLOCK_TEST_RANDOM_SECONDS").unwrap_or(60)) * thirds / 3;
        let seed = number("DLOCK_TEST_RANDOM_SEED").unwrap_or_else(boot_ns);
        // Shown when the test fails.
        println!("DLOCK_TEST_RANDOM_SEED={seed}");
        Self { store, span, draw: Draw::from(seed), begun: Vec::new(), ends: BTreeMap::new() }
    }

    /// Lets them come, suffer and go.
    #[track_caller]
    fn rage(&mut self) {
        let begin = Instant::now();
        let mut crowd: Vec<Run> = Vec::new();
        let mut log = Tail { path: self.store.place.path("log"), read: 0 };
        while begin.elapsed() < self.span || !crowd.is_empty() {
            if begin.elapsed() < self.span && crowd.len() < CROWD {
                crowd.push(Run::start(&self.store, self.begun.len(), &mut self.draw));
                self.begun.push(crowd[crowd.len() - 1].begun);
            }
            let seen = log.runs();
            for run in &mut crowd {
                run.suffer(seen.contains(&run.number));
            }
            self.let_go(&mut crowd);
            assert!(begin.elapsed() < self.span + DRAIN, "{} are left: {crowd:#?}", crowd.len());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Lets a last crowd come, and kills all of it at once: nobody is left to clear up behind them.
    #[track_caller]
    fn perish(&mut self) {
        let mut crowd: Vec<Run> = Vec::new();
        let begin = Instant::now();
        while crowd.len() < CROWD || begin.elapsed() < Duration::from_secs(1) {
            if crowd.len() < CROWD {
                crowd.push(Run::start(&self.store, self.begun.len(), &mut self.draw));
                self.begun.push(crowd[crowd.len() - 1].begun);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        crowd.iter_mut().for_each(Run::kill);
        until(SOON, "the end of everybody", || {
            self.let_go(&mut crowd);
            crowd.is_empty() && self.store.place.marker().bearers().is_empty()
        });
    }

    /// Looks who of them has ended.
    #[track_caller]
    fn let_go(&mut self, crowd: &mut Vec<Run>) {
        crowd.retain_mut(|run| match run.end(&self.store) {
            Some(exit) => {
                self.ends.insert(run.number, exit);
                false
            }
            None => true,
        });
    }

    /// One more on each lock, who finds nobody.
    #[track_caller]
    fn visit(&mut self) {
        for name in NAMES {
            let (number, begun) = (self.begun.len(), boot_ns());
            let run = self.store.run().name(name).args(["--wait", "forever"]);
            let run = run.env("WITNESS_RUN", number.to_string()).command(witness(&self.store, 0));
            assert_eq!(run.output().outcome(), (Exit::Code(0), "", ""), "the last run on {name}");
            self.begun.push(begun);
            self.ends.insert(number, Exit::Code(0));
        }
    }

    /// Looks at what they have written down.
    #[track_caller]
    fn judge(&self) {
        let chronicle = Chronicle::read(&self.store.place.read("log"));
        println!("{} runs; {chronicle}", self.begun.len());
        chronicle.assert_in_order(&self.begun);
        chronicle.assert_ran_as(&self.ends);
        if self.span >= Duration::from_secs(10) {
            chronicle.assert_lively();
        }
    }
}

#[test]
fn whoever_is_killed_on_files_no_two_run_together_and_nothing_is_left() {
    let mut ordeal = Ordeal::on(Store::file(), 1);
    ordeal.rage();
    ordeal.perish();
    ordeal.visit();
    ordeal.judge();
    let place = &ordeal.store.place;
    for name in NAMES {
        let text = place.read(&format!("locks/{name}.dlock"));
        let noted: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let [members, line] = ["members", "line"].map(|list| noted[list].to_string());
        assert_eq!((members.as_str(), line.as_str()), ("[]", "[]"), "what is noted of {name}");
        assert!(place.lock_is_free(name));
    }
}

#[cfg(feature = "redis")]
#[test]
fn whoever_is_killed_on_a_redis_no_two_run_together_and_nothing_is_left() {
    let redis = crate::support::redis::Redis::start();
    let store = Store::on(&redis);
    let (place, url) = (store.place.clone(), store.url().to_owned());
    let mut ordeal = Ordeal::on(store, 2);
    ordeal.rage();
    ordeal.perish();
    // The leases and places of those who were killed end by themselves; whoever looks then takes them out of the index.
    let counters_only = || {
        let status = place.bare().args(["status", "-b", &url]).output();
        assert_eq!(status.exit, Exit::Code(0), "{}", status.stderr);
        redis.command(&["KEYS", "*"]).texts().iter().all(|key| crate::support::redis::is_memory(key))
    };
    until(SOON, "nothing but fencing counters and outcomes", counters_only);
    ordeal.visit();
    ordeal.judge();
    assert!(counters_only(), "{:?}", redis.command(&["KEYS", "*"]));
}
