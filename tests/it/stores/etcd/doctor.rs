//! `dlock doctor` on etcd.

use crate::support::SOON;
use crate::support::doctor::{assert_found, doctor};
use crate::support::etcd::{Ensemble, Etcd};
use crate::support::running::Exit;
use crate::support::wait::until;
use serde_json::json;

#[test]
fn a_dead_member_is_a_warning_and_a_lost_quorum_a_problem() {
    let mut ensemble = Ensemble::lent();
    let etcd = &mut ensemble.0;
    etcd.kill(0);
    etcd.leader();
    let known_to =
        |member: usize| etcd.client_of(member).post("maintenance/status", &json!({}))["leader"].clone();
    until(SOON, "a leader that both know", || !known_to(1).is_null() && known_to(1) == known_to(2));
    let output = doctor(&etcd.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    assert_found(&output, "warning", "reachability", "connection refused");
    assert_found(&output, "ok", "quorum", "2 of 3 members have the same leader");
    etcd.kill(1);
    let has_no_leader = || etcd.client_of(2).post("maintenance/status", &json!({}))["leader"].is_null();
    until(SOON, "the loss of the leader", has_no_leader);
    let output = doctor(&etcd.url());
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "quorum", "no leader");
    (0..2).for_each(|member| etcd.restart(member));
}

#[test]
fn alarms_and_clusters_that_differ_are_problems() {
    let (etcd, other) = (Etcd::start(), Etcd::lent());
    let output = doctor(&format!("{},{}", etcd.url(), other.hosts()));
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "quorum", "the members belong to different clusters");
    let alone = doctor(&etcd.url());
    assert_found(&alone, "ok", "availability", "one server: while it is down no lock can be taken");
    etcd.client().post("maintenance/alarm", &json!({"action": "ACTIVATE", "alarm": "NOSPACE"}));
    let output = doctor(&etcd.url());
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "alarms", "NOSPACE: the database has reached its quota");
}
