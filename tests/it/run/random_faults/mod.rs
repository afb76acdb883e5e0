//! Twelve dlocks at a time, of random kinds, on four locks. They, their guards and their commands are killed, stopped
//! and signalled at random moments, while the store is stopped, killed and disconnected.
//!
//! `tests/run.sh` skips these tests, and `tests/faults.sh` runs them; `DLOCK_TEST_RANDOM_SECONDS` (default 120) is
//! their duration on files and on Redis, and a quarter of it on each other store. `DLOCK_TEST_RANDOM_SEED` repeats the
//! choices of an earlier run, but not their scheduling. A test that fails prints the seed.

mod ensembles;
pub mod event_log;
pub mod fault_plan;
mod files;
mod network;
mod one_server;
mod run;
mod servers;
mod store_faults;
mod stuck_leader;

use self::event_log::EventLog;
use self::fault_plan::{NAMES, Rng};
use self::files::Files;
use self::run::{Run, witness};
use self::store_faults::{FaultyStore, StoreFaults};
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::{boot_ns, until};
use crate::support::{SOON, process};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// At a time.
const CROWD: usize = 12;

/// Time limit for the last of them to get their turns, and to end.
const DRAIN: Duration = Duration::from_secs(90);

/// A span from which on something of each kind must happen.
const LONG: Duration = Duration::from_secs(30);

/// By how much a busy machine may extend such a span until it has.
const EXTENSION: Duration = Duration::from_secs(120);

/// What was appended to the log since the last read.
struct Tail {
    path: PathBuf,
    read: u64,
}

impl Tail {
    /// The runs that have been recorded.
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
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// All runs on one store.
struct Campaign {
    store: Store,
    faulty_store: Box<dyn FaultyStore>,
    has_slots: bool,
    span: Duration,
    draw: Rng,
    faults: StoreFaults,
    /// When each dlock was started, in nanoseconds since boot.
    begun: Vec<u64>,
    ends: BTreeMap<usize, Exit>,
    /// The process id of each.
    pids: Vec<i32>,
}

impl Campaign {
    /// On this store, for a share of the time.
    fn on(store: Store, faulty_store: impl FaultyStore + 'static, quarters: u32) -> Self {
        let span = Duration::from_secs(number("DLOCK_TEST_RANDOM_SECONDS").unwrap_or(120)) * quarters / 4;
        let seed = number("DLOCK_TEST_RANDOM_SEED").unwrap_or_else(boot_ns);
        // Shown when the test fails.
        println!("DLOCK_TEST_RANDOM_SEED={seed}");
        Self {
            store,
            faulty_store: Box::new(faulty_store),
            has_slots: true,
            span,
            draw: Rng::from(seed),
            faults: StoreFaults::from(seed.wrapping_add(1)),
            begun: Vec::new(),
            ends: BTreeMap::new(),
            pids: Vec::new(),
        }
    }

    /// Runs all phases in turn.
    #[track_caller]
    fn run_all_phases(mut self) {
        self.run_with_faults();
        self.kill_all();
        if self.faulty_store.has_leases() {
            self.assert_nothing_left();
        }
        self.acquire_each();
        self.check_log();
        self.assert_nothing_left();
    }

    fn start_one(&mut self) -> Run {
        let run = Run::start(&self.store, self.has_slots, self.begun.len(), &mut self.draw);
        self.begun.push(run.begun);
        self.pids.push(run.pid());
        run
    }

    /// Starts them, applies their faults, and collects them.
    #[track_caller]
    fn run_with_faults(&mut self) {
        let begin = Instant::now();
        let mut crowd: Vec<Run> = Vec::new();
        let mut log = Tail { path: self.store.place.path("log"), read: 0 };
        let mut span = self.span;
        loop {
            if begin.elapsed() >= span && span < self.span + EXTENSION && self.lack().is_some() {
                span = begin.elapsed() + Duration::from_secs(5);
            }
            if begin.elapsed() >= span && crowd.is_empty() {
                break;
            }
            if begin.elapsed() < span {
                self.faults.pass(&mut *self.faulty_store);
                if crowd.len() < CROWD {
                    crowd.push(self.start_one());
                }
            } else {
                // The last ones may wait without a limit.
                self.faults.clear(&mut *self.faulty_store);
            }
            let seen = log.runs();
            for run in &mut crowd {
                run.apply_faults(seen.contains(&run.number));
            }
            self.collect_ended(&mut crowd);
            assert!(begin.elapsed() < span + DRAIN, "{} are left: {crowd:#?}", crowd.len());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.faults.clear(&mut *self.faulty_store);
        let bearers = || self.store.place.marker().bearers();
        until(SOON, "the end of every process", || bearers().is_empty());
    }

    /// What has not happened in a long span.
    fn lack(&self) -> Option<&'static str> {
        if self.span < LONG {
            return None;
        }
        let log = self.store.place.read("log");
        let whole = log.rfind('\n').map_or(0, |last| last + 1);
        EventLog::read(&log[..whole]).lack(self.has_slots)
    }

