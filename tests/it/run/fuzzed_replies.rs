//! Every kind of server behind a proxy that damages its replies: no panic, bounded memory and time, and an outcome that
//! says whether the command ran.
//!
//! `tests/run.sh` skips these tests, and `tests/faults.sh` runs them. The seeds are fixed, but the boundaries of the
//! pieces that arrive are not.

use crate::support::dlock::Dlock;
use crate::support::fuzzer::Fuzzer;
use crate::support::peak::{ALLOWANCE, peak};
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::wait::Pauses;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The fewest connections to each kind of server.
const CONNECTIONS: usize = 2000;
/// At a time: they often wait for a reply that does not come.
const WORKERS: u64 = 4;
/// Time limit of one invocation on a busy machine; the limits that it has been given add up to a few seconds at most.
const DEADLINE: Duration = Duration::from_secs(30);
/// The time limits of a reply. The next one is used after [`PATIENCE`] invocations more than ran, and the one before
/// after each that ran: a limit that a busy machine always exceeds would hide what damage does.
const LIMITS: [&str; 4] = ["300ms", "600ms", "1200ms", "2400ms"];
const PATIENCE: usize = 12;
/// How a command ends that could not query a store, or did not understand it.
const FAILURES: [Exit; 4] = [Exit::Code(69), Exit::Code(75), Exit::Code(77), Exit::Code(78)];

/// What happened to one kind of server.
#[derive(Default)]
struct Figures {
    connections: AtomicUsize,
    damages: AtomicUsize,
    invocations: AtomicUsize,
    ran: AtomicUsize,
    slowest_ms: AtomicU64,
    peak: AtomicU64,
}

/// One invocation of dlock, chosen by its number.
fn invocation(place: &Place, url: &str, name: &str, number: usize, limit: &str) -> Dlock {
    let run = |args: &[&str]| {
        let run = place.run().backend(url).args(["--ttl", "10s", "--connect-timeout", limit]);
        run.args(args).name(name).command(["echo", "ran"])
    };
    match number % 6 {
        0..=2 => run(&["-n"]),
        3 => run(&["--wait", "500ms"]),
        4 => place.bare().args(["status", "-b", url, "--connect-timeout", limit, "--json", name]),
        _ => place.bare().args([
            "break",
            "-b",
            url,
            "--connect-timeout",
            limit,
            "--wait",
            "500ms",
            "--yes",
            name,
        ]),
    }
}

/// Waits for its end, and returns its largest resident set in KiB with it.
#[track_caller]
fn watch(dlock: Dlock) -> (Output, u64) {
    let mut running = dlock.spawn();
    let (begin, pauses, mut most) = (Instant::now(), Pauses::begin(), 0);
    loop {
        most = most.max(peak(running.pid()));
        if let Some(output) = running.poll() {
            return (output.clone(), most);
        }
        assert!(begin.elapsed() < DEADLINE, "dlock does not end: {}", running.stderr());
        pauses.pause();
    }
}

#[track_caller]
fn assert_withstood(output: &Output, runs: bool) {
    let Output { exit, stdout, stderr, .. } = output;
    let is_calm = |line: &str| {
        (line.starts_with("dlock: ") || line.starts_with("  ")) && !line.chars().any(char::is_control)
    };
    assert!(stderr.lines().all(is_calm), "{output:?}");
    assert!(!stderr.contains("panicked"), "{output:?}");
    match exit {
        Exit::Code(0) if runs => assert_eq!(stdout, "ran\n", "{output:?}"),
        // The lock was lost while the command ran, or that seemed to be so.
        Exit::Code(76) if runs => {}
        Exit::Code(0) => {}
        exit if FAILURES.contains(exit) => assert!(!runs || stdout.is_empty(), "{output:?}"),
        _ => panic!("{output:?}"),
    }
}

