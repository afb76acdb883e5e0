//! The leases of a run, of the runs nested in it, and of a hold of several processes.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::dlock::{BINARY, Dlock};
use crate::support::etcd::Etcd;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use serde_json::json;
use std::time::Duration;

/// The arguments of a run on `x`, up to its command, as a shell text.
fn inner(etcd: &Etcd, options: &str) -> String {
    format!("'{BINARY}' run -b '{}' --ttl 3s {options} x --", etcd.url())
}

fn run(place: &Place, etcd: &Etcd) -> Dlock {
    place.run().backend(etcd.url()).args(["--ttl", "3s"])
}

/// Nobody extends the lease for the rest of its minimum hold time.
#[test]
fn an_inner_run_that_outlives_its_outer_run_and_its_min_hold_keeps_the_lock() {
    let (etcd, place) = (Etcd::lent(), Place::new());
    let work = "echo inside >started; while [ ! -e go ]; do sleep 0.05; done; echo ended >>started";
    let text =
        format!("{} sh -c '{work}' >/dev/null 2>&1 & sleep 2.5; cat started", inner(&etcd, "--min-hold 5s"));
    let mut outer = run(&place, &etcd).args(["--orphans", "leave"]).sh(&text).spawn();
    assert_eq!(outer.wait().outcome(), (Exit::Code(0), "inside\n", ""));
    throughout(Duration::from_secs(9), "the lock is held", || etcd.client().keys("/dlock/x/").len() == 1);
    place.write("go", "");
    until(SOON, "the end of the inner run", || place.read("started") == "inside\nended\n");
    until(SOON, "a free lock", || etcd.client().keys("/dlock/x/").is_empty());
}

/// If its host fails, the lock is free when its own lease has ended.
#[test]
fn the_long_lease_of_an_inner_run_is_not_kept_when_that_has_ended() {
    let (etcd, place) = (Etcd::lent(), Place::new());
    // It is renewed once while it has to keep the lock for longer than the lease of the outer one.
    let text = format!("{} sleep 1.5; echo ready; exec sleep 600", inner(&etcd, "--min-hold 6s"));
    let mut outer = run(&place, &etcd).sh(&text).spawn();
    outer.await_ready();
    let granted = || {
        let client = etcd.client();
        let keys = client.keys("/dlock/x/");
        let id = keys.first().expect("the lock is held").lease;
        client.post("lease/timetolive", &json!({"ID": id.to_string()}))["grantedTTL"].clone()
    };
    assert_ne!(granted(), json!("3"), "the inner run has moved the lock to its lease");
    until(SOON, "a lease of the outer run", || granted() == json!("3"));
    outer.signal(Signal::SIGTERM);
    outer.wait();
}

/// As after an outer dlock that has given its lock back in that moment: it ends its lease next.
#[test]
fn a_claim_that_finds_the_entry_of_its_token_gone_takes_a_lease_of_its_own() {
    let etcd = Etcd::lent();
    on_one_thread(async {
        let (mut first, mut second) = (Client::at(&etcd.url(), "x"), Client::at(&etcd.url(), "x"));
        second.claim.token = first.claim.token.clone();
        first.acquire().await;
        let entries = || etcd.client().keys("/dlock/x/");
        let lease = entries()[0].lease;
        second.acquire().await;
        assert_eq!(entries().iter().map(|entry| entry.lease).collect::<Vec<_>>(), [lease], "it is found");
        assert!(etcd.client().delete(&entries()[0].name));
        second.acquire().await;
        assert!(etcd.client().revoke(lease));
        second.assert_held().await;
        assert_eq!(entries().len(), 1);
    });
}

/// Neither the process that releases nor the one that breaks the lock has taken it.
#[test]
fn the_lease_of_another_process_ends_with_the_entry() {
    let (etcd, place) = (Etcd::lent(), Place::new());
    let command = |words: &[&str]| place.bare().args(words).env("DLOCK_BACKEND", etcd.url());
    for end in ["release", "break"] {
        let acquired = command(&["acquire", "--ttl", "1h", "x"]).output();
        assert_eq!(acquired.exit, Exit::Code(0), "{}", acquired.stderr);
        assert_eq!(etcd.client().leases().unwrap().len(), 1);
        let ended = match end {
            "release" => command(&["release", "x"]).env("DLOCK_TOKEN", acquired.stdout.trim_end()),
            _ => command(&["break", "--yes", "--force", "x"]),
        };
        let ended = ended.output();
        assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
        let left = (etcd.client().keys("/dlock/x/"), etcd.client().leases().unwrap());
        assert_eq!(left, (Vec::new(), Vec::new()), "{end}");
    }
}
