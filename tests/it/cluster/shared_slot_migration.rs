//! F28: the slot of a shared lock migrates.

use super::{KEY, another, assert_ends_well, assert_held, assert_ran, await_renewal, holder, let_go, run};
use crate::support::cluster::Cluster;
use crate::support::place::Place;
use crate::support::running::Running;
use crate::support::wait::throughout;
use std::time::Duration;

#[track_caller]
fn assert_kept(cluster: &Cluster, place: &Place, holders: &mut [Running]) {
    throughout(Duration::from_millis(2500), "all hold it", || {
        holders.iter_mut().for_each(Running::assert_running);
        cluster.command_at(KEY, &["EXISTS", KEY]).int() == 1
    });
    assert_held(&run(place, &cluster.url(), "2s").sh("echo ran").output());
}

fn moves(share: &[&str]) {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let mut holders: Vec<Running> =
        (0..2).map(|_| holder(run(&place, &cluster.url(), "2s").args(share), "go")).collect();
    let moving = cluster.begin(KEY, another(&cluster, KEY));
    assert_kept(&cluster, &place, &mut holders);
    for key in cluster.left(moving) {
        cluster.migrate(moving, &[&key]);
        assert_kept(&cluster, &place, &mut holders);
    }
    cluster.finish(moving);
    await_renewal(&cluster, KEY);
    let_go(&place, "go");
    holders.iter_mut().for_each(assert_ends_well);
    assert_ran(&run(&place, &cluster.url(), "2s").sh("echo ran").output());
}

#[test]
fn readers_keep_their_lock_in_every_step_of_a_slot_migration() {
    moves(&["--shared"]);
}

#[test]
fn slots_are_kept_in_every_step_of_a_slot_migration() {
    moves(&["--slots", "2"]);
}

/// A holder that ends while the keys are split releases only its own entry.
#[test]
fn one_of_two_readers_releases_in_every_step_of_a_slot_migration() {
    for moved in 0..4 {
        let (cluster, place) = (Cluster::lent(), Place::new());
        let run_shared = || run(&place, &cluster.url(), "2s").arg("--shared");
        let (mut first, mut second) = (holder(run_shared(), "go-1"), holder(run_shared(), "go-2"));
        let moving = cluster.begin(KEY, another(&cluster, KEY));
        for key in cluster.left(moving).into_iter().take(moved) {
            cluster.migrate(moving, &[&key]);
        }
        let_go(&place, "go-1");
        assert_ends_well(&mut first);
        assert_kept(&cluster, &place, std::slice::from_mut(&mut second));
        cluster.finish(moving);
        assert_kept(&cluster, &place, std::slice::from_mut(&mut second));
        let_go(&place, "go-2");
        assert_ends_well(&mut second);
        assert_ran(&run(&place, &cluster.url(), "2s").sh("echo ran").output());
    }
}
