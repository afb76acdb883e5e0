//! Stores with several servers, of which the first one in the URL accepts connections and stays silent, begins a TLS
//! session and stays silent, or refuses connections.

use crate::support::SOON;
use crate::support::cluster::{self, Cluster};
use crate::support::etcd::{self, Etcd};
use crate::support::fake::Fake;
use crate::support::masters::Masters;
use crate::support::place::Place;
use crate::support::postgres::{self, Postgres};
use crate::support::running::Exit;
use crate::support::sentinels::{self, Sentinels};
use crate::support::server::free_port;
use crate::support::tls::{Certificates, Flaw};
use crate::support::wait::until;
use crate::support::zookeeper::session::Session;
use crate::support::zookeeper::{self, Ensemble, ZooKeeper};
use std::any::Any;
use std::time::Duration;

/// The server that a run tries first is a random one.
const RUNS: usize = 8;
/// The beginning of a handshake (RFC 8446, section 5.1), ...
const HELLO: &[u8] = &[22, 3];
/// ... and a part of the reply.
const HALF_A_HELLO: &[u8] = &[22, 3, 3, 0, 122, 2, 0, 0];
/// How PostgreSQL is asked for TLS before that.
const TLS_REQUEST: &[u8] = &[0, 0, 0, 8];

/// A store, and what keeps it alive.
struct Store {
    url: String,
    _servers: Box<dyn Any>,
}

impl Store {
    fn of(url: String, servers: impl Any) -> Self {
        Self { url, _servers: Box::new(servers) }
    }

    /// Its URL with a server on this port of 127.0.0.1 before all others.
    fn after(&self, port: u16) -> String {
        let at = ["@", "://"].into_iter().find_map(|mark| Some(self.url.find(mark)? + mark.len()));
        let (begin, hosts) = self.url.split_at(at.expect("a URL"));
        format!("{begin}127.0.0.1:{port},{hosts}")
    }
}

/// Every run on this store starts, whichever server it tries first.
#[track_caller]
fn assert_starts(plain: &Store, secure: Option<&Store>) {
    let silent = Fake::silent();
    let half = match plain.url.starts_with("postgres:") {
        true => Fake::replying_to(TLS_REQUEST, b"S"),
        false => Fake::replying_to(HELLO, HALF_A_HELLO),
    };
    let refusing = free_port();
    let mut urls = [silent.port(), refusing].map(|port| plain.after(port)).to_vec();
    if let Some(secure) = secure {
        urls.extend([silent.port(), half.port(), refusing].map(|port| secure.after(port)));
    }
    for url in urls {
        let place = Place::new();
        let run = |number: usize| {
            let run = place.run().backend(&url).name(format!("x{number}")).arg("--no-wait");
            run.args(["--connect-timeout", "10s"]).sh("echo ran").spawn()
        };
        let mut runs: Vec<_> = (0..RUNS).map(run).collect();
        for run in &mut runs {
            assert_eq!(run.wait().outcome(), (Exit::Code(0), "ran\n", ""), "{url}");
        }
    }
}

fn certificates() -> (tempfile::TempDir, Certificates) {
    let directory = tempfile::Builder::new().prefix("it-tls-").tempdir().unwrap();
    let files = Certificates::make(directory.path(), Flaw::None);
    (directory, files)
}

#[test]
fn a_silent_server_of_postgresql_delays_no_run_for_long() {
    let plain = Postgres::lent_with(postgres::Plan::current());
    let (directory, files) = certificates();
    let secure =
        Postgres::start_with(postgres::Plan { certificates: Some(files), ..postgres::Plan::current() });
    let secure = Store::of(secure.url(), (secure, directory));
    assert_starts(&Store::of(plain.url(), plain), Some(&secure));
}

#[test]
fn a_silent_member_of_etcd_delays_no_run_for_long() {
    let plain = Etcd::lent_with(etcd::Plan::current());
    let (directory, files) = certificates();
    let plan = etcd::Plan { certificates: Some(files.clone()), ..etcd::Plan::current() };
    let secure = Etcd::start_with(plan);
    let url = format!("etcds://127.0.0.1:{}?ca_file={}", secure.port(0), files.ca.display());
    assert_starts(&Store::of(plain.url(), plain), Some(&Store::of(url, (secure, directory))));
}

#[test]
fn a_silent_server_of_zookeeper_delays_no_run_for_long() {
    let plain = ZooKeeper::lent_with(&zookeeper::Plan::current());
    let (directory, files) = certificates();
    let plan = zookeeper::Plan { certificates: Some(files.clone()), ..zookeeper::Plan::current() };
    let secure = ZooKeeper::start_with(&plan);
    let url = format!("zookeepers://127.0.0.1:{}?ca_file={}", secure.secure_port(0), files.ca.display());
    assert_starts(&Store::of(plain.url(), plain), Some(&Store::of(url, (secure, directory))));
}

#[test]
fn a_silent_sentinel_delays_no_run_for_long() {
    let plain = Sentinels::lent();
    let secure = Sentinels::start_with(sentinels::Plan { tls: true, ..sentinels::Plan::default() });
    assert_starts(&Store::of(plain.url(), plain), Some(&Store::of(secure.url(), secure)));
}

#[test]
fn a_silent_node_of_a_cluster_delays_no_run_for_long() {
    let plain = Cluster::lent();
    let secure = Cluster::start_with(cluster::Plan { tls: true, ..cluster::Plan::default() });
    assert_starts(&Store::of(plain.url(), plain), Some(&Store::of(secure.url(), secure)));
}

#[test]
fn a_silent_node_of_a_redlock_delays_no_run_for_long() {
    let masters = Masters::lent();
    masters.age(&[0, 1, 2, 3]);
    assert_starts(&Store::of(masters.url_of(&[0, 1, 2, 3]), masters), None);
}

/// It carries out what was sent to it when it continues, after the runs have ended.
#[test]
fn a_stopped_server_of_zookeeper_begins_no_session_that_lasts() {
    let ensemble = Ensemble::lent_with(&zookeeper::Plan::current());
    let (zookeeper, place) = (&ensemble.0, Place::new());
    let leader = zookeeper.leader();
    let stopped = (leader + 1) % zookeeper.count();
    let sessions = || zookeeper.figure(leader, "global_sessions");
    let before = sessions();
    zookeeper.daemon(stopped).stop();
    // A session that is not ended lasts longer than the test.
    let run = |number: usize| {
        let run = place.run().backend(zookeeper.url()).name(format!("x{number}")).arg("--no-wait");
        run.args(["--ttl", "1h", "--connect-timeout", "10s"]).sh("echo ran").spawn()
    };
    let mut runs: Vec<_> = (0..RUNS).map(run).collect();
    for run in &mut runs {
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "ran\n", ""));
    }
    zookeeper.daemon(stopped).resume();
    // Only then it has begun the sessions that it was asked for before. If the leader has given it up meanwhile, it has
    // to follow that again first.
    let session = || Session::open(zookeeper.address(stopped), Duration::from_secs(10));
    until(SOON, "a server that serves", || session().and_then(Session::close).is_ok());
    until(SOON, "the end of all sessions", || sessions() <= before);
}
