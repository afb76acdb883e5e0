//! Twelve dlocks at a time, of random kinds, on four locks. They, their guards and their commands are killed, stopped and told
//! to end at random moments, while the store is stopped, killed and cut off.
//!
//! `tests/run.sh` leaves these tests out, and `tests/faults.sh` runs them; `DLOCK_TEST_RANDOM_SECONDS` (default 120) is how
//! long they go on on files and on Redis, a quarter of it on each other store. `DLOCK_TEST_RANDOM_SEED` repeats the choices
//! of an earlier run, though not what the scheduler made of them. A test that fails prints the seed.

mod chronicle;
pub mod draw;
mod files;
mod run;
#[cfg(feature = "redis")]
mod servers;
mod weather;

use self::chronicle::Chronicle;
use self::draw::{Draw, NAMES};
use self::files::Files;
use self::run::{Run, witness};
use self::weather::{Stage, Weather};
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::{boot_ns, until};
use crate::support::{SOON, process};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// At a time.
const CROWD: usize = 12;

/// How long the last of them may take to get their turns, and to end.
const DRAIN: Duration = Duration::from_secs(90);

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
    stage: Box<dyn Stage>,
    has_slots: bool,
    span: Duration,
    draw: Draw,
    weather: Weather,
    /// When each dlock was started, in nanoseconds since boot.
    begun: Vec<u64>,
    ends: BTreeMap<usize, Exit>,
    /// The process id of each.
    pids: Vec<i32>,
}

impl Ordeal {
    /// On this store, for a part of the time.
    fn on(store: Store, stage: impl Stage + 'static, quarters: u32) -> Self {
        let span = Duration::from_secs(number("DLOCK_TEST_RANDOM_SECONDS").unwrap_or(120)) * quarters / 4;
        let seed = number("DLOCK_TEST_RANDOM_SEED").unwrap_or_else(boot_ns);
        // Shown when the test fails.
        println!("DLOCK_TEST_RANDOM_SEED={seed}");
        Self {
            store,
            stage: Box::new(stage),
            has_slots: true,
            span,
            draw: Draw::from(seed),
            weather: Weather::from(seed.wrapping_add(1)),
            begun: Vec::new(),
            ends: BTreeMap::new(),
            pids: Vec::new(),
        }
    }

    /// Everything in turn.
    #[track_caller]
    fn go_through(mut self) {
        self.rage();
        self.perish();
        if self.stage.has_leases() {
            self.assert_nothing_left();
        }
        self.visit();
        self.judge();
        self.assert_nothing_left();
    }

    fn start_one(&mut self) -> Run {
        let run = Run::start(&self.store, self.has_slots, self.begun.len(), &mut self.draw);
        self.begun.push(run.begun);
        self.pids.push(run.pid());
        run
    }

