//! `dlock status`, `check` and `break` where the locks are on several nodes.

use super::{KEY, another, assert_ends_well, holder, let_go, run};
use crate::support::cluster::Cluster;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;

fn status(place: &Place, cluster: &Cluster) -> Dlock {
    place.bare().arg("status").args(["-b", &cluster.url()])
}

/// The names in the JSON of a status.
#[track_caller]
fn listed(run: Dlock) -> Vec<String> {
    let output = run.arg("--json").output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    let json: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let names = json["locks"].as_array().unwrap().iter();
    names
        .map(|lock| format!("{}:{}", lock["name"].as_str().unwrap(), lock["state"].as_str().unwrap()))
        .collect()
}

fn hold_all(place: &Place, cluster: &Cluster, names: &[&str]) -> Running {
    holder(run(place, &cluster.url(), "60s").no_name().args(names), "go")
}

#[test]
fn status_lists_the_locks_of_all_nodes() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let names = ["a1", "a2", "a3", "a4", "b}1", "{b}2"];
    let mut held = hold_all(&place, &cluster, &names);
    let nodes: std::collections::BTreeSet<usize> =
        names.iter().map(|name| cluster.node_of(&format!("dlock:{name}"))).collect();
    assert_eq!(nodes.len(), 3);
    let all = ["a1:held", "a2:held", "a3:held", "a4:held", "b}1:held", "{b}2:held"];
    assert_eq!(listed(status(&place, &cluster)), all);
    assert_eq!(listed(status(&place, &cluster).arg("a*")), all[..4]);
    assert_eq!(listed(status(&place, &cluster).arg("*[12]")), [all[0], all[1], all[4], all[5]]);
    assert_eq!(listed(status(&place, &cluster).args(["a3", "nobody"])), ["a3:held", "nobody:free"]);
    // A lock whose slot is migrating is listed once.
    let moving = cluster.begin("dlock:a1", another(&cluster, "dlock:a1"));
    assert_eq!(listed(status(&place, &cluster)), all);
    cluster.finish(moving);
    assert_eq!(listed(status(&place, &cluster)), all);
    let_go(&place, "go");
    assert_ends_well(&mut held);
    assert_eq!(listed(status(&place, &cluster)), Vec::<String>::new());
}

#[test]
fn status_watches_a_lock_on_another_node() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let url = cluster.url_of(&[another(&cluster, KEY)]);
    let mut held = holder(run(&place, &cluster.url(), "60s"), "go");
    let watch = place.bare().arg("status").args(["-b", &url, "--watch", "100ms", "--json", "x"]);
    let mut watch = watch.spawn();
    watch.await_stdout("\"state\":\"held\"");
    cluster.move_slot(KEY, another(&cluster, KEY));
    let_go(&place, "go");
    assert_ends_well(&mut held);
    watch.await_stdout("\"state\":\"free\"");
    watch.signal(nix::sys::signal::Signal::SIGTERM);
    watch.wait();
}

#[test]
fn history_is_kept_with_the_lock() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    assert_eq!(run(&place, &cluster.url(), "30s").sh("exit 3").output().exit, Exit::Code(3));
    cluster.move_slot(KEY, another(&cluster, KEY));
    assert_eq!(run(&place, &cluster.url(), "30s").sh("exit 4").output().exit, Exit::Code(4));
    let output = status(&place, &cluster).args(["--history", "x"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    let outcomes: Vec<&str> = output.stdout.lines().filter(|line| line.contains(" exit ")).collect();
    assert_eq!(outcomes.len(), 2, "{}", output.stdout);
    assert!(outcomes[0].contains("exit 4") && outcomes[1].contains("exit 3"), "{}", output.stdout);
}

#[test]
fn break_ends_a_hold_on_another_node() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut held = run(&place, &cluster.url(), "60s").sh("echo ready; exec sleep 1000").spawn();
    held.await_ready();
    let url = cluster.url_of(&[another(&cluster, KEY)]);
    let broken = place.bare().arg("break").args(["-b", &url, "--yes", "x"]).output();
    assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
    assert_eq!(held.wait().exit, Exit::Code(76));
}

/// While its keys are on two nodes, whether it is valid cannot be told: never that it is not.
#[test]
fn a_token_stays_valid_over_a_slot_migration() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let url = cluster.url();
    let take = place.bare().arg("acquire").args(["-b", &url, "--ttl", "60s", "x"]).output();
    assert_eq!(take.exit, Exit::Code(0), "{}", take.stderr);
    let token = take.stdout.trim().to_owned();
    let exit_of = |what: &str, patience: &str| {
        let command = place.bare().arg(what).args(["-b", &url, "--connect-timeout", patience, "x"]);
        command.env("DLOCK_TOKEN", &token).output()
    };
    let succeeds = |what: &str| {
        let output = exit_of(what, "5s");
        assert_eq!(output.exit, Exit::Code(0), "{what}: {}", output.stderr);
    };
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    for key in cluster.left(moving) {
        cluster.migrate(moving, &[&key]);
        for what in ["check", "renew"] {
            let output = exit_of(what, "300ms");
            assert!(matches!(output.exit, Exit::Code(0 | 69)), "{what}: {output:?}");
        }
    }
    ["check", "renew"].into_iter().for_each(succeeds);
    cluster.finish(moving);
    ["check", "renew", "release"].into_iter().for_each(succeeds);
    until(crate::support::SOON, "a free lock", || cluster.command_at(KEY, &["EXISTS", KEY]).int() == 0);
}
