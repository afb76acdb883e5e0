//! What this host must provide so that no command outlives its lock.

use super::{Findings, doctor};
use crate::support::place::Place;

#[test]
fn a_host_without_cgroups_finds_processes_one_by_one() {
    let place = Place::new();
    let found = Findings::of(doctor(&place, &place.url()).without_cgroups());
    assert_eq!(
        found.only("processes", "ok"),
        "found one by one in /proc; no cgroup of their own: cgroup v2 is not mounted"
    );
}

#[test]
fn a_host_without_proc_is_a_warning() {
    let place = Place::new();
    let run = doctor(&place, &place.url()).arg("-q").after_shell("mount -t tmpfs none /proc || exit 99");
    let found = Findings::of(run.wrapped_by(["unshare", "--mount"]));
    assert_eq!(found.only("processes", "warning"), "no /proc here");
}
