//! Networks with a long round trip.

use crate::support::etcd::{self, Etcd};
use crate::support::mariadb::{self, MariaDb};
use crate::support::place::Place;
use crate::support::postgres::{self, Postgres};
use crate::support::proxy::{Proxy, Way};
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::zookeeper::{self, ZooKeeper};
use std::time::Duration;

/// Two of them are more than a third of what is left, which is 2.06 s.
const ROUND_TRIP: Duration = Duration::from_millis(1050);

/// A connection takes several round trips to open, and more time than a third of what is left between the renewal and the
/// stop signal.
#[test]
fn a_lock_survives_the_end_of_a_connection_that_takes_long_to_open() {
    let postgres = Postgres::lent_with(postgres::Plan::current());
    let mysql = MariaDb::lent_of(mariadb::Plan::current().product);
    let etcd = Etcd::lent_with(etcd::Plan::current());
    let zookeeper = ZooKeeper::lent_with(&zookeeper::Plan::current());
    let redis = Redis::start();
    let stores = [
        (postgres.url(), postgres.port()),
        (mysql.url(), mysql.port()),
        (etcd.url(), etcd.port(0)),
        (zookeeper.url(), zookeeper.port(0)),
        (redis.url(), redis.port()),
    ];
    let place = Place::new();
    let mut held: Vec<_> = stores
        .into_iter()
        .enumerate()
        .map(|(number, (url, port))| {
            let proxy = Proxy::to(port);
            let url = url.replace(&format!(":{port}"), &format!(":{}", proxy.port()));
            let run = place.run().backend(&url).name(format!("x{number}"));
            let run = run.args(["--ttl", "14s", "--connect-timeout", "20s"]);
            let mut run = run.sh("echo ready; sleep 16; echo done").spawn();
            run.await_ready();
            proxy.delay(Way::Down, ROUND_TRIP);
            proxy.close();
            (url, proxy, run)
        })
        .collect();
    for (url, proxy, run) in &mut held {
        let output = run.wait();
        assert_eq!(
            (output.exit, output.stdout.as_str()),
            (Exit::Code(0), "ready\ndone\n"),
            "{url}: {}",
            output.stderr
        );
        assert!(proxy.attempts() > 1, "{url}: the connection was not replaced");
    }
}