    /// Starts a last crowd, and kills all of it at once: no dlock is left to clean up.
    #[track_caller]
    fn kill_all(&mut self) {
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
            self.collect_ended(&mut crowd);
            crowd.is_empty() && self.store.place.marker().bearers().is_empty()
        });
    }

    /// Collects those that have ended.
    #[track_caller]
    fn collect_ended(&mut self, crowd: &mut Vec<Run>) {
        crowd.retain_mut(|run| match run.end(&self.store) {
            Some(exit) => {
                println!("{} {exit:?} {run:?}", boot_ns());
                self.ends.insert(run.number, exit);
                false
            }
            None => true,
        });
    }

    /// No trace is left in the store or on the host. Leases and queue positions of killed ones expire, and
    /// `dlock status` removes them from the index.
    #[track_caller]
    fn assert_nothing_left(&self) {
        let url = self.store.url();
        let status = || self.store.place.bare().args(["status", "-b", url]).output();
        let (mut listed, mut traces) = (status(), self.faulty_store.traces());
        let begin = Instant::now();
        // On a busy machine, servers that were stopped need some time to find each other again.
        while begin.elapsed() < SOON && (listed.exit == Exit::Code(69) || !traces.is_empty()) {
            std::thread::sleep(Duration::from_millis(20));
            (listed, traces) = (status(), self.faulty_store.traces());
        }
        assert_eq!(listed.exit, Exit::Code(0), "{}", listed.stderr);
        assert!(traces.is_empty(), "the store still has {traces:?}");
        // Every run has ended: a cgroup that is created from now on is that of another test, with the number of one of them.
        let ended = SystemTime::now();
        let is_older = |cgroup: &PathBuf| {
            let created = cgroup.metadata().and_then(|metadata| metadata.modified());
            created.is_ok_and(|created| created <= ended)
        };
        let cgroups = || -> Vec<PathBuf> {
            process::cgroups_named_after(&self.pids).into_iter().filter(is_older).collect()
        };
        // A cgroup whose dlock and guard were killed at once is removed by a later run, once it is two seconds old.
        until(SOON, "the end of every cgroup", || {
            let are_gone = cgroups().is_empty();
            if !are_gone {
                let later = self.store.run().name(NAMES[0]).args(["--wait", "forever"]).command(["true"]);
                assert_eq!(later.output().exit, Exit::Code(0));
            }
            are_gone
        });
    }

    /// One more on each lock, which finds it free.
    #[track_caller]
    fn acquire_each(&mut self) {
        for name in NAMES {
            let (number, begun) = (self.begun.len(), boot_ns());
            let run = self.store.run().name(name).args(["--wait", "forever"]);
            let run = run.env("WITNESS_RUN", number.to_string()).command(witness(&self.store, 0));
            assert_eq!(run.output().outcome(), (Exit::Code(0), "", ""), "the last run on {name}");
            self.begun.push(begun);
            self.ends.insert(number, Exit::Code(0));
        }
    }

    /// Reads their records.
    #[track_caller]
    fn check_log(&self) {
        let log = self.store.place.read("log");
        // Shown when the test fails.
        println!("{log}");
        let events = EventLog::read(&log);
        println!("{} runs, {} faults of the store; {events}", self.begun.len(), self.faults.faults.len());
        println!("exits: {:?}", self.exits());
        events.assert_in_order(&self.begun);
        events.assert_ran_as(&self.ends);
        assert_eq!(self.lack(), None);
    }

    /// The number of runs for each way to end.
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
    Campaign::on(store, files, 4).run_all_phases();
}