/// Invokes dlock until the proxies have had enough connections. `url` returns the store's URL with another port.
fn assert_withstands(port: u16, url: impl Fn(u16) -> String + Sync) {
    let figures = Figures::default();
    let (output, idle) = watch(invocation(&Place::new(), &url(port), "x", 0, "5s"));
    assert_eq!(output.stdout, "ran\n", "without damage: {output:?}");
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (figures, url) = (&figures, &url);
            scope.spawn(move || {
                let fuzzer = Fuzzer::to(port, worker << 32);
                let (place, url, name) = (Place::new(), url(fuzzer.port()), format!("x{worker}"));
                let mut failures = 0;
                for number in 0.. {
                    if fuzzer.connections() >= CONNECTIONS / WORKERS as usize {
                        break;
                    }
                    let limit = LIMITS[failures / PATIENCE];
                    let dlock = invocation(&place, &url, &name, number, limit);
                    let (output, peak) = watch(dlock);
                    assert_withstood(&output, number % 6 < 4);
                    let elapsed = u64::try_from(output.elapsed.as_millis()).expect("a short time");
                    assert!(peak < idle + ALLOWANCE, "{peak} KiB, {idle} KiB without damage: {output:?}");
                    figures.slowest_ms.fetch_max(elapsed, Ordering::Relaxed);
                    figures.peak.fetch_max(peak, Ordering::Relaxed);
                    figures.invocations.fetch_add(1, Ordering::Relaxed);
                    let ran = output.stdout == "ran\n";
                    failures = if ran {
                        failures.saturating_sub(PATIENCE)
                    } else {
                        (failures + 1).min(PATIENCE * (LIMITS.len() - 1))
                    };
                    figures.ran.fetch_add(usize::from(ran), Ordering::Relaxed);
                }
                figures.connections.fetch_add(fuzzer.connections(), Ordering::Relaxed);
                figures.damages.fetch_add(fuzzer.damages(), Ordering::Relaxed);
            });
        }
    });
    let of = |figure: &AtomicUsize| figure.load(Ordering::Relaxed);
    let (connections, damages) = (of(&figures.connections), of(&figures.damages));
    let (invocations, ran) = (of(&figures.invocations), of(&figures.ran));
    let (slowest_ms, peak) = (figures.slowest_ms.into_inner(), figures.peak.into_inner());
    println!(
        "{connections} connections, {damages} damaged replies, {invocations} invocations, {ran} of which ran"
    );
    println!("the slowest took {slowest_ms} ms, the largest had {peak} KiB, {idle} KiB without damage");
    assert!(connections >= CONNECTIONS && damages > connections / 10, "{connections}, {damages}");
    assert!(ran > 0 && ran < invocations, "{ran} of {invocations}");
}

#[test]
fn damaged_replies_of_redis_are_withstood() {
    let redis = crate::support::redis::Redis::start();
    assert_withstands(redis.port(), |port| format!("redis://127.0.0.1:{port}/0"));
}

#[test]
fn damaged_replies_of_etcd_are_withstood() {
    let etcd = crate::support::etcd::Etcd::start();
    assert_withstands(etcd.port(0), |port| format!("etcd://127.0.0.1:{port}"));
}

#[test]
fn damaged_replies_of_zookeeper_are_withstood() {
    let zookeeper = crate::support::zookeeper::ZooKeeper::start();
    assert_withstands(zookeeper.port(0), |port| format!("zookeeper://127.0.0.1:{port}"));
}

#[test]
fn damaged_replies_of_postgresql_are_withstood() {
    let postgres = crate::support::postgres::Postgres::start();
    let (port, url) = (postgres.port(), postgres.url());
    assert_withstands(port, |other| url.replace(&port.to_string(), &other.to_string()));
}

#[test]
fn damaged_replies_of_mysql_are_withstood() {
    use crate::support::mariadb::{MariaDb, Plan};
    let mysql = MariaDb::start_with(Plan::current());
    let (port, url) = (mysql.port(), mysql.url());
    assert_withstands(port, |other| url.replace(&port.to_string(), &other.to_string()));
}

#[test]
fn damaged_replies_of_consul_are_withstood() {
    let consul = crate::support::consul::Consul::lent();
    assert_withstands(consul.port(), |port| format!("consul://127.0.0.1:{port}"));
}

#[test]
fn damaged_replies_of_memcached_are_withstood() {
    let memcached = crate::support::memcached::Memcached::start();
    assert_withstands(memcached.port(), |port| format!("memcached://127.0.0.1:{port}"));
}

#[test]
fn damaged_replies_of_kubernetes_are_withstood() {
    let server = crate::support::kubernetes::Kubernetes::start();
    assert_withstands(server.port(), |port| server.url_by(port));
}

#[test]
fn damaged_replies_of_s3_are_withstood() {
    let server = crate::support::s3::S3::start();
    assert_withstands(server.port(), |port| server.url_by(&format!("http://127.0.0.1:{port}")));
}

#[test]
fn damaged_replies_of_dynamodb_are_withstood() {
    let server = crate::support::dynamodb::Dynamo::start();
    assert_withstands(server.port(), |port| server.url_by(port));
}