    /// Lets them come, suffer and go.
    #[track_caller]
    fn rage(&mut self) {
        let begin = Instant::now();
        let mut crowd: Vec<Run> = Vec::new();
        let mut log = Tail { path: self.store.place.path("log"), read: 0 };
        while begin.elapsed() < self.span || !crowd.is_empty() {
            if begin.elapsed() < self.span {
                self.weather.pass(&mut *self.stage);
                if crowd.len() < CROWD {
                    crowd.push(self.start_one());
                }
            } else {
                // The last ones wait for ever, perhaps.
                self.weather.clear(&mut *self.stage);
            }
            let seen = log.runs();
            for run in &mut crowd {
                run.suffer(seen.contains(&run.number));
            }
            self.let_go(&mut crowd);
            assert!(begin.elapsed() < self.span + DRAIN, "{} are left: {crowd:#?}", crowd.len());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.weather.clear(&mut *self.stage);
        let bearers = || self.store.place.marker().bearers();
        until(SOON, "the end of every process", || bearers().is_empty());
    }

    /// Lets a last crowd come, and kills all of it at once: no dlock is left to clear up behind them.
    #[track_caller]
    fn perish(&mut self) {
        let mut crowd: Vec<Run> = Vec::new();
        let begin = Instant::now();
        while crowd.len() < CROWD || begin.elapsed() < Duration::from_secs(1) {
            if crowd.len() < CROWD {
                crowd.push(self.start_one());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        crowd.iter_mut().for_each(Run::kill);
        until(SOON, "the end of every process", || {
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

    /// Nothing is left in the store, nor on the host. Leases and places of those who were killed end by themselves, and
    /// `dlock status` takes them out of the index.
    #[track_caller]
    fn assert_nothing_left(&self) {
        let url = self.store.url();
        let status = || self.store.place.bare().args(["status", "-b", url]).output();
        let mut traces = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < SOON {
            let status = status();
            assert_eq!(status.exit, Exit::Code(0), "{}", status.stderr);
            traces = self.stage.traces();
            if traces.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(traces.is_empty(), "the store still has {traces:?}");
        let cgroups = || process::cgroups_named_after(&self.pids);
        until(SOON, "the end of every cgroup", || cgroups().is_empty());
    }

    /// One more on each lock, which finds it free.
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
        println!("{} runs, {} faults of the store; {chronicle}", self.begun.len(), self.weather.faults.len());
        println!("exits: {:?}", self.exits());
        chronicle.assert_in_order(&self.begun);
        chronicle.assert_ran_as(&self.ends);
        if self.span >= Duration::from_secs(30) {
            chronicle.assert_lively(self.has_slots);
        }
    }

    /// How many have ended in each way.
    fn exits(&self) -> BTreeMap<String, usize> {
        let mut exits = BTreeMap::new();
        for exit in self.ends.values() {
            *exits.entry(format!("{exit:?}")).or_default() += 1;
        }
        exits
    }
}

#[test]
fn nothing_overlaps_and_nothing_is_left_on_files() {
    let store = Store::file();
    let files = Files::of(&store.place);
    Ordeal::on(store, files, 4).go_through();
}

#[cfg(feature = "redis")]
mod on_servers {
    use super::Ordeal;
    use super::servers::{PERSISTENT, Troupe};
    use crate::support::cluster::{self, Cluster};
    use crate::support::masters::{self, Masters};
    use crate::support::proxy::Proxy;
    use crate::support::redis::{Options, Redis};
    use crate::support::sentinels::{self, Sentinels};
    use crate::support::store::Store;
    use crate::support::tls::Flaw;

    fn persistent() -> Vec<String> {
        PERSISTENT.map(str::to_owned).to_vec()
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_redis() {
        let redis = Redis::start_with(Options { persistent: true, ..Options::default() });
        let proxy = Proxy::to(redis.port());
        let store = Store::on(&redis).behind(proxy.port());
        Ordeal::on(store, Troupe { servers: redis, proxy: Some(proxy) }, 4).go_through();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_redis_with_tls() {
        let tls = Some(Flaw::None);
        let redis =
            Redis::start_with(Options { persistent: true, tls, plain_port: true, ..Options::default() });
        let store = Store::at(redis.url());
        Ordeal::on(store, Troupe { servers: redis, proxy: None }, 1).go_through();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_a_cluster() {
        let cluster = Cluster::start_with(cluster::Plan { args: persistent(), ..cluster::Plan::default() });
        let store = Store::at(cluster.url());
        Ordeal::on(store, Troupe { servers: cluster, proxy: None }, 1).go_through();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_behind_sentinels() {
        let plan = sentinels::Plan { args: persistent(), ..sentinels::Plan::default() };
        let group = Sentinels::start_with(plan);
        let store = Store::at(group.url());
        Ordeal::on(store, Troupe { servers: group, proxy: None }, 1).go_through();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_redlock() {
        let masters = Masters::start_with(masters::Plan { args: persistent(), ..masters::Plan::default() });
        let store = Store::at(masters.url());
        let mut ordeal = Ordeal::on(store, Troupe { servers: masters, proxy: None }, 1);
        ordeal.has_slots = false;
        ordeal.go_through();
    }
}