mod on_servers {
    use super::Campaign;
    use super::servers::{FaultyServers, PERSISTENT};
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
        Campaign::on(store, FaultyServers { servers: redis, proxy: Some(proxy) }, 4).run_all_phases();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_redis_with_tls() {
        let tls = Some(Flaw::None);
        let redis =
            Redis::start_with(Options { persistent: true, tls, plain_port: true, ..Options::default() });
        let store = Store::at(redis.url());
        Campaign::on(store, FaultyServers { servers: redis, proxy: None }, 1).run_all_phases();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_a_cluster() {
        let cluster = Cluster::start_with(cluster::Plan { args: persistent(), ..cluster::Plan::default() });
        let store = Store::at(cluster.url());
        Campaign::on(store, FaultyServers { servers: cluster, proxy: None }, 1).run_all_phases();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_behind_sentinels() {
        let plan = sentinels::Plan { args: persistent(), ..sentinels::Plan::default() };
        let group = Sentinels::start_with(plan);
        let store = Store::at(group.url());
        Campaign::on(store, FaultyServers { servers: group, proxy: None }, 1).run_all_phases();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_redlock() {
        let masters = Masters::start_with(masters::Plan { args: persistent(), ..masters::Plan::default() });
        let store = Store::at(masters.url());
        let mut campaign = Campaign::on(store, FaultyServers { servers: masters, proxy: None }, 1);
        campaign.has_slots = false;
        campaign.run_all_phases();
    }
}

mod on_etcd {
    use super::Campaign;
    use super::ensembles::FaultyMembers;
    use crate::support::etcd::{Etcd, Plan};
    use crate::support::proxy::Proxy;
    use crate::support::store::Store;

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_etcd() {
        let members = Etcd::start_with(Plan::current());
        let proxy = Proxy::to(members.port(0));
        let store = Store::at(format!("etcd://127.0.0.1:{}", proxy.port()));
        Campaign::on(store, FaultyMembers { members, proxy: Some(proxy) }, 1).run_all_phases();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_three_members_of_etcd() {
        let members = Etcd::start_with(Plan { ensemble: true, ..Plan::current() });
        let store = Store::at(members.url());
        Campaign::on(store, FaultyMembers { members, proxy: None }, 1).run_all_phases();
    }
}

mod on_zookeeper {
    use super::Campaign;
    use super::ensembles::FaultyMembers;
    use crate::support::proxy::Proxy;
    use crate::support::store::Store;
    use crate::support::zookeeper::{Plan, ZooKeeper};

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_zookeeper() {
        let members = ZooKeeper::start_with(&Plan::current());
        let proxy = Proxy::to(members.port(0));
        let store = Store::at(format!("zookeeper://127.0.0.1:{}", proxy.port()));
        Campaign::on(store, FaultyMembers { members, proxy: Some(proxy) }, 1).run_all_phases();
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_three_members_of_zookeeper() {
        let members = ZooKeeper::start_with(&Plan { ensemble: true, ..Plan::current() });
        let store = Store::at(members.url());
        Campaign::on(store, FaultyMembers { members, proxy: None }, 1).run_all_phases();
    }
}

mod on_postgres {
    use super::Campaign;
    use super::ensembles::FaultyMembers;
    use crate::support::postgres::{Plan, Postgres};
    use crate::support::proxy::Proxy;
    use crate::support::store::Store;

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_postgresql() {
        let members = Postgres::start_with(Plan::current());
        let proxy = Proxy::to(members.port());
        let url = members.url().replace(&members.port().to_string(), &proxy.port().to_string());
        let store = Store::at(url);
        Campaign::on(store, FaultyMembers { members, proxy: Some(proxy) }, 1).run_all_phases();
    }
}

mod on_mysql {
    use super::Campaign;
    use super::ensembles::FaultyMembers;
    use crate::support::mariadb::{MariaDb, Plan};
    use crate::support::proxy::Proxy;
    use crate::support::store::Store;

    #[test]
    fn nothing_overlaps_and_nothing_is_left_on_mysql() {
        let members = MariaDb::start_with(Plan::current());
        let proxy = Proxy::to(members.port());
        let url = members.url().replace(&members.port().to_string(), &proxy.port().to_string());
        let store = Store::at(url);
        Campaign::on(store, FaultyMembers { members, proxy: Some(proxy) }, 1).run_all_phases();
    }
}
