//! A cluster with TLS and users: a user with minimal rights holds a lock there, also while its slot migrates.

use super::{KEY, another, assert_ends_well, assert_ran, await_renewal, let_go};
use crate::support::cluster::{Cluster, Plan};
use crate::support::place::Place;
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};

/// The rights that only a cluster needs, as in dlock-redis(7).
const RULES: &[&str] = &["+asking", "+cluster|slots"];

/// Creates the user `dlock` again on every node, with the rules that dlock-redis(7) has for every server and these.
fn allow(cluster: &Cluster, rules: &[&str]) {
    let [needed, _] = crate::stores::redis::minimal_rights::rules();
    let mut words = vec!["ACL", "SETUSER", "dlock", "reset", "on", ">s3cret"];
    words.extend(needed);
    words.extend(rules);
    for answer in cluster.command_on_all(&words) {
        assert_eq!(answer, Value::Text("OK".into()), "{words:?}");
    }
}

fn url(cluster: &Cluster) -> String {
    cluster.url().replace("redis-cluster://", "redis-cluster://dlock:s3cret@")
}

#[track_caller]
fn holder(cluster: &Cluster, place: &Place) -> Running {
    let run = place.run().no_backend().env("DLOCK_BACKEND", url(cluster));
    super::holder(run.args(["--ttl", "4s", "--grace", "100ms"]), "go")
}

#[test]
fn the_documented_rights_suffice_while_a_slot_migrates() {
    let (cluster, place) = (Cluster::start_with(Plan::default()), Place::new());
    let page = include_str!("../../../../../packaging/manual/pages/redis.7.md");
    assert!(RULES.iter().all(|rule| page.contains(&format!("`{rule}`"))));
    allow(&cluster, RULES);
    let mut held = holder(&cluster, &place);
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    for key in cluster.left(moving) {
        cluster.migrate(moving, &[&key]);
        await_renewal(&cluster, KEY);
    }
    cluster.finish(moving);
    await_renewal(&cluster, KEY);
    let_go(&place, "go");
    assert_ends_well(&mut held);
}

#[test]
fn a_missing_right_for_slot_migration_is_named() {
    let (cluster, place) = (Cluster::start_with(Plan::default()), Place::new());
    allow(&cluster, &["+cluster|slots"]);
    let _moving = cluster.begin(KEY, another(&cluster, KEY));
    let run = place.run().no_backend().env("DLOCK_BACKEND", url(&cluster)).sh("echo ran");
    let output = run.output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""));
    assert!(output.stderr.contains("'asking'"), "{}", output.stderr);
}

/// Without the right to list all nodes only fewer of them are known.
#[test]
fn the_right_to_list_the_nodes_is_optional() {
    let (cluster, place) = (Cluster::start_with(Plan::default()), Place::new());
    allow(&cluster, &["+asking", "+zscan", "+strlen"]);
    let mut held = holder(&cluster, &place);
    await_renewal(&cluster, KEY);
    // Each of 16,384 slots is asked for, and most of them twice.
    let status =
        place.bare().args(["status", "--connect-timeout", "60s"]).env("DLOCK_BACKEND", url(&cluster));
    let status = status.output();
    assert_eq!(status.exit, Exit::Code(0), "{}", status.stderr);
    assert!(status.stdout.contains("\nx "), "{}", status.stdout);
    let_go(&place, "go");
    assert_ends_well(&mut held);
}

#[test]
fn every_connection_is_encrypted_and_authenticated() {
    let (cluster, place) = (
        Cluster::start_with(Plan { tls: true, password: Some("s3cret".into()), ..Plan::default() }),
        Place::new(),
    );
    for node in 0..3 {
        let run = place.run().no_backend().env("DLOCK_BACKEND", cluster.url_of(&[node]));
        assert_ran(&run.sh("echo ran").output());
    }
    let ca = cluster.certificates().ca.display().to_string();
    let status = place.bare().arg("status").args(["--history", "x"]).env("DLOCK_BACKEND", cluster.url());
    let status = status.output();
    assert_eq!(status.exit, Exit::Code(0), "{}", status.stderr);
    assert_eq!(status.stdout.matches(" ok ").count(), 3, "{}", status.stdout);
    assert!(!status.stdout.contains("s3cret") && !ca.is_empty());
}
