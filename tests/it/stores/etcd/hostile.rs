//! A server that sends entries that etcd would not: too many, without keys, without revisions, twice.

use super::forger::{Forger, Key};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::etcd::Etcd;
use crate::support::peak::{ALLOWANCE, peak};
use crate::support::running::{Exit, Output, Running};
use crate::support::wait::until;

fn entry(number: i64) -> Key {
    Key { key: format!("/dlock/x/{number:x}").into_bytes(), create_revision: number, mod_revision: number }
}

fn run(forger: &Forger) -> Dlock {
    Dlock::run().backend(format!("etcd://127.0.0.1:{}", forger.port()))
}

/// Waits for the end of a run, and returns the most memory that it had with it, in KiB.
#[track_caller]
fn watch(mut run: Running) -> (Output, u64) {
    let mut most = 0;
    until(SOON, "the end of dlock", || {
        most = most.max(peak(run.pid()));
        run.poll().is_some()
    });
    (run.wait(), most)
}

/// F47, F59
#[test]
fn entries_that_etcd_would_not_have_are_refused() {
    let etcd = Etcd::lent();
    let forger = Forger::to(etcd.port(0));
    let (output, idle) = watch(run(&forger).command(["true"]).spawn());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    let valid = || (1..4).map(entry).collect::<Vec<_>>();
    let cases = [
        ("the entry of a lock has no key or no revision", vec![Key::default(); 8000]),
        ("the entry of a lock has no key or no revision", vec![entry(0)]),
        ("the entry of a lock has no key or no revision", vec![entry(-1), entry(1)]),
        (
            "the entry of a lock has no key or no revision",
            [valid(), vec![Key { key: Vec::new(), ..entry(4) }]].concat(),
        ),
        ("the entries of a lock are not in the order of their revisions", [valid(), valid()].concat()),
        ("the entries of a lock are not in the order of their revisions", vec![entry(1); 8000]),
        ("a lock has more than 20000 entries", (1..40_000).map(entry).collect()),
    ];
    for (text, entries) in cases {
        forger.forge_entries(entries);
        let (output, most) = watch(run(&forger).command(["echo", "ran"]).spawn());
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
        assert!(output.stderr.contains(text), "{}", output.stderr);
        assert!(most < idle + ALLOWANCE, "{text}: {most} KiB, {idle} KiB without that");
    }
}

/// As many as are accepted are decided on within the limits of a run.
#[test]
fn a_run_behind_very_many_entries_ends() {
    let etcd = Etcd::lent();
    let forger = Forger::to(etcd.port(0));
    forger.forge_entries((1..=20_000).map(entry).collect());
    let output = run(&forger).arg("-n").command(["echo", "ran"]).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
}
